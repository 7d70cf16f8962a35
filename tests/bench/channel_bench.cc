#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "channel/buffer_cache.h"
#include "channel/channel.h"
#include "channel/shm_backend.h"
#include "runtime/base/event_loop.h"
#include "runtime/base/mutex.h"

// The hand-off of one tensor between two processes over shared memory: staging copy, publication, target copy,
// acknowledgement, one at a time. Prints one JSON object a size, with the floor (two memcpy of the size in one process)
// from the same run. With --compute-ms the producer computes and makes a new tensor before each hand-off, and before
// each pair of copies, as a stage does: nothing is awake, mapped or in a cache because it was used just before.
//
//   channel_bench [--sizes 65536,1048576] [--transfers 200] [--borrow] [--compute-ms 5]
extern char** environ;

namespace latentd::channel {
namespace {

constexpr size_t kWarmUp = 20;
// A hand-off that takes longer hangs.
constexpr std::chrono::seconds kPatience{60};

ChannelSpec benchSpec() {
  ChannelSpec spec;
  spec.channel_id = 1;
  spec.edge = "bench.out->bench.in";
  spec.producer_epoch = Epoch(1);
  spec.consumer_epoch = Epoch(1);
  return spec;
}

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(1);
}

Clock::TimePoint soon() { return std::chrono::steady_clock::now() + kPatience; }

int consume(const std::string& address, uint64_t count, bool in_place) {
  SteadyClock clock;
  LoopThread loop(clock, "consumer-loop");
  const ChannelContext context{makeShmBackend(), &loop.loop(), &clock, nullptr};
  auto consumer = openConsumer(benchSpec(), Rank(0), {address}, Device{}, context);
  require(consumer.status());
  BufferCache cache(1ull << 30);
  WaitOptions wait;
  for (uint64_t n = 0; n < count; ++n) {
    wait.deadline = soon();
    require(in_place ? (*consumer)->borrow(SequenceNumber(n), wait).status()
                     : (*consumer)->receive(SequenceNumber(n), cache, wait).status());
  }
  (*consumer)->close();
  require((*consumer)->join(soon()));
  return 0;
}

struct Times {
  std::vector<double> round_trip;  // microseconds
  std::vector<double> handoff;
  std::vector<double> floor;
};

nlohmann::json summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) { return times[static_cast<size_t>(share * static_cast<double>(times.size()))]; };
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  return {{"p50_us", at(0.5)}, {"p95_us", at(0.95)}, {"mean_us", mean}};
}

