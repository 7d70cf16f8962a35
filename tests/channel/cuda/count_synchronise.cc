#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Preloaded before the CUDA runtime, counts the calls that make the host wait for a device. The count is an exported
// function, and a file of 8 bytes named by the process number in the folder LATENTD_COUNT_SYNCHRONISE, if that is set.
namespace {

std::atomic<int64_t>* makeCounter() {
  static std::atomic<int64_t> own{0};
  const char* folder = std::getenv("LATENTD_COUNT_SYNCHRONISE");
  if (folder == nullptr) return &own;
  char path[256];
  std::snprintf(path, sizeof(path), "%s/%d", folder, ::getpid());
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(int64_t)) != 0) return &own;
  void* mapped = ::mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return mapped == MAP_FAILED ? &own : static_cast<std::atomic<int64_t>*>(mapped);
}

std::atomic<int64_t>& counter() {
  static std::atomic<int64_t>* const counted = makeCounter();
  return *counted;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int64_t latentd_count_synchronise() { return counter().load(); }

cudaError_t cudaDeviceSynchronize() {
  ++counter();
  static auto* const call = next<cudaError_t()>("cudaDeviceSynchronize");
  return call();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++counter();
  static auto* const call = next<cudaError_t(cudaStream_t)>("cudaStreamSynchronize");
  return call(stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++counter();
  static auto* const call = next<cudaError_t(cudaEvent_t)>("cudaEventSynchronize");
  return call(event);
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  ++counter();
  static auto* const call = next<cudaError_t(void*, const void*, size_t, cudaMemcpyKind)>("cudaMemcpy");
  return call(target, source, bytes, kind);
}

cudaError_t cudaFree(void* memory) {
  ++counter();  // waits for the device
  static auto* const call = next<cudaError_t(void*)>("cudaFree");
  return call(memory);
}

}  // extern "C"
