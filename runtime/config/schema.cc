#include "runtime/config/schema.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

namespace latentd::config {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kTiB = kMiB * kMiB;
constexpr double kSecond = 1000;  // durations are bounded in milliseconds
constexpr double kHour = 3600 * kSecond;
constexpr double kDay = 24 * kHour;
constexpr double kWeek = 7 * kDay;
constexpr double kNameBytesMax = 32;    // in socket names, metric labels and log prefixes
constexpr double kPathBytesMax = 4095;  // PATH_MAX without its NUL

// ---- from a parsed value to a field -------------------------------------------------------------------------
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class Field>
void store(Field& field, const Value& value) {
  if constexpr (IsOptional<Field>::value) {
    store(field.emplace(), value);
  } else if constexpr (std::is_same_v<Field, DType>) {
    field = *parseDType(std::get<std::string>(value));  // the rule's choices are dtype names
  } else if constexpr (std::is_same_v<Field, Communication>) {
    const std::string& word = std::get<std::string>(value);
    field = word == "gloo" ? Communication::kGloo : word == "nccl" ? Communication::kNccl : Communication::kAuto;
  } else if constexpr (std::is_same_v<Field, UlyssesTransport>) {
    const std::string& word = std::get<std::string>(value);
    field = UlyssesTransport::kAuto;
    for (const UlyssesTransport transport : kUlyssesTransports)
      if (toString(transport) == word) field = transport;
  } else if constexpr (std::is_same_v<Field, LogFormat>) {
    field = std::get<std::string>(value) == "json" ? LogFormat::kJson : LogFormat::kText;
  } else if constexpr (std::is_integral_v<Field> && std::is_signed_v<Field>) {
    field = static_cast<Field>(std::get<int64_t>(value));
  } else if constexpr (std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<uint64_t>(value));
  } else {
    field = std::get<Field>(value);
  }
}

using Assign = std::function<void(const Target&, const Value&)>;

// select(target) is the field; the rule's range fits it.
template <class Select>
Assign into(Select select) {
  return [select](const Target& target, const Value& value) { store(select(target), value); };
}

// ---- short forms of rules -----------------------------------------------------------------------------------
Rule text(double bytes_max) { return {Type::kText, {0, bytes_max}, {}}; }
Rule name() { return {Type::kName, {1, kNameBytesMax}, {}}; }
Rule path() { return {Type::kPath, {1, kPathBytesMax}, {}}; }
Rule count(double min, double max) { return {Type::kCount, {min, max}, {}}; }
Rule integer(double min, double max) { return {Type::kInteger, {min, max}, {}}; }
Rule real(double min, double max) { return {Type::kReal, {min, max}, {}}; }
Rule bytes(double min, double max) { return {Type::kBytes, {min, max}, {}}; }
// RLIMIT_DATA below which a worker without a model does not come up: torch's libraries relocate some 550MiB, and each
// of its dozen threads has a stack of 8MiB.
constexpr double kWorkerBytesMin = 768 * kMiB;

Rule duration(double min, double max) { return {Type::kDuration, {min, max}, {}}; }
Rule choice(std::vector<std::string> words) { return {Type::kChoice, {}, std::move(words)}; }
Key section(std::string path, std::string meaning) {
  return {std::move(path), {Type::kSection, {}, {}}, "", "each key inside has its default", std::move(meaning),
          nullptr};
}
Key list(std::string path, double min, double max, std::string absent, std::string meaning) {
  return {std::move(path), {Type::kList, {min, max}, {}}, "", std::move(absent), std::move(meaning), nullptr};
}

using Keys = std::vector<Key>;

