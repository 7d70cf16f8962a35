#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "runtime/base/status.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/event.h"
#include "runtime/cuda/memory.h"

// The least that a hand-off of one tensor between two processes on GPUs can be: a pool of two slots that was exported
// once, interprocess events, and one number that says which generation is there. No daemon, no messages, no checks. A
// hand-off is: copy the tensor into a slot, tell its generation, copy it into the consumer's tensor, wait for the
// consumer's device, acknowledge. Prints one JSON object a size: p50, p95 and mean in microseconds.
//
// --wait spin: both sides look at shared memory all the time, and so never sleep. --wait socket: they sleep in a read.
// With --compute-ms the producer computes and fills another tensor before each hand-off, as a stage does.
//
//   handoff_bare [--devices cuda:0,cuda:1] [--sizes 65536] [--transfers 200] [--wait socket] [--compute-ms 2]
//   [--samples]
namespace latentd {
namespace {

constexpr uint64_t kWarmUp = 20;
constexpr uint32_t kSlots = 2;
// A hand-off that takes longer hangs.
constexpr std::chrono::seconds kPatience{20};

struct Options {
  std::vector<uint64_t> sizes{64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20};
  uint64_t transfers = 200;
  std::string devices = "cuda:0";
  std::string wait = "spin";
  double compute_ms = 0;
  bool samples = false;

  bool sleeps() const { return wait == "socket"; }
  uint64_t count() const { return transfers + kWarmUp; }
};

// What both processes see. Numbers only grow.
struct Shared {
  std::atomic<uint32_t> ready{0};                     // sides that have exported what they have
  alignas(64) std::atomic<uint64_t> generation{0};    // producer: the last one that is in its slot
  alignas(64) std::atomic<uint64_t> acknowledged{0};  // consumer: the last one that its device has copied
  cuda::MemoryHandle pool{};
  cuda::EventHandle filled[kSlots]{};
  cuda::EventHandle copied[kSlots]{};
};

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(1);
}

template <class T>
T need(StatusOr<T> value) {
  require(value.status());
  return *std::move(value);
}

void requireCuda(cudaError_t error, const char* what) { require(cuda::cudaStatus(error, what)); }

template <class Word>
void spinUntil(const std::atomic<Word>& word, Word least) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (word.load(std::memory_order_acquire) < least) {
    if (std::chrono::steady_clock::now() > end) require(absl::DeadlineExceededError("the other side does not answer"));
  }
}

// One side's way to tell the other, and to wait for it: through a word or through a socket.
class Signal {
 public:
  Signal(bool sleeps, int socket) : sleeps_(sleeps), socket_(socket) {}
  void tell(std::atomic<uint64_t>& word, uint64_t value) const {
    word.store(value, std::memory_order_release);
    if (sleeps_ && ::send(socket_, &value, sizeof(value), MSG_NOSIGNAL) != sizeof(value)) {
      require(absl::UnavailableError("the other side is gone"));
    }
  }
  void await(const std::atomic<uint64_t>& word, uint64_t value) const {
    if (!sleeps_) return spinUntil(word, value);
    uint64_t told = 0;
    if (::recv(socket_, &told, sizeof(told), 0) != sizeof(told) || told != value) {
      require(absl::UnavailableError("the other side is gone, or said " + std::to_string(told)));
    }
  }

 private:
  const bool sleeps_;
  const int socket_;
};

void compute(double milliseconds) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  for (const double end = now() + milliseconds; now() < end;) {
  }
}

std::vector<cuda::Event> makeEvents(cuda::DeviceIndex device, cuda::EventHandle (&handles)[kSlots]) {
  std::vector<cuda::Event> events;
  for (cuda::EventHandle& handle : handles) {
    events.push_back(need(cuda::Event::createInterprocess(device)));
    handle = need(events.back().exportHandle());
  }
  return events;
}

std::vector<cuda::Event> importEvents(cuda::DeviceIndex device, const cuda::EventHandle (&handles)[kSlots]) {
  std::vector<cuda::Event> events;
  for (const cuda::EventHandle& handle : handles)
    events.push_back(need(cuda::Event::import(device, handle)));
  return events;
}

// Both sides have exported: imports may follow. The last to leave ends the wait of the other.
void meet(Shared& shared, uint32_t sides) {
  shared.ready.fetch_add(1, std::memory_order_acq_rel);
  spinUntil(shared.ready, sides);
}

void copy(void* target, const void* source, uint64_t bytes, cuda::StreamView stream) {
  requireCuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream.get()), "copying");
}

int patternOf(uint64_t generation) { return static_cast<int>(generation % 251); }

// Microseconds of each hand-off that is measured.
std::vector<double> produce(Shared& shared, const Signal& signal, cuda::DeviceIndex device, uint64_t bytes,
                            const Options& options) {
  requireCuda(cudaSetDevice(device.value), "choosing a device");
  const cuda::Stream stream = need(cuda::Stream::create(device));
  const cuda::DeviceBuffer pool =
      need(cuda::DeviceBuffer::allocate(device, std::max<uint64_t>(kSlots * bytes, 2 << 20)));
  // A stage's tensor is another one each time.
  const cuda::DeviceBuffer sources[] = {need(cuda::DeviceBuffer::allocate(device, bytes)),
                                        need(cuda::DeviceBuffer::allocate(device, bytes))};
  shared.pool = need(pool.exportHandle());
  std::vector<cuda::Event> filled = makeEvents(device, shared.filled);
  meet(shared, 2);
  const std::vector<cuda::Event> copied = importEvents(device, shared.copied);
  meet(shared, 4);
  std::vector<double> samples;
  for (uint64_t n = 1; n <= options.count(); ++n) {
    void* const source = sources[n % kSlots].data();
    compute(options.compute_ms);
    requireCuda(cudaMemsetAsync(source, patternOf(n), bytes, stream.view().get()), "making a tensor");
    require(stream.synchronize());
    std::byte* const slot = static_cast<std::byte*>(pool.data()) + n % kSlots * bytes;
    const auto start = std::chrono::steady_clock::now();
    if (n > kSlots) require(copied[n % kSlots].makeWait(stream.view()));
    copy(slot, source, bytes, stream.view());
    require(filled[n % kSlots].record(stream.view()));
    signal.tell(shared.generation, n);
    signal.await(shared.acknowledged, n);
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
    if (n > kWarmUp) samples.push_back(taken.count());
  }
  // The other side lets go of what is ours first.
  meet(shared, 6);
  return samples;
}

