#include "runtime/worker/stage_executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <new>
#include <stdexcept>
#include <utility>

#include "channel/buffer_cache.h"
#include "mesh/communication_error.h"
#include "runtime/base/nanoseconds.h"
#include "runtime/worker/stage_run.h"
#include "runtime/worker/tensor_convert.h"
#include "tests/runtime/worker/fakes.h"

namespace latentd::worker {
namespace {

using internal::v1::RunStage;
using stages::RunContext;
using stages::TensorTree;
using Code = absl::StatusCode;

constexpr uint32_t kIn = 1;
constexpr uint32_t kOut = 2;
constexpr uint32_t kOtherOut = 3;
constexpr uint32_t kSpansMax = 100;

StatusOr<TensorTree> echo(const TensorTree& inputs, RunContext&) {
  return dictOf("y", inputs.find("x") != nullptr ? *inputs.find("x") : TensorTree(int64_t{0}));
}

// One executor over fake channels: input 1, outputs 2 and 3.
struct Fixture {
  explicit Fixture(LambdaStage::Run run) : Fixture(std::move(run), StepGate::createRegion().value(), Rank(0), 1) {}
  Fixture(LambdaStage::Run run, ShmRegion gate, Rank rank, uint32_t ranks) {
    in->on_receive = [](uint64_t sequence) { return toArtifact(tensorDict("x", static_cast<double>(sequence))); };
    channels.consumers[kIn] = in;
    channels.producers[kOut] = out;
    channels.producers[kOtherOut] = other_out;
    device = *WorkerDevice::open({}, std::chrono::seconds(1));
    executor = std::make_unique<StageExecutor>(
        StageExecutor::Environment{&channels, &events, &descriptors, device.get(), ranks, kSpansMax},
        StepGate::attach(std::move(gate), rank).value(),
        [run](StepGate&, StageExecutor::Started& started) {
          started.stage = std::make_unique<LambdaStage>(run);
          return GuardedResult{};
        },
        [](const GuardedResult& result) { FAIL(result.status.ToString()); });
  }

