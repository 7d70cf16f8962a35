// Two ranks of a group that exchange tensors, each with an executor of its own.
#include <atomic>
#include <memory>
#include <vector>

#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "runtime/base/step_gate.h"
#include "runtime/worker/stage_executor.h"
#include "runtime/worker/tensor_convert.h"
#include "tests/runtime/worker/fakes.h"
#include "tests/support/temp_dir.h"

namespace latentd::worker {
namespace {

using internal::v1::StageFailed;
using mesh::Mesh;
using stages::RunContext;
using stages::TensorTree;
using Code = absl::StatusCode;

constexpr uint32_t kRanks = 2;
constexpr uint32_t kOut = 1;
constexpr uint32_t kIn = 2;
constexpr uint32_t kSteps = 1'000'000;  // of a run that ends by its cancellation

using Method = std::function<Status(Mesh&, RunContext&)>;
// What comes over the edge into a rank, or why it does not.
using Input = std::function<Status(Rank rank, uint64_t sequence)>;

// Every rank gives its number; all get the sum. No assertion of the test's: it runs on the executors' threads.
Status exchange(Mesh& mesh) {
  const at::Tensor sum = at::full({4}, static_cast<double>(mesh.rank().value));
  mesh::allReduceSum_(mesh.world(), {sum});
  return sum.sum().item().toDouble() == 4.0 ? absl::OkStatus() : absl::DataLossError("a wrong sum");
}

class RankOfTwo {
 public:
  RankOfTwo(Rank rank, const ShmRegion& gate, const std::string& store, const Method& method, const Input& input) {
    channels_.producers[kOut] = std::make_shared<FakeProducer>();
    const auto consumer = std::make_shared<FakeConsumer>();
    consumer->on_receive = [rank, input](uint64_t sequence) -> StatusOr<channel::ArtifactTree> {
      LATENTD_RETURN_IF_ERROR(input(rank, sequence));
      return toArtifact(tensorDict("x", 1));
    };
    channels_.consumers[kIn] = consumer;
    device_ = *WorkerDevice::open({}, std::chrono::seconds(1));
    executor_ = std::make_unique<StageExecutor>(
        StageExecutor::Environment{&channels_, &events_, &descriptors_, device_.get(), kRanks, 0},
        StepGate::attach(ShmRegion::map(duplicateFd(gate.fd()).value(), 1).value(), rank).value(),
        [rank, store, method](StepGate&, StageExecutor::Started& started) {
          return start(rank, store, method, started);
        },
        [](const GuardedResult& result) { FAIL(result.status.ToString()); });
  }

  void submit(const std::string& job, uint64_t sequence) {
    internal::v1::RunStage message;
    message.set_job_id(job);
    message.set_method("work");
    message.set_stall_timeout_ms(20'000);
    message.add_inputs()->set_channel_id(kIn);
    message.mutable_inputs(0)->set_sequence(sequence);
    message.add_outputs()->set_channel_id(kOut);
    message.mutable_outputs(0)->set_sequence(sequence);
    executor_->submit(std::move(message));
  }
  void cancel(const std::string& job) { executor_->cancel(job); }
  internal::v1::WorkerEvent end(const std::string& job) { return events_.end(job); }
  void waitForStep(const std::string& job) {
    events_.wait([&](const auto& event) { return event.has_progress() && event.progress().job_id() == job; });
  }

 private:
  static GuardedResult start(Rank rank, const std::string& store, const Method& method,
                             StageExecutor::Started& started) {
    return runGuarded([&] {
      Mesh::Options options;
      options.degrees.tp = kRanks;
      options.rank = rank;
      options.rendezvous_file = store;
      options.timeout = std::chrono::seconds(20);
      LATENTD_ASSIGN_OR_RETURN(started.mesh, Mesh::make(std::move(options)));
      Mesh* mesh = started.mesh.get();
      started.stage =
          std::make_unique<LambdaStage>([mesh, method](const TensorTree&, RunContext& context) -> StatusOr<TensorTree> {
            LATENTD_RETURN_IF_ERROR(method(*mesh, context));
            return tensorDict("y", 1);
          });
      return absl::OkStatus();
    });
  }

  FakeTable channels_;
  RecordingSink events_;
  DescriptorInbox descriptors_;
  std::unique_ptr<WorkerDevice> device_;
  std::unique_ptr<StageExecutor> executor_;  // last: it uses all of the above
};

struct GroupOfTwo {
  explicit GroupOfTwo(
      const Method& method, const Input& input = [](Rank, uint64_t) { return absl::OkStatus(); }) {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      ranks.push_back(std::make_unique<RankOfTwo>(Rank(rank), gate, folder.file("store"), method, input));
  }
  void submit(const std::string& job) {
    for (const auto& rank : ranks)
      rank->submit(job, sequence);
    ++sequence;
  }
  StageFailed failed(uint32_t rank, const std::string& job) { return ranks[rank]->end(job).failed(); }
  void checkNextJobRuns() {
    submit("next");
    for (const auto& rank : ranks)
      CHECK(rank->end("next").has_done());
  }