// ---- the daemon ---------------------------------------------------------------------------------------------
void addDaemonKeys(Keys& keys) {
  keys.push_back({"listen", {Type::kEndpoint, {}, {}}, "127.0.0.1:7411", "", "Address of the public gRPC API.", into([
                  ](const Target& t) -> auto& { return t.draft.topology.listen; })});
  keys.push_back(
      {"http", {Type::kEndpoint, {}, {}}, "127.0.0.1:7412", "", "Address of /metrics, /healthz and /readyz.", into([
       ](const Target& t) -> auto& { return t.draft.topology.http; })});
  keys.push_back({"model", path(), "", "each group names its own, or its stage needs none",
                  "Model directory of every group that names none: a diffusers directory, as published.",
                  into([](const Target& t) -> auto& { return t.draft.model_dir; })});
  keys.push_back({"runtime_dir", path(), "", "$XDG_RUNTIME_DIR, else /tmp",
                  "Folder in which the daemon makes its private directory of sockets.",
                  into([](const Target& t) -> auto& { return t.draft.topology.runtime_dir; })});
  keys.push_back(section("log", "What the daemon writes to standard error."));
  keys.push_back({"log.level", choice({"trace", "debug", "info", "warn", "error"}), "info", "",
                  "Least severe level that is written.",
                  into([](const Target& t) -> auto& { return t.draft.topology.log.level; })});
  keys.push_back({"log.format", choice({"text", "json"}), "text", "", "Lines for people, or one JSON object a line.",
                  into([](const Target& t) -> auto& { return t.draft.topology.log.format; })});
}

