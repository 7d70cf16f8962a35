#include "runtime/worker/process_memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>

namespace latentd::worker {
namespace {

std::optional<uint64_t> dataLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// What RLIMIT_DATA counts: private writable mappings, whether or not their pages were ever touched.
uint64_t dataBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kibibytes = 0;
    if (word == "VmData:" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

std::string mebibytes(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

uint64_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  if (!(statm >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string describeMemory() {
  std::string text = "the process holds " + mebibytes(residentBytes());
  if (const auto limit = dataLimit()) {
    text += "; it has mapped " + mebibytes(dataBytes()) +
            " of private memory, touched or not, and its limit (memory_max) is " + mebibytes(*limit);
  }
  return text;
}

bool hasMemoryLimit() { return dataLimit().has_value(); }

uint64_t mappableBytes() {
  const auto limit = dataLimit();
  if (!limit) return UINT64_MAX;
  const uint64_t mapped = dataBytes();
  return *limit > mapped ? *limit - mapped : 0;
}

bool releaseAndProbe(uint64_t bytes) {
  ::malloc_trim(0);
  void* probe = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  ::munmap(probe, bytes);
  return true;
}

}  // namespace latentd::worker