  const latentd::testing::TempDir folder;
  const ShmRegion gate = StepGate::createRegion().value();
  uint64_t sequence = 0;
  std::vector<std::unique_ptr<RankOfTwo>> ranks;
};

bool is(const StageFailed& failed, Code code) { return failed.status().code() == static_cast<int>(code); }

TEST_CASE("executor: what every rank refuses before it exchanges anything leaves the group as it is", "[worker]") {
  std::atomic<int> refusals{2};
  GroupOfTwo group([&](Mesh& mesh, RunContext&) -> Status {
    if (refusals-- > 0) return absl::InvalidArgumentError("frames = 2: must be 5");
    return exchange(mesh);
  });
  group.submit("bad");
  for (const uint32_t rank : {0, 1}) {
    const StageFailed failed = group.failed(rank, "bad");
    CHECK(is(failed, Code::kInvalidArgument));
    CHECK_FALSE(failed.recycle());
    CHECK_FALSE(failed.of_peer());
  }
  group.checkNextJobRuns();
}

TEST_CASE("executor: a rank that fails alone ends the others with its cause, and the group's use", "[worker]") {
  for (const bool exchanged : {true, false}) {
    GroupOfTwo group([&](Mesh& mesh, RunContext&) -> Status {
      if (exchanged) LATENTD_RETURN_IF_ERROR(exchange(mesh));
      // What is wrong with the job the other ranks would find too; that memory ran out, they do not.
      if (mesh.rank() == Rank(1)) {
        return exchanged ? absl::InvalidArgumentError("broken") : absl::ResourceExhaustedError("broken");
      }
      return exchange(mesh);
    });
    group.submit("a");
    const StageFailed own = group.failed(1, "a");
    CHECK(is(own, exchanged ? Code::kInvalidArgument : Code::kResourceExhausted));
    CHECK(own.recycle());
    CHECK_FALSE(own.of_peer());
    const StageFailed met = group.failed(0, "a");
    CHECK(is(met, exchanged ? Code::kInternal : Code::kResourceExhausted));
    CHECK(met.status().message() == "rank 1 failed: broken");
    CHECK(met.recycle());
    CHECK(met.of_peer());
  }
}

Status exchangeOnce(Mesh& mesh, RunContext&) { return exchange(mesh); }

TEST_CASE("executor: a rank that alone cannot take its input ends the others at once", "[worker]") {
  GroupOfTwo group(exchangeOnce, [](Rank rank, uint64_t) {
    return rank == Rank(1) ? absl::ResourceExhaustedError("no descriptor") : absl::OkStatus();
  });
  group.submit("a");
  const StageFailed own = group.failed(1, "a");
  CHECK(is(own, Code::kResourceExhausted));
  CHECK(own.recycle());
  CHECK_FALSE(own.of_peer());
  const StageFailed met = group.failed(0, "a");
  CHECK(met.status().message() == "rank 1 failed: no descriptor");
  CHECK(met.of_peer());
}

TEST_CASE("executor: a lead that cannot take its input stops the others, who say that it was not they", "[worker]") {
  GroupOfTwo group(exchangeOnce, [](Rank rank, uint64_t sequence) {
    return rank == Rank(0) && sequence == 0 ? absl::ResourceExhaustedError("no descriptor") : absl::OkStatus();
  });
  group.submit("a");
  const StageFailed own = group.failed(0, "a");
  CHECK(is(own, Code::kResourceExhausted));
  CHECK_FALSE(own.recycle());
  CHECK_FALSE(own.of_peer());
  const StageFailed stopped = group.failed(1, "a");
  CHECK(is(stopped, Code::kCancelled));
  CHECK_FALSE(stopped.recycle());
  CHECK(stopped.of_peer());
  group.checkNextJobRuns();
}

TEST_CASE("executor: an input that no rank gets leaves the group as it is", "[worker]") {
  GroupOfTwo group(exchangeOnce, [](Rank, uint64_t sequence) {
    return sequence == 0 ? absl::ResourceExhaustedError("out of memory upstream") : absl::OkStatus();
  });
  group.submit("a");
  for (const uint32_t rank : {0, 1}) {
    const StageFailed failed = group.failed(rank, "a");
    CHECK(is(failed, Code::kResourceExhausted));
    CHECK_FALSE(failed.recycle());
  }
  group.checkNextJobRuns();
}

TEST_CASE("executor: a run that the gate stops between two exchanges leaves the group as it is", "[worker]") {
  std::atomic<bool> endless{true};
  GroupOfTwo group([&](Mesh& mesh, RunContext& context) -> Status {
    for (uint32_t step = 0; step < (endless ? kSteps : 3); ++step) {
      LATENTD_RETURN_IF_ERROR(context.beginStep(step, kSteps));
      LATENTD_RETURN_IF_ERROR(exchange(mesh));
      context.finishStep(step, kSteps);
    }
    return absl::OkStatus();
  });
  group.submit("a");
  group.ranks[1]->waitForStep("a");
  for (const auto& rank : group.ranks)
    rank->cancel("a");
  for (const uint32_t rank : {0, 1}) {
    const StageFailed failed = group.failed(rank, "a");
    CHECK(is(failed, Code::kCancelled));
    CHECK_FALSE(failed.recycle());
  }
  endless = false;
  group.checkNextJobRuns();
}

}  // namespace
}  // namespace latentd::worker