double microseconds(Clock::Duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

std::chrono::nanoseconds threadTime() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// What comes before a hand-off: so much processor time, and a new tensor. Without computing the same one serves again.
class Work {
 public:
  Work(uint64_t bytes, std::chrono::milliseconds compute) : compute_(compute), source_(bytes, std::byte{7}) {}
  std::vector<std::byte>& next() {
    if (compute_.count() == 0) return source_;
    for (const auto end = threadTime() + compute_; threadTime() < end;) {
    }
    const size_t bytes = source_.size();
    source_ = {};
    source_ = std::vector<std::byte>(bytes, std::byte{++value_});
    return source_;
  }

 private:
  const std::chrono::milliseconds compute_;
  std::vector<std::byte> source_;
  uint8_t value_ = 0;
};

// Two copies as the hand-off makes them: between three buffers.
void measureFloor(Work& work, uint64_t bytes, size_t count, Times& times) {
  std::vector<std::byte> slot(bytes);
  std::vector<std::byte> target(bytes);
  for (size_t i = 0; i < count + kWarmUp; ++i) {
    const std::vector<std::byte>& source = work.next();
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(slot.data(), source.data(), source.size());
    std::memcpy(target.data(), slot.data(), source.size());
    if (i >= kWarmUp) times.floor.push_back(microseconds(std::chrono::steady_clock::now() - start));
  }
}

// The last hand-off that every consumer rank acknowledged.
class Acknowledged {
 public:
  void add(const Transfer& transfer) {
    MutexLock lock(mutex_);
    last_ = transfer;
    changed_.notifyAll();
  }
  Transfer await(uint64_t number) {
    MutexLock lock(mutex_);
    while (last_.sequence.value != number) {
      if (!changed_.waitUntil(mutex_, soon())) require(absl::DeadlineExceededError("a hand-off hangs"));
    }
    return last_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  Transfer last_ GUARDED_BY(mutex_){SequenceNumber(~0ull)};
};

pid_t spawnConsumer(const std::string& address, uint64_t count, bool in_place) {
  const std::string count_text = std::to_string(count);
  std::vector<std::string> arguments{"/proc/self/exe", "--consume", address, "--count", count_text};
  if (in_place) arguments.push_back("--borrow");
  std::vector<char*> pointers;
  for (std::string& argument : arguments)
    pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  if (::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ) != 0) {
    require(absl::InternalError("cannot start the consumer"));
  }
  return pid;
}

nlohmann::json measure(const std::string& folder, uint64_t bytes, uint64_t transfers, bool in_place,
                       std::chrono::milliseconds compute) {
  const std::string address = folder + "/" + std::to_string(bytes) + ".sock";
  SteadyClock clock;
  LoopThread loop(clock, "producer-loop");
  const ChannelContext context{makeShmBackend(), &loop.loop(), &clock, nullptr};
  Acknowledged acknowledged;
  ProducerCallbacks callbacks;
  callbacks.on_transfer_done = [&](const Transfer& transfer) { acknowledged.add(transfer); };
  auto producer = openProducer(benchSpec(), Rank(0), address, context, callbacks);
  require(producer.status());
  const uint64_t count = transfers + kWarmUp;
  const pid_t child = spawnConsumer(address, count, in_place);

  Work work(bytes, compute);
  Times times;
  WaitOptions wait;
  for (uint64_t n = 0; n < count; ++n) {
    const TensorView view{DType::kUInt8, {static_cast<int64_t>(bytes)}, {1}, work.next().data(), Device{}};
    const ArtifactTree tree{ArtifactTree::Value(view)};
    wait.deadline = soon();
    const auto start = std::chrono::steady_clock::now();
    require((*producer)->publish(SequenceNumber(n), tree, wait));
    const Transfer transfer = acknowledged.await(n);
    if (n < kWarmUp) continue;
    times.round_trip.push_back(microseconds(std::chrono::steady_clock::now() - start));
    times.handoff.push_back(microseconds(transfer.handoff));
  }
  (*producer)->close();
  require((*producer)->join(soon()));
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) require(absl::InternalError("the consumer failed"));
  measureFloor(work, bytes, transfers, times);
  return {{"bytes", bytes},
          {"transfers", transfers},
          {"in_place", in_place},
          {"round_trip", summary(times.round_trip)},
          {"handoff", summary(times.handoff)},
          {"floor", summary(times.floor)}};
}

}  // namespace
}  // namespace latentd::channel

int main(int argc, char** argv) {
  CLI::App app("Hand-off of one tensor between two processes over shared memory");
  std::vector<uint64_t> sizes{64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20};
  uint64_t transfers = 200;
  uint64_t count = 0;
  std::string consume_from;
  bool in_place = false;
  int64_t compute_ms = 0;
  app.add_option("--sizes", sizes, "bytes of the tensor")->delimiter(',');
  app.add_option("--transfers", transfers, "measured hand-offs of each size");
  app.add_flag("--borrow", in_place, "the consumer reads the slot in place");
  app.add_option("--compute-ms", compute_ms, "processor time before each hand-off")->check(CLI::NonNegativeNumber);
  app.add_option("--consume", consume_from, "run as the consumer of this address");
  app.add_option("--count", count, "hand-offs of the consumer");
  CLI11_PARSE(app, argc, argv);
  if (!consume_from.empty()) return latentd::channel::consume(consume_from, count, in_place);
  char folder[] = "/tmp/ldbenchXXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  for (const uint64_t bytes : sizes) {
    std::printf("%s\n",
                latentd::channel::measure(folder, bytes, transfers, in_place, std::chrono::milliseconds(compute_ms))
                    .dump()
                    .c_str());
    std::fflush(stdout);
  }
  std::filesystem::remove_all(folder);
  return 0;
}