// That a device's bytes are all `value`.
void check(const void* data, uint64_t bytes, int value, cuda::StreamView stream) {
  std::vector<unsigned char> seen(bytes);
  copy(seen.data(), data, bytes, stream);
  requireCuda(cudaStreamSynchronize(stream.get()), "downloading");
  const bool right = std::all_of(seen.begin(), seen.end(), [&](unsigned char byte) { return byte == value; });
  if (!right) require(absl::DataLossError("the consumer got another tensor than the last one"));
}

void consume(Shared& shared, const Signal& signal, cuda::DeviceIndex device, uint64_t bytes, const Options& options) {
  requireCuda(cudaSetDevice(device.value), "choosing a device");
  const cuda::Stream stream = need(cuda::Stream::create(device));
  const cuda::DeviceBuffer target = need(cuda::DeviceBuffer::allocate(device, bytes));
  std::vector<cuda::Event> copied = makeEvents(device, shared.copied);
  meet(shared, 2);
  {
    const std::vector<cuda::Event> filled = importEvents(device, shared.filled);
    const cuda::ImportedMemory pool = need(cuda::ImportedMemory::open(device, shared.pool));
    meet(shared, 4);
    for (uint64_t n = 1; n <= options.count(); ++n) {
      signal.await(shared.generation, n);
      require(filled[n % kSlots].makeWait(stream.view()));
      copy(target.data(), static_cast<const std::byte*>(pool.data()) + n % kSlots * bytes, bytes, stream.view());
      require(copied[n % kSlots].record(stream.view()));
      require(stream.synchronize());
      signal.tell(shared.acknowledged, n);
    }
    check(target.data(), bytes, patternOf(options.count()), stream.view());
  }
  meet(shared, 6);
}

void report(std::vector<double> samples, uint64_t bytes, const Options& options) {
  nlohmann::json result{{"bytes", bytes},
                        {"transfers", options.transfers},
                        {"method", "bare, " + options.wait},
                        {"devices", options.devices}};
  if (options.samples) result["samples_us"] = samples;
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
  std::sort(samples.begin(), samples.end());
  result["p50_us"] = samples[samples.size() / 2];
  result["p95_us"] = samples[samples.size() * 95 / 100];
  result["mean_us"] = mean;
  std::printf("%s\n", result.dump().c_str());
  std::fflush(stdout);
}

cuda::DeviceIndex deviceAt(const std::string& devices, size_t place) {
  const size_t comma = devices.find(',');
  const std::string name =
      place == 0 || comma == std::string::npos ? devices.substr(0, comma) : devices.substr(comma + 1);
  if (!name.starts_with("cuda:")) require(absl::InvalidArgumentError("device \"" + name + "\" is not \"cuda:N\""));
  return cuda::DeviceIndex(std::atoi(name.c_str() + 5));
}

// One process for each side: this one never talks to a driver, which no fork survives.
int measure(uint64_t bytes, const Options& options) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int sockets[2];
  if (memory == MAP_FAILED || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    require(absl::ResourceExhaustedError("no memory or descriptors for two processes"));
  }
  Shared& shared = *new (memory) Shared;
  const pid_t parent = ::getpid();
  std::vector<pid_t> sides;
  for (size_t side = 0; side < 2; ++side) {
    const pid_t pid = ::fork();
    if (pid < 0) require(absl::ResourceExhaustedError("cannot fork"));
    if (pid > 0) {
      sides.push_back(pid);
      continue;
    }
    // A side that fails ends its parent, and so the other side.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) std::_Exit(1);
    const Signal signal(options.sleeps(), sockets[side]);
    ::close(sockets[1 - side]);
    const cuda::DeviceIndex device = deviceAt(options.devices, side);
    if (side == 0) {
      report(produce(shared, signal, device, bytes, options), bytes, options);
    } else {
      consume(shared, signal, device, bytes, options);
    }
    std::_Exit(0);
  }
  ::close(sockets[0]);
  ::close(sockets[1]);
  for (size_t ended = 0; ended < sides.size(); ++ended) {
    int status = 0;
    if (::wait(&status) < 0 || status != 0) std::_Exit(1);
  }
  ::munmap(memory, sizeof(Shared));
  return 0;
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  CLI::App app("The least that a hand-off of one tensor between two processes on GPUs can be");
  latentd::Options options;
  app.add_option("--sizes", options.sizes, "bytes of the tensor")->delimiter(',');
  app.add_option("--transfers", options.transfers, "measured hand-offs of each size")->check(CLI::PositiveNumber);
  app.add_option("--devices", options.devices, "of the producer and of the consumer; one: they share it");
  app.add_option("--wait", options.wait, "how both sides wait")->check(CLI::IsMember({"spin", "socket"}));
  app.add_option("--compute-ms", options.compute_ms, "processor time before each hand-off")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--samples", options.samples, "print every hand-off's time too");
  CLI11_PARSE(app, argc, argv);
  for (const uint64_t bytes : options.sizes) {
    if (const int failed = latentd::measure(bytes, options)) return failed;
  }
  return 0;
}