  RunStage command(const std::string& job, uint64_t sequence, const std::string& method = "work") {
    RunStage message;
    message.set_job_id(job);
    message.set_method(method);
    message.set_stall_timeout_ms(60'000);
    if (method == "work") addRef(*message.add_inputs(), kIn, sequence);
    if (method != "show") {
      addRef(*message.add_outputs(), kOut, sequence);
      addRef(*message.add_outputs(), kOtherOut, sequence);
    }
    return message;
  }
  static void addRef(internal::v1::ArtifactRef& ref, uint32_t channel, uint64_t sequence) {
    ref.set_channel_id(channel);
    ref.set_sequence(sequence);
  }
  Code codeOf(const std::string& job) {
    const auto end = events.end(job);
    return end.has_done() ? Code::kOk : static_cast<Code>(end.failed().status().code());
  }
  // Both outputs of a number ended alike.
  Code outputs(uint64_t sequence) {
    const auto first = out->ended(sequence);
    const auto second = other_out->ended(sequence);
    REQUIRE(first.has_value());
    REQUIRE(second.has_value());
    CHECK(first->code() == second->code());
    return first->code();
  }
  // The executor is as good as new.
  void checkNextJobRuns(uint64_t sequence) {
    in->barrier = nullptr;
    out->barrier = nullptr;
    executor->submit(command("next", sequence, "make"));
    CHECK(codeOf("next") == Code::kOk);
    CHECK(outputs(sequence) == Code::kOk);
  }

  FakeTable channels;
  RecordingSink events;
  DescriptorInbox descriptors;
  std::shared_ptr<FakeConsumer> in = std::make_shared<FakeConsumer>();
  std::shared_ptr<FakeProducer> out = std::make_shared<FakeProducer>();
  std::shared_ptr<FakeProducer> other_out = std::make_shared<FakeProducer>();
  std::unique_ptr<WorkerDevice> device;
  std::unique_ptr<StageExecutor> executor;  // last: it uses all of the above
};

TEST_CASE("executor: commands run in order and report what happened, in order", "[worker]") {
  Fixture fixture([](const TensorTree& inputs, RunContext& context) {
    for (uint32_t step = 0; step < 3; ++step) {
      REQUIRE(context.beginStep(step, 3).ok());
      context.finishStep(step, 3);
    }
    return echo(inputs, context);
  });
  fixture.executor->submit(fixture.command("a", 0));
  fixture.executor->submit(fixture.command("b", 1));
  const auto done = fixture.events.end("b").done();
  std::string story;
  for (const auto& event : fixture.events.all()) {
    if (event.has_started()) story += "S" + event.started().job_id();
    if (event.has_inputs_consumed()) story += "C" + event.inputs_consumed().job_id();
    if (event.has_progress()) story += std::to_string(event.progress().step());
    if (event.has_done()) story += "D" + event.done().job_id() + " ";
  }
  CHECK(story == "SaCa123Da SbCb123Db ");
  CHECK(done.timings().step_seconds_size() == 3);
  REQUIRE(done.outputs_size() == 2);
  CHECK(done.outputs(0).keys(0) == "y");
  CHECK(done.outputs(0).bytes() == 24);
  CHECK(done.outputs(1).artifact().channel_id() == kOtherOut);
  const TensorTree received = fromArtifact(fixture.out->published(1)).value();
  CHECK(received.find("y")->getIf<at::Tensor>()->sum().item().toDouble() == 6.0);
}

TEST_CASE("executor: every answer carries the figures that were counted until it", "[worker]") {
  Fixture fixture(echo);
  const auto figuresOf = [&](const std::string& job) {
    const auto answer = fixture.events.end(job);
    REQUIRE(answer.edges_size() == 1);
    return answer.edges(0);
  };
  fixture.executor->submit(fixture.command("done", 0));
  CHECK(figuresOf("done").bytes_read() == kTensorBytes);
  fixture.in->on_receive = [](uint64_t) { return toArtifact(tensorDict("other", 0)); };
  fixture.executor->submit(fixture.command("failed", 1));
  CHECK(figuresOf("failed").bytes_read() == 2 * kTensorBytes);
  fixture.executor->close(absl::CancelledError("over"));
  fixture.executor->submit(fixture.command("unrun", 2));
  CHECK(figuresOf("unrun").discarded().at("cancelled") == 1);
}

TEST_CASE("executor: outputs are announced when the last step is near its end, and when it is complete", "[worker]") {
  std::vector<int> announced;
  Fixture* running = nullptr;
  Fixture fixture([&](const TensorTree& inputs, RunContext& context) {
    for (uint32_t step = 0; step < 3; ++step) {
      REQUIRE(context.beginStep(step, 3).ok());
      if (step == 2) context.nearEnd();
      announced.push_back(running->out->announced());
      context.finishStep(step, 3);
      announced.push_back(running->out->announced() + 10 * running->other_out->announced());
    }
    return echo(inputs, context);
  });
  running = &fixture;
  fixture.executor->submit(fixture.command("a", 0));
  CHECK(fixture.codeOf("a") == Code::kOk);
  CHECK(announced == std::vector<int>{0, 0, 0, 0, 1, 22});
}

// One command of a stage on `on_device`, without an executor: how many inputs were acknowledged after the method began,
// before its second step and at its end, and the events' story.
std::string acknowledgementsOf(bool on_device) {
  FakeTable channels;
  RecordingSink events;
  DescriptorInbox descriptors;
  StallClock stall;
  StepGate gate = StepGate::attach(StepGate::createRegion().value(), Rank(0)).value();
  const auto in = std::make_shared<FakeConsumer>();
  in->on_receive = [](uint64_t sequence) {
    return toArtifact(tensorDict(sequence == 0 ? "x" : "other", static_cast<double>(sequence)));
  };
  channels.consumers[kIn] = in;
  std::string story;
  const auto tell = [&] {
    const auto all = events.all();
    story += std::to_string(in->acknowledged());
    for (const auto& event : all) {
      if (event.has_inputs_consumed()) story += "C" + std::to_string(event.inputs_consumed().refs_size());
    }
    story += " ";
  };
  LambdaStage stage([&](const TensorTree& inputs, RunContext& context) -> StatusOr<TensorTree> {
    for (uint32_t step = 0; step < 2; ++step) {
      LATENTD_RETURN_IF_ERROR(context.beginStep(step, 2));
      tell();
    }
    context.finishStep(0, 2);
    context.finishStep(1, 2);
    return dictOf("y", TensorTree(int64_t{inputs.find("other") != nullptr}));
  });
  StageCommand command;
  command.message.set_job_id("a");
  command.message.set_method("work");
  command.message.set_stall_timeout_ms(60'000);
  Fixture::addRef(*command.message.add_inputs(), kIn, 0);
  Fixture::addRef(*command.message.add_inputs(), kIn, 1);
  command.run = 1;
  channel::BufferCache buffers(1 << 20);
  RunEnvironment environment{.channels = &channels,
                             .events = &events,
                             .descriptors = &descriptors,
                             .gate = &gate,
                             .stall = &stall,
                             .on_device = on_device};
  StageRun run(command, stage, buffers, environment);
  CHECK(run.execute().status.ToString() == "OK");
  tell();
  return story;
}

TEST_CASE("executor: the last input is acknowledged once a device has its first step", "[worker]") {
  CHECK(acknowledgementsOf(false) == "2C2 2C2 2C2 ");
  CHECK(acknowledgementsOf(true) == "1 2C2 2C2 ");
}

TEST_CASE("executor: an input is acknowledged whatever becomes of its command", "[worker]") {
  Fixture fixture([](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { return absl::DataLossError("broken"); });
  fixture.executor->submit(fixture.command("a", 0));
  CHECK(fixture.codeOf("a") == Code::kDataLoss);
  CHECK(fixture.in->acknowledged() == 1);
}

// Start and end of each of the answer's spans that have this kind.
std::vector<std::pair<int64_t, int64_t>> spansOf(const internal::v1::CommandTrace& trace, v1::SpanKind kind) {
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const internal::v1::Span& span : trace.spans()) {
    if (span.kind() == kind) found.emplace_back(span.start_ns(), span.end_ns());
  }
  return found;
}

TEST_CASE("executor: an answer says where the command's time went, from its receipt on", "[worker]") {
  Fixture fixture([](const TensorTree& inputs, RunContext& context) {
    for (uint32_t step = 0; step < 2; ++step) {
      REQUIRE(context.beginStep(step, 2).ok());
      context.finishStep(step, 2);
    }
    return echo(inputs, context);
  });
  const auto barrier = std::make_shared<Barrier>();
  fixture.in->barrier = barrier;
  fixture.executor->submit(fixture.command("a", 0));
  REQUIRE(barrier->waitUntilReached());
  const int64_t before_input = toNanoseconds(std::chrono::steady_clock::now());
  barrier->open();
  const internal::v1::CommandTrace trace = fixture.events.end("a").done().trace();
  const auto only = [&](v1::SpanKind kind) {
    const auto spans = spansOf(trace, kind);
    REQUIRE(spans.size() == 1);
    return spans[0];
  };
  const auto command = only(v1::SPAN_KIND_COMMAND);
  const auto inputs = only(v1::SPAN_KIND_INPUTS);
  const auto stage = only(v1::SPAN_KIND_STAGE);
  const auto outputs = only(v1::SPAN_KIND_OUTPUTS);
  const auto steps = spansOf(trace, v1::SPAN_KIND_STEP);
  REQUIRE(steps.size() == 2);
  CHECK(command.first <= inputs.first);  // it was there before its input
  CHECK(inputs.first <= before_input);
  CHECK(before_input <= inputs.second);
  CHECK(inputs.second <= stage.first);
  CHECK(stage.first <= steps[0].first);
  CHECK(steps[0].second <= steps[1].first);
  CHECK(steps[1].second <= stage.second);
  CHECK(stage.second <= outputs.first);
  CHECK(outputs.second <= command.second);
}

TEST_CASE("executor: a command that fails, or never runs, tells its span too", "[worker]") {
  Fixture fixture([](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { return absl::DataLossError("broken"); });
  const auto barrier = std::make_shared<Barrier>();
  fixture.in->barrier = barrier;
  fixture.executor->submit(fixture.command("a", 0));
  fixture.executor->submit(fixture.command("b", 1));
  REQUIRE(barrier->waitUntilReached());
  fixture.executor->cancel("b");
  CHECK(spansOf(fixture.events.end("b").failed().trace(), v1::SPAN_KIND_COMMAND).size() == 1);
  barrier->open();
  const internal::v1::CommandTrace trace = fixture.events.end("a").failed().trace();
  CHECK(spansOf(trace, v1::SPAN_KIND_COMMAND).size() == 1);
  CHECK(spansOf(trace, v1::SPAN_KIND_STAGE).size() == 1);
}

// ---- cancellation at every point ----------------------------------------------------------------------------

TEST_CASE("executor: a cancel ends the command wherever it is, and every promise with it", "[worker][cancel]") {
  std::atomic<bool> in_step = false;
  Fixture fixture([&](const TensorTree& inputs, RunContext& context) -> StatusOr<TensorTree> {
    if (inputs.find("x") == nullptr) return echo(inputs, context);
    for (uint32_t step = 0; step < 1'000'000; ++step) {
      LATENTD_RETURN_IF_ERROR(context.beginStep(step, 1'000'000));
      if (fixture.out->barrier != nullptr) return echo(inputs, context);
      in_step = true;
      context.finishStep(step, 1'000'000);
    }
    return absl::InternalError("never cancelled");
  });
  std::string consumed = "received";
  SECTION("while it waits for an input") {
    fixture.in->barrier = std::make_shared<Barrier>();
    consumed = "cancelled";
    fixture.executor->submit(fixture.command("a", 0));
    REQUIRE(fixture.in->barrier->waitUntilReached());
    fixture.executor->cancel("a");
  }
  SECTION("between steps") {
    fixture.executor->submit(fixture.command("a", 0));
    fixture.events.wait([](const auto& event) { return event.has_progress(); });
    fixture.executor->cancel("a");
  }
  SECTION("while it waits for a slot") {
    fixture.out->barrier = std::make_shared<Barrier>();
    fixture.executor->submit(fixture.command("a", 0));
    REQUIRE(fixture.out->barrier->waitUntilReached());
    fixture.executor->cancel("a");
  }
  SECTION("while another command computes") {
    fixture.in->barrier = std::make_shared<Barrier>();
    consumed = "cancelled";
    fixture.executor->submit(fixture.command("first", 7));
    REQUIRE(fixture.in->barrier->waitUntilReached());
    fixture.executor->submit(fixture.command("a", 0));
    fixture.executor->cancel("a");
    // At once: the first still waits.
    CHECK(fixture.codeOf("a") == Code::kCancelled);
    fixture.executor->cancel("first");
    CHECK(fixture.codeOf("first") == Code::kCancelled);
    CHECK(fixture.outputs(7) == Code::kCancelled);
  }
  CHECK(fixture.codeOf("a") == Code::kCancelled);
  CHECK_FALSE(fixture.events.end("a").failed().recycle());
  CHECK(fixture.in->ended(0) == consumed);
  CHECK(fixture.outputs(0) == Code::kCancelled);
  fixture.checkNextJobRuns(1);
}

TEST_CASE("executor: cancelling a job without a command here does nothing", "[worker][cancel]") {
  Fixture fixture(echo);
  fixture.executor->cancel("unknown");
  fixture.executor->submit(fixture.command("unknown", 0));
  CHECK(fixture.codeOf("unknown") == Code::kOk);
}

// ---- failure at every point ---------------------------------------------------------------------------------

struct Failure {
  const char* name;
  Code code;
  bool recycle;
  LambdaStage::Run run;
};

TEST_CASE("executor: whatever the stage does wrong fails its job alone", "[worker]") {
  const std::vector<Failure> failures{
      {"an error", Code::kDataLoss, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { return absl::DataLossError("bad weights"); }},
      {"a torch error", Code::kInternal, false,
       [](const TensorTree& inputs, RunContext&) -> StatusOr<TensorTree> {
         return dictOf("y", TensorTree(inputs.find("x")->getIf<at::Tensor>()->reshape({5})));
       }},
      {"more memory than there is", Code::kResourceExhausted, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> {
         return dictOf("y", TensorTree(at::empty({int64_t{1} << 50})));
       }},
      {"std::bad_alloc", Code::kResourceExhausted, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { throw std::bad_alloc(); }},
      {"std::runtime_error", Code::kInternal, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { throw std::runtime_error("odd"); }},
      {"a device error", Code::kDataLoss, true,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> {
         throw c10::AcceleratorError({"f", "f.cc", 1}, 700, "an illegal memory access was encountered");
       }},
      {"something unknown", Code::kInternal, true,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { throw 7; }},
      {"no dictionary", Code::kInternal, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { return TensorTree(true); }},
      {"a missing output", Code::kInternal, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> { return tensorDict("z", 1); }},
      {"a complex tensor", Code::kInvalidArgument, false,
       [](const TensorTree&, RunContext&) -> StatusOr<TensorTree> {
         return dictOf("y", TensorTree(at::empty({2}, at::TensorOptions().dtype(at::kComplexFloat))));
       }},
      {"a step out of range", Code::kInternal, false,
       [](const TensorTree&, RunContext& context) -> StatusOr<TensorTree> { return context.beginStep(3, 3); }},
  };
  for (const Failure& failure : failures) {
    INFO(failure.name);
    std::atomic<bool> fail = true;
    Fixture fixture([&](const TensorTree& inputs, RunContext& context) -> StatusOr<TensorTree> {
      return fail.exchange(false) ? failure.run(inputs, context) : echo(inputs, context);
    });
    fixture.executor->submit(fixture.command("a", 0));
    CHECK(fixture.codeOf("a") == failure.code);
    CHECK(fixture.events.end("a").failed().recycle() == failure.recycle);
    CHECK(fixture.outputs(0) == failure.code);
    if (failure.recycle) {
      fixture.executor->submit(fixture.command("next", 1));
      CHECK(fixture.codeOf("next") == Code::kUnavailable);
      CHECK(fixture.outputs(1) == Code::kUnavailable);
      CHECK(fixture.in->ended(1) == "failed");
    } else {
      fixture.checkNextJobRuns(1);
    }
  }
}

TEST_CASE("executor: memory that ran out is reported with the sizes", "[worker]") {
  Fixture fixture([](const TensorTree&, RunContext&) -> StatusOr<TensorTree> {
    return dictOf("y", TensorTree(at::empty({int64_t{1} << 50})));
  });
  fixture.executor->submit(fixture.command("a", 0));
  const std::string message = fixture.events.end("a").failed().status().message();
  CHECK(message.find("4503599627370496 bytes") != std::string::npos);
  CHECK(message.find("the process holds") != std::string::npos);
}

TEST_CASE("executor: a worker that never had memory to spare outlives a job that wants more", "[worker]") {
  // Less than is asked of a process that has plenty.
  constexpr uint64_t kSpare = uint64_t{40} << 20;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_DATA, &before) == 0);
  const uint64_t mapped = [] {
    std::ifstream status("/proc/self/status");
    std::string word;
    uint64_t kibibytes = 0;
    while (status >> word && word != "VmData:") {
    }
    status >> kibibytes;
    return kibibytes << 10;
  }();
  REQUIRE(mapped > 0);
  const rlimit tight{mapped + kSpare, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_DATA, &tight) == 0);
  {
    Fixture fixture([](const TensorTree&, RunContext&) -> StatusOr<TensorTree> {
      return dictOf("y", TensorTree(at::empty({int64_t{1} << 30})));
    });
    fixture.executor->submit(fixture.command("a", 0));
    const auto failed = fixture.events.end("a").failed();
    CHECK(static_cast<Code>(failed.status().code()) == Code::kResourceExhausted);
    CHECK_FALSE(failed.recycle());
    const std::string limit = std::to_string((mapped + kSpare) >> 20) + " MiB";
    CHECK(failed.status().message().find("of private memory, touched or not, and its limit (memory_max) is " + limit) !=
          std::string::npos);
  }
  REQUIRE(::setrlimit(RLIMIT_DATA, &before) == 0);
}

TEST_CASE("executor: what goes wrong around the stage ends every promise, too", "[worker]") {
  Fixture fixture(echo);
  RunStage command = fixture.command("a", 0);
  Code expected = Code::kOk;
  std::string consumed = "received";
  SECTION("the producer aborted an input") {
    fixture.in->on_receive = [](uint64_t) { return absl::ResourceExhaustedError("out of memory upstream"); };
    expected = Code::kResourceExhausted;
  }
  SECTION("an input is no dictionary") {
    fixture.in->on_receive = [](uint64_t) { return toArtifact(TensorTree(int64_t{4})); };
    expected = Code::kInvalidArgument;
  }
  SECTION("an input lacks the key") {
    fixture.in->on_receive = [](uint64_t) { return toArtifact(tensorDict("w", 1)); };
    expected = Code::kInvalidArgument;
  }
  SECTION("two edges bring the same key") {
    Fixture::addRef(*command.add_inputs(), kIn, 1);
    expected = Code::kInvalidArgument;
  }
  SECTION("an unknown method") {
    command.set_method("dance");
    expected = Code::kNotFound;
    consumed = "failed";
  }
  SECTION("a ring that never came, of which the output and not the edge is in want") {
    command.set_frame_ring_id(99);
    command.set_stall_timeout_ms(50);
    fixture.executor->submit(std::move(command));
    CHECK(fixture.codeOf("a") == Code::kDeadlineExceeded);
    CHECK(fixture.outputs(0) == Code::kOk);
    return;
  }
  SECTION("a ring that is none") {
    command.set_frame_ring_id(5);
    fixture.descriptors.put(5, UniqueFd(::dup(0)));
    expected = Code::kInvalidArgument;
    consumed = "failed";
  }
  SECTION("the second consumer died") {
    fixture.other_out->on_publish = [](uint64_t) { return absl::UnavailableError("consumer rank 0 died"); };
    fixture.executor->submit(std::move(command));
    CHECK(fixture.codeOf("a") == Code::kUnavailable);
    CHECK(fixture.out->ended(0)->ok());
    CHECK(fixture.other_out->ended(0)->code() == Code::kUnavailable);
    return;
  }
  SECTION("an edge was retired before it came") {
    fixture.channels.consumers.erase(kIn);
    fixture.executor->submit(std::move(command));
    CHECK(fixture.codeOf("a") == Code::kUnavailable);
    CHECK(fixture.outputs(0) == Code::kUnavailable);
    return;
  }
  SECTION("an edge was retired while it waited") {
    fixture.in->on_receive = [&](uint64_t) {
      fixture.channels.consumers.erase(kIn);
      return absl::CancelledError("closed");
    };
    expected = Code::kUnavailable;
  }
  fixture.executor->submit(std::move(command));
  CHECK(fixture.codeOf("a") == expected);
  CHECK(fixture.outputs(0) == expected);
  CHECK(fixture.in->ended(0) == consumed);
}

TEST_CASE("executor: tensors that no edge takes are refused, scalars travel in Done", "[worker]") {
  const bool tensor = GENERATE(true, false);
  Fixture fixture([&](const TensorTree&, RunContext&) -> StatusOr<TensorTree> {
    return tensor ? tensorDict("y", 1) : dictOf("y", TensorTree(std::string("thirty-two \xff")));
  });
  RunStage command = fixture.command("a", 0, "make");
  command.clear_outputs();
  fixture.executor->submit(std::move(command));
  CHECK(fixture.codeOf("a") == (tensor ? Code::kFailedPrecondition : Code::kOk));
  if (!tensor) CHECK(fixture.events.end("a").done().small_result() == "{\"y\":\"thirty-two \xef\xbf\xbd\"}");
}

// ---- bounds and ends ----------------------------------------------------------------------------------------

TEST_CASE("executor: its queue is bounded and a close ends all of it", "[worker]") {
  Fixture fixture(echo);
  fixture.in->barrier = std::make_shared<Barrier>();
  fixture.executor->submit(fixture.command("running", 0));
  REQUIRE(fixture.in->barrier->waitUntilReached());
  for (uint64_t n = 1; n <= StageExecutor::kCommandsMax; ++n) {
    fixture.executor->submit(fixture.command(std::to_string(n), n));
  }
  const uint64_t past = StageExecutor::kCommandsMax + 1;
  fixture.executor->submit(fixture.command("past", past));
  CHECK(fixture.codeOf("past") == Code::kResourceExhausted);
  CHECK(fixture.outputs(past) == Code::kResourceExhausted);
  fixture.executor->close(absl::CancelledError("the worker ends"));
  CHECK(fixture.executor->join(soon()));
  for (uint64_t n = 0; n <= StageExecutor::kCommandsMax; ++n) {
    CHECK(fixture.outputs(n) == Code::kCancelled);
    CHECK(fixture.in->ended(n) == "cancelled");
  }
  fixture.executor->submit(fixture.command("late", past + 1));
  CHECK(fixture.codeOf("late") == Code::kCancelled);
}

TEST_CASE("executor: what a rank met of another is told as such, and ends its use", "[worker]") {
  for (const Code code : {Code::kUnavailable, Code::kDeadlineExceeded, Code::kInternal, Code::kInvalidArgument}) {
    bool left = false;
    Fixture fixture([&left, code](const TensorTree& inputs, RunContext& context) -> StatusOr<TensorTree> {
      if (std::exchange(left, true)) return echo(inputs, context);
      throw mesh::CommunicationError(makeStatus(code, "rank 1 left"));
    });
    fixture.executor->submit(fixture.command("a", 0));
    const internal::v1::StageFailed failed = fixture.events.end("a").failed();
    // An argument that no rank could mean ends nothing.
    CHECK(failed.of_peer() == (code != Code::kInvalidArgument));
    CHECK(failed.recycle() == failed.of_peer());
    CHECK(failed.status().code() == static_cast<int>(code));
    CHECK(failed.status().message() == "rank 1 left");
    CHECK(fixture.outputs(0) == code);
    if (!failed.recycle()) fixture.checkNextJobRuns(1);
  }
}

TEST_CASE("executor: a stage that does not start ends the commands sent ahead", "[worker]") {
  FakeTable channels;
  channels.producers[kOut] = std::make_shared<FakeProducer>();
  RecordingSink events;
  DescriptorInbox descriptors;
  const auto device = *WorkerDevice::open({}, std::chrono::seconds(1));
  Barrier reported;
  StageExecutor executor(
      {&channels, &events, &descriptors, device.get(), 1},
      StepGate::attach(StepGate::createRegion().value(), Rank(0)).value(),
      [](StepGate&, StageExecutor::Started&) { return GuardedResult{absl::NotFoundError("model.safetensors")}; },
      [&](const GuardedResult& result) {
        if (result.status.code() == Code::kNotFound) reported.open();
      });
  CHECK(reported.pass({}).ok());
  RunStage command;
  command.set_job_id("a");
  Fixture::addRef(*command.add_outputs(), kOut, 0);
  executor.submit(std::move(command));
  CHECK(events.end("a").failed().status().code() == static_cast<int>(Code::kNotFound));
  CHECK(channels.producers[kOut]->ended(0)->code() == Code::kNotFound);
}

TEST_CASE("executor: a stage stalls by computing without a step, not by waiting", "[worker]") {
  Barrier computing;
  std::stop_source never;
  Fixture fixture([&](const TensorTree& inputs, RunContext& context) -> StatusOr<TensorTree> {
    LATENTD_RETURN_IF_ERROR(computing.pass(never.get_token()));
    return echo(inputs, context);
  });
  fixture.in->barrier = std::make_shared<Barrier>();
  fixture.out->barrier = std::make_shared<Barrier>();
  RunStage command = fixture.command("a", 0);
  command.set_stall_timeout_ms(1);
  const auto outlast = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  fixture.executor->submit(std::move(command));
  REQUIRE(fixture.in->barrier->waitUntilReached());
  outlast();
  CHECK_FALSE(fixture.executor->stalled());
  fixture.in->barrier->open();
  REQUIRE(computing.waitUntilReached());
  outlast();
  CHECK(fixture.executor->stalled());
  computing.open();
  REQUIRE(fixture.out->barrier->waitUntilReached());
  outlast();
  CHECK_FALSE(fixture.executor->stalled());
  fixture.out->barrier->open();
  CHECK(fixture.codeOf("a") == Code::kOk);
}

// ---- several ranks ------------------------------------------------------------------------------------------

TEST_CASE("executor: two ranks stop at the same step, whoever hears of the cancel first", "[worker][cancel]") {
  const ShmRegion region = StepGate::createRegion().value();
  const auto share = [&] { return ShmRegion::map(duplicateFd(region.fd()).value(), 1).value(); };
  std::atomic<uint32_t> entered[2] = {0, 0};
  const auto stepper = [&](int rank) {
    return [&, rank](const TensorTree& inputs, RunContext& context) -> StatusOr<TensorTree> {
      for (uint32_t step = 0; step < 1'000'000; ++step) {
        LATENTD_RETURN_IF_ERROR(context.beginStep(step, 1'000'000));
        entered[rank] = step + 1;
        context.finishStep(step, 1'000'000);
      }
      return echo(inputs, context);
    };
  };
  Fixture lead(stepper(0), share(), Rank(0), 2);
  Fixture other(stepper(1), share(), Rank(1), 2);
  const bool waiting = GENERATE(true, false);
  if (waiting) other.in->barrier = std::make_shared<Barrier>();
  lead.executor->submit(lead.command("a", 0));
  other.executor->submit(other.command("a", 0));
  const auto progress = [](const auto& event) { return event.has_progress(); };
  lead.events.wait(progress, 3);
  if (waiting) {
    // It gave up its wait, but the lead is under way: it takes part until the lead stops.
    REQUIRE(other.in->barrier->waitUntilReached());
    other.executor->cancel("a");
    other.in->barrier->open();
  } else {
    other.events.wait(progress, 3);
    other.executor->cancel("a");
  }
  other.events.wait(progress, 5);
  lead.executor->cancel("a");
  CHECK(lead.codeOf("a") == Code::kCancelled);
  CHECK(other.codeOf("a") == Code::kCancelled);
  CHECK(entered[0].load() == entered[1].load());
  CHECK(entered[0].load() > 3);
}

TEST_CASE("executor: a queued command of another rank ends once the lead stopped it", "[worker][cancel]") {
  const ShmRegion region = StepGate::createRegion().value();
  const auto share = [&] { return ShmRegion::map(duplicateFd(region.fd()).value(), 1).value(); };
  Fixture lead(echo, share(), Rank(0), 2);
  Fixture other(echo, share(), Rank(1), 2);
  for (Fixture* rank : {&lead, &other}) {
    rank->in->barrier = std::make_shared<Barrier>();
    rank->executor->submit(rank->command("first", 0));
    REQUIRE(rank->in->barrier->waitUntilReached());
    rank->executor->submit(rank->command("a", 1));
  }
  other.executor->cancel("a");
  other.executor->endStopped();
  CHECK_FALSE(other.out->ended(1).has_value());
  lead.executor->cancel("a");
  CHECK(lead.codeOf("a") == Code::kCancelled);
  other.executor->endStopped();
  CHECK(other.codeOf("a") == Code::kCancelled);
  CHECK(other.outputs(1) == Code::kCancelled);
  lead.in->barrier->open();
  other.in->barrier->open();
  CHECK(lead.codeOf("first") == Code::kOk);
  CHECK(other.codeOf("first") == Code::kOk);
}

}  // namespace
}  // namespace latentd::worker
