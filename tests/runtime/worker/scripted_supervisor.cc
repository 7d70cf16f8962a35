#include "tests/runtime/worker/scripted_supervisor.h"

#include <stdlib.h>

#include <filesystem>
#include <utility>

extern char** environ;

namespace latentd::worker {
namespace {

constexpr uint64_t kStepGateId = 1'000'000;

// Where the build puts it, seen from this test; a shipped test is told by LATENT_WORKER.
std::string workerBinary() {
  if (const char* told = ::getenv("LATENT_WORKER")) return told;
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (here / "../../../tools/latent-worker").lexically_normal().string();
}

std::vector<std::string> environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  variables.emplace_back("OMP_WAIT_POLICY=PASSIVE");
  return variables;
}

}  // namespace

// ---- one worker ---------------------------------------------------------------------------------------------

void ScriptedWorker::send(const Command& command) {
  MutexLock lock(mutex_);
  while (stream_ == nullptr)
    REQUIRE(changed_.waitUntil(mutex_, soon()));
  internal::v1::WorkerCommands batch;
  *batch.add_commands() = command;
  REQUIRE(stream_->Write(batch));
}

void ScriptedWorker::sendDescriptor(uint64_t id, int fd) {
  const std::string_view bytes(reinterpret_cast<const char*>(&id), sizeof(id));
  const auto sent = lifeline->send(bytes, std::span<const int>(&fd, 1));
  REQUIRE(sent.ok());
  REQUIRE(*sent == UnixSocket::Sent::kYes);
}

ExitStatus ScriptedWorker::exit() {
  const auto status = process.wait(std::chrono::seconds(20));
  REQUIRE(status.ok());
  return *status;
}

void ScriptedWorker::load() {
  if (script.step_gate_fd >= 0) sendDescriptor(kStepGateId, script.step_gate_fd);
  Command command;
  internal::v1::Load& load = *command.mutable_load();
  load.set_group(script.group);
  load.set_rank(script.rank);
  load.set_world_size(script.world_size);
  load.set_stage(script.stage);
  load.set_device(script.device);
  load.set_dtype(v1::DTYPE_FLOAT32);
  load.mutable_stage_options()->insert(script.options.begin(), script.options.end());
  load.set_threads(1);
  load.set_heartbeat_interval_ms(script.heartbeat_ms);
  if (script.step_gate_fd >= 0) load.set_step_gate_id(kStepGateId);
  send(command);
}

void ScriptedWorker::openProducer(const internal::v1::ChannelSpec& spec, const std::string& path) {
  Command command;
  *command.mutable_open_producer()->mutable_channel() = spec;
  command.mutable_open_producer()->set_socket_path(path);
  send(command);
}

void ScriptedWorker::openConsumer(const internal::v1::ChannelSpec& spec, const std::vector<std::string>& paths) {
  Command command;
  *command.mutable_open_consumer()->mutable_channel() = spec;
  for (const std::string& path : paths)
    command.mutable_open_consumer()->add_socket_paths(path);
  send(command);
}

void ScriptedWorker::run(const internal::v1::RunStage& run) {
  Command command;
  *command.mutable_run_stage() = run;
  send(command);
}

void ScriptedWorker::cancel(const std::string& job_id) {
  Command command;
  command.mutable_cancel()->set_job_id(job_id);
  send(command);
}

void ScriptedWorker::retire(uint32_t channel_id) {
  Command command;
  command.mutable_retire_edge()->set_channel_id(channel_id);
  send(command);
}

void ScriptedWorker::shutdown(uint32_t grace_ms) {
  Command command;
  command.mutable_shutdown()->set_grace_ms(grace_ms);
  send(command);
}

// ---- all of them --------------------------------------------------------------------------------------------

ScriptedSupervisor::ScriptedSupervisor() : service_(*this), spawner_(environment()) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + directory_.file("control.sock"), grpc::InsecureServerCredentials());
  builder.RegisterService(&service_);
  server_ = builder.BuildAndStart();
  REQUIRE(server_ != nullptr);
}

ScriptedSupervisor::~ScriptedSupervisor() {
  {
    MutexLock lock(mutex_);
    for (const auto& worker : workers_)
      worker->process = ChildProcess();  // kills and reaps
  }
  stopServer();
}

void ScriptedSupervisor::stopServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

ScriptedWorker* ScriptedSupervisor::find(const internal::v1::Register& registration, uint64_t epoch) {
  MutexLock lock(mutex_);
  for (const auto& worker : workers_) {
    const WorkerScript& script = worker->script;
    if (script.group == registration.group() && script.rank == registration.rank() && script.epoch == epoch) {
      return worker.get();
    }
  }
  return nullptr;
}