void addSpoolAndQueueKeys(Keys& keys) {
  keys.push_back(section("spool", "Where finished videos wait to be downloaded."));
  keys.push_back({"spool.dir", path(), "", "a folder in the daemon's private directory, gone when it ends",
                  "Folder of the results; made with mode 0700.",
                  into([](const Target& t) -> auto& { return t.draft.topology.spool.dir; })});
  keys.push_back({"spool.bytes_max", bytes(kMiB, 1024 * kTiB), "1GiB", "",
                  "Bytes of all results together; the oldest finished ones go first.",
                  into([](const Target& t) -> auto& { return t.draft.topology.spool.bytes_max; })});
  keys.push_back({"spool.retention", duration(kSecond, 365 * kDay), "1h", "", "How long a finished result is kept.",
                  into([](const Target& t) -> auto& { return t.draft.topology.spool.retention; })});
  keys.push_back(section("queue", "Jobs that wait."));
  keys.push_back({"queue.length_max", count(1, 100'000), "64", "",
                  "Jobs that may wait; further ones are refused with RESOURCE_EXHAUSTED.",
                  into([](const Target& t) -> auto& { return t.draft.topology.queue.length_max; })});
  keys.push_back({"queue.aging", duration(kSecond, kDay), "30s", "",
                  "Time of waiting that raises a job's priority by one.",
                  into([](const Target& t) -> auto& { return t.draft.topology.queue.aging; })});
}

void addDeadlineKeys(Keys& keys) {
  const auto add = [&keys](std::string leaf, double min, double max, std::string by_default, std::string meaning,
                           milliseconds Deadlines::*field) {
    keys.push_back({"deadlines." + leaf, duration(min, max), std::move(by_default), "", std::move(meaning),
                    into([field](const Target& t) -> auto& { return t.draft.topology.deadlines.*field; })});
  };
  keys.push_back(section("deadlines", "How long things may take before they count as failed."));
  add("load", kSecond, kDay, "2m", "Of a worker, from its start until its model is loaded.", &Deadlines::load);
  add("warm_up", kSecond, kDay, "1m", "Of a worker's first run on the smallest input.", &Deadlines::warm_up);
  add("job", kSecond, kWeek, "1h", "Of a job, from submission to its end, where the request names none.",
      &Deadlines::job);
  add("stall", kStallMin.count(), kStallMax.count(), "1m",
      "Longest time without progress in a running stage, where neither the request nor the group names one.",
      &Deadlines::stall);
  add("heartbeat", 10, 60 * kSecond, "1s", "Interval of a worker's signs of life.", &Deadlines::heartbeat);
  add("heartbeat_miss", 100, kHour, "5s",
      "Silence after which a worker counts as hung and its group is restarted; while it starts, six times of it.",
      &Deadlines::heartbeat_miss);
  add("shutdown_grace", 100, kHour, "10s", "For running jobs and workers to end when the daemon is told to stop.",
      &Deadlines::shutdown_grace);
  add("channel_progress", 100, kHour, "30s", "Longest wait of one end of an edge for a peer that makes no progress.",
      &Deadlines::channel_progress);
  add("collective", 100, kHour, "30s",
      "Longest wait of a rank, in one operation between the ranks of its group, for the others.",
      &Deadlines::collective);
  add("encode", kSecond, kDay, "2m", "Of a job's output, from its last frame until its file is complete.",
      &Deadlines::encode);
}

void addRestartKeys(Keys& keys) {
  keys.push_back(section("restart", "What follows when a worker dies."));
  keys.push_back({"restart.backoff_min", duration(10, kHour), "200ms", "",
                  "Wait before the first restart; it doubles with each failure in a row.",
                  into([](const Target& t) -> auto& { return t.draft.topology.restart.backoff_min; })});
  keys.push_back({"restart.backoff_max", duration(10, kHour), "30s", "", "Longest wait before a restart.",
                  into([](const Target& t) -> auto& { return t.draft.topology.restart.backoff_max; })});
  keys.push_back({"restart.stable_after", duration(kSecond, kDay), "1m", "",
                  "A group that was ready for this long starts again from backoff_min.",
                  into([](const Target& t) -> auto& { return t.draft.topology.restart.stable_after; })});
  keys.push_back({"restart.failures_max", count(1, 1'000'000), "10", "",
                  "Failures in a row after which the daemon ends with the first cause.",
                  into([](const Target& t) -> auto& { return t.draft.topology.restart.failures_max; })});
}

void addTraceKeys(Keys& keys) {
  keys.push_back(section("trace", "Where the time of jobs went, for latentctl trace."));
  keys.push_back({"trace.spans_max", count(0, 20'000), "2000", "",
                  "Spans that a rank records of a command; 0 records none.",
                  into([](const Target& t) -> auto& { return t.draft.topology.trace.spans_max; })});
  keys.push_back({"trace.bytes_max", bytes(kMiB, kTiB), "64MiB", "",
                  "Bytes of all jobs' traces together; those of the oldest jobs go first.",
                  into([](const Target& t) -> auto& { return t.draft.topology.trace.bytes_max; })});
}

// ---- groups and edges ---------------------------------------------------------------------------------------
void addGroupKeys(Keys& keys) {
  keys.push_back(list("groups", 1, 64, "", "The worker groups: each runs one stage."));
  keys.push_back({"groups[].name", name(), "", "", "Name in edges, logs and metrics; unique.",
                  into([](const Target& t) -> auto& { return t.group->name; })});
  keys.push_back({"groups[].stage",
                  {Type::kDottedName, {1, 64}, {}},
                  "",
                  "",
                  "Registered name of the stage, such as wan.denoiser.",
                  into([](const Target& t) -> auto& { return t.group->stage; })});
  keys.push_back({"groups[].method", name(), "", "the one that the group's edges name",
                  "Method of the stage that a job runs; needed where a group has no edge.",
                  into([](const Target& t) -> auto& { return t.group->method; })});
  keys.push_back({"groups[].model", path(), "", "the file's model", "Model directory of this group.",
                  into([](const Target& t) -> auto& { return t.group->model_dir; })});
  keys.push_back({"groups[].devices",
                  {Type::kDevices, {1, 64}, {}},
                  "cpu",
                  "",
                  "Device of each rank; with replicas (parallel.dp) those of the first, then those of the next.",
                  into([](const Target& t) -> auto& { return t.group->devices; })});
  keys.push_back({"groups[].threads", count(1, 1024), "", "the machine's cores divided among the workers",
                  "Compute threads of each rank.", into([](const Target& t) -> auto& { return t.group->threads; })});
  keys.push_back({"groups[].dtype", choice({"float32", "bfloat16", "float16"}), "float32", "",
                  "Element type of weights and activations.",
                  into([](const Target& t) -> auto& { return t.group->dtype; })});
  keys.push_back(
      {"groups[].communication", choice({"auto", "gloo", "nccl"}), "auto", "",
       "What carries the tensors that the ranks of the group exchange; auto takes nccl where each rank has a "
       "GPU of its own, else gloo.",
       into([](const Target& t) -> auto& { return t.group->communication; })});
  keys.push_back(
      {"groups[].ulysses_transport", choice({"auto", "c10d", "shm", "cuda_ipc"}), "auto", "",
       "What carries the heads that ranks of parallel.ulysses scatter: c10d is the group's communication, shm "
       "and cuda_ipc are direct writes into each other's memory; auto takes shm for ranks on the CPU, cuda_ipc on "
       "GPUs.",
       into([](const Target& t) -> auto& { return t.group->ulysses_transport; })});
  keys.push_back({"groups[].memory_max", bytes(kWorkerBytesMin, 64 * kTiB), "", "unlimited",
                  "Private memory that a rank may map, some 720MiB for libraries and stacks included; a job that needs "
                  "more fails with RESOURCE_EXHAUSTED. Freed memory then goes back at once, which costs a stage on the "
                  "CPU some speed.",
                  into([](const Target& t) -> auto& { return t.group->memory_bytes_max; })});
  keys.push_back({"groups[].stall", duration(kStallMin.count(), kStallMax.count()), "", "deadlines.stall",
                  "Longest time without progress in this group's stage, where the request names none.",
                  into([](const Target& t) -> auto& { return t.group->stall; })});
  keys.push_back({"groups[].options",
                  {Type::kOptions, {0, 64}, {}},
                  "",
                  "none",
                  "Names and values handed to the stage; `latent-worker --describe` documents them.",
                  into([](const Target& t) -> auto& { return t.group->options; })});
}

void addParallelKeys(Keys& keys) {
  const auto add = [&keys](std::string leaf, std::string meaning, uint32_t MeshDegrees::*field) {
    keys.push_back({"groups[].parallel." + leaf, count(1, 64), "1", "", std::move(meaning),
                    into([field](const Target& t) -> auto& { return t.group->parallel.*field; })});
  };
  keys.push_back(
      section("groups[].parallel", "Degrees of the group's device mesh; their product is its number of ranks."));
  add("dp", "Replicas: equal groups NAME.0, NAME.1, ..., of which a job uses the one with the least to do.",
      &MeshDegrees::dp);
  add("cfg", "Passes of classifier-free guidance side by side.", &MeshDegrees::cfg);
  add("ring", "Sequence parallelism by ring attention.", &MeshDegrees::ring);
  add("ulysses", "Sequence parallelism by head scatter.", &MeshDegrees::ulysses);
  add("spatial", "Height shards of a VAE.", &MeshDegrees::spatial);
  add("pp", "Pipeline parallelism over layers.", &MeshDegrees::pp);
  add("tp", "Tensor parallelism inside layers.", &MeshDegrees::tp);
}

void addEdgeKeys(Keys& keys) {
  keys.push_back(list("edges", 0, 256, "none: a single group", "Which group's outputs feed which other group."));
  keys.push_back({"edges[].from", {Type::kMethod, {}, {}}, "", "", "Producing group and its method.", into([
                  ](const Target& t) -> auto& { return t.edge->from; })});
  keys.push_back({"edges[].to", {Type::kMethod, {}, {}}, "", "", "Consuming group and its method.", into([
                  ](const Target& t) -> auto& { return t.edge->to; })});
  keys.push_back({"edges[].slots", count(1, 16), "2", "",
                  "Buffers of each profile: artifacts that may be under way at once.",
                  into([](const Target& t) -> auto& { return t.edge->spec.slots; })});
  keys.push_back({"edges[].profiles_max", count(1, 64), "8", "",
                  "Profiles (leaf, shape, dtype, device) that get a pool; further ones are sent unpooled.",
                  into([](const Target& t) -> auto& { return t.edge->spec.profiles_max; })});
  keys.push_back({"edges[].unpooled_bytes_max", bytes(0, kTiB), "256MiB", "",
                  "Bytes of unpooled tensors that may wait for their acknowledgement.",
                  into([](const Target& t) -> auto& { return t.edge->spec.unpooled_bytes_max; })});
  keys.push_back({"edges[].producer_shard_dim", integer(0, 7), "", "not sharded: rank 0 publishes",
                  "Dimension over which the producing ranks hold slices, as their stage must.",
                  into([](const Target& t) -> auto& { return t.edge->spec.producer_shard_dim; })});
  keys.push_back({"edges[].consumer_shard_dim", integer(0, 7), "", "not sharded: every rank reads all",
                  "Dimension over which the consuming ranks read slices, which their stage must take.",
                  into([](const Target& t) -> auto& { return t.edge->spec.consumer_shard_dim; })});
}

// ---- jobs ---------------------------------------------------------------------------------------------------
void addDefaultKeys(Keys& keys) {
  const std::string by_model = "the model's own";
  keys.push_back(section("defaults", "Parameters of a job where its request gives none."));
  keys.push_back({"defaults.frames", count(1, 100'000), "", by_model, "Frames.",
                  into([](const Target& t) -> auto& { return t.draft.topology.defaults.frames; })});
  keys.push_back({"defaults.size",
                  {Type::kFrameSize, {1, 16'384}, {}},
                  "",
                  by_model,
                  "Width and height.",
                  [](const Target& t, const Value& value) {
                    t.draft.topology.defaults.width = std::get<FrameSize>(value).width;
                    t.draft.topology.defaults.height = std::get<FrameSize>(value).height;
                  }});
  keys.push_back({"defaults.steps", count(1, 10'000), "", by_model, "Denoising steps.",
                  into([](const Target& t) -> auto& { return t.draft.topology.defaults.steps; })});
  keys.push_back({"defaults.guidance", real(0, 1000), "", by_model, "Guidance scale; 1 or less switches it off.",
                  into([](const Target& t) -> auto& { return t.draft.topology.defaults.guidance; })});
  keys.push_back({"defaults.fps", real(0.01, 1000), "", by_model, "Frames per second.",
                  into([](const Target& t) -> auto& { return t.draft.topology.defaults.fps; })});
  keys.push_back({"defaults.flow_shift", real(kFlowShiftMin, kFlowShiftMax), "", by_model,
                  "Shift of the flow-matching schedule.",
                  into([](const Target& t) -> auto& { return t.draft.topology.defaults.flow_shift; })});
  keys.push_back({"defaults.negative_prompt", text(65'536), "", by_model, "What the video is steered away from.",
                  into([](const Target& t) -> auto& { return t.draft.topology.defaults.negative_prompt; })});
}

void addLimitKeys(Keys& keys) {
  const auto add = [&keys](std::string leaf, Rule rule, std::string by_default, std::string meaning, auto field) {
    keys.push_back({"limits." + leaf, std::move(rule), std::move(by_default), "", std::move(meaning),
                    into([field](const Target& t) -> auto& { return t.draft.topology.limits.*field; })});
  };
  keys.push_back(section("limits", "What a request may ask for, and what is kept; the model may allow less."));
  add("frames_max", count(1, 100'000), "1025", "Frames of a job.", &Limits::frames_max);
  add("pixels_max", count(1, 16'384.0 * 16'384), "2088960", "Width times height of a job.", &Limits::pixels_max);
  add("steps_max", count(1, 10'000), "1000", "Denoising steps of a job.", &Limits::steps_max);
  add("guidance_max", real(0, 1000), "100", "Guidance scale of a job.", &Limits::guidance_max);
  add("fps_max", real(0.01, 1000), "240", "Frames per second of a job.", &Limits::fps_max);
  add("prompt_bytes_max", count(1, 1 << 20), "16384", "UTF-8 bytes of a prompt.", &Limits::prompt_bytes_max);
  add("jobs_kept", count(1, 1'000'000), "1000", "Finished jobs that stay listed; the oldest go first.",
      &Limits::jobs_kept);
  add("job_retention", duration(kSecond, 365 * kDay), "1d", "How long a finished job stays listed.",
      &Limits::job_retention);
  add("in_flight_per_group", count(1, 16), "2", "Commands that a worker holds, the running one included.",
      &Limits::in_flight_per_group);
}

bool isChild(std::string_view path, std::string_view section) {
  if (section.empty()) return path.find('.') == std::string_view::npos;
  return path.size() > section.size() + 1 && path.starts_with(section) && path[section.size()] == '.' &&
         path.find('.', section.size() + 1) == std::string_view::npos;
}

}  // namespace

KeyTable::KeyTable() {
  addDaemonKeys(keys);
  addGroupKeys(keys);
  addParallelKeys(keys);
  addEdgeKeys(keys);
  addDefaultKeys(keys);
  addLimitKeys(keys);
  addSpoolAndQueueKeys(keys);
  addDeadlineKeys(keys);
  addRestartKeys(keys);
  addTraceKeys(keys);
}

const Key* KeyTable::find(std::string_view path) const {
  const auto key = std::find_if(keys.begin(), keys.end(), [&](const Key& candidate) { return candidate.path == path; });
  return key == keys.end() ? nullptr : &*key;
}

std::vector<const Key*> KeyTable::children(std::string_view section) const {
  std::vector<const Key*> found;
  for (const Key& key : keys) {
    if (isChild(key.path, section)) found.push_back(&key);
  }
  return found;
}

}  // namespace latentd::config