grpc::Status ScriptedSupervisor::Service::Connect(grpc::ServerContext*, ScriptedWorker::Stream* stream) {
  internal::v1::WorkerEvents batch;
  if (!stream->Read(&batch) || batch.events().empty() || !batch.events(0).has_register_()) {
    return grpc::Status(grpc::INVALID_ARGUMENT, "Register first");
  }
  ScriptedWorker* worker = owner_.find(batch.events(0).register_(), batch.events(0).epoch());
  if (worker == nullptr) return grpc::Status(grpc::NOT_FOUND, "no such worker in the script");
  const auto attach = [&](ScriptedWorker::Stream* attached) {
    MutexLock lock(worker->mutex_);
    worker->stream_ = attached;
    worker->changed_.notifyAll();
  };
  attach(stream);
  do {
    for (const ScriptedWorker::Event& event : batch.events())
      worker->events.post(event);
  } while (stream->Read(&batch));
  attach(nullptr);
  return grpc::Status::OK;
}

ScriptedWorker& ScriptedSupervisor::start(const WorkerScript& script) {
  auto owned = std::make_unique<ScriptedWorker>();
  ScriptedWorker& worker = *owned;
  worker.script = script;
  auto [ours, theirs] = UnixSocket::pair().value();
  worker.lifeline = std::move(ours);
  ChildSpec spec;
  spec.executable = workerBinary();
  spec.arguments = {"--control",     "unix:" + directory_.file("control.sock"),
                    "--group",       script.group,
                    "--rank",        std::to_string(script.rank),
                    "--epoch",       std::to_string(script.epoch),
                    "--lifeline-fd", "3"};
  spec.inherit = {{theirs.fd(), 3}};
  spec.capture_output = false;
  spec.data_bytes_max = script.data_bytes_max;
  {
    MutexLock lock(mutex_);
    workers_.push_back(std::move(owned));
  }
  auto process = spawner_.spawn(spec);
  INFO(process.status().ToString());
  REQUIRE(process.ok());
  worker.process = std::move(process).value();
  worker.wait([](const auto& event) { return event.has_register_(); });
  return worker;
}

ScriptedWorker& ScriptedSupervisor::startReady(const WorkerScript& script) {
  ScriptedWorker& worker = start(script);
  worker.load();
  worker.wait([](const auto& event) { return event.has_ready(); });
  return worker;
}

internal::v1::ChannelSpec channelBetween(const ScriptedWorker& producer, const ScriptedWorker& consumer,
                                         uint32_t channel_id) {
  internal::v1::ChannelSpec spec;
  spec.set_channel_id(channel_id);
  spec.set_transport("shm");
  spec.set_edge(producer.script.group + "->" + consumer.script.group);
  spec.set_producer_epoch(producer.script.epoch);
  spec.set_consumer_epoch(consumer.script.epoch);
  spec.set_producer_ranks(1);
  spec.set_consumer_ranks(1);
  spec.set_slots(2);
  spec.set_profiles_max(8);
  spec.set_unpooled_bytes_max(uint64_t{256} << 20);
  spec.set_progress_timeout_ms(20000);
  return spec;
}

void ScriptedSupervisor::connect(ScriptedWorker& producer, ScriptedWorker& consumer, uint32_t channel_id) {
  const internal::v1::ChannelSpec spec = channelBetween(producer, consumer, channel_id);
  const std::string path = directory_.file("edge" + std::to_string(channel_id));
  const auto ready = [&](const auto& event) {
    return event.has_edge_ready() && event.edge_ready().channel_id() == channel_id;
  };
  producer.openProducer(spec, path);
  const auto listening = producer.wait(ready);
  INFO(listening.edge_ready().status().message());
  REQUIRE(listening.edge_ready().status().code() == 0);
  consumer.openConsumer(spec, {path});
  const auto bound = consumer.wait(ready);
  INFO(bound.edge_ready().status().message());
  REQUIRE(bound.edge_ready().status().code() == 0);
}

internal::v1::RunStage noopCommand(const std::string& job, const std::string& method, uint32_t in, uint32_t out,
                                   uint64_t sequence, const std::string& prompt) {
  internal::v1::RunStage command;
  command.set_job_id(job);
  command.set_method(method);
  command.set_stall_timeout_ms(60'000);
  command.mutable_parameters()->set_prompt(prompt);
  command.mutable_parameters()->set_seed(sequence);
  command.mutable_parameters()->set_frames(4);
  command.mutable_parameters()->set_width(16);
  command.mutable_parameters()->set_height(8);
  const auto refer = [&](internal::v1::ArtifactRef& ref, uint32_t channel_id) {
    ref.set_channel_id(channel_id);
    ref.set_sequence(sequence);
  };
  if (in != 0) refer(*command.add_inputs(), in);
  if (out != 0) refer(*command.add_outputs(), out);
  return command;
}

}  // namespace latentd::worker
