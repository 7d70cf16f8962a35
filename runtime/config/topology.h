#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/mesh_degrees.h"
#include "runtime/base/token_cut.h"
#include "runtime/config/locations.h"

// What one topology file says, checked and complete: every default is filled in, every path is absolute, and the
// cross references hold. Made by loadTopology() (runtime/config/loader.h) and not changed afterwards. Meaning, unit and
// range of each value stand in the key table (runtime/config/schema.cc; `latentd --print-schema`).
namespace latentd::config {

using std::chrono::milliseconds;

// Socket addresses hold 107 bytes; what exceeds this is refused when the file is read, not when a worker starts.
inline constexpr size_t kSocketPathBytesMax = 100;
// Of these, for what follows runtime_dir: "/latentd-XXXXXX/" (16) and the name of a socket (32).
inline constexpr size_t kSocketPathReserveBytes = 48;

// What a topology and a request may ask for alike.
inline constexpr milliseconds kStallMin{100};
inline constexpr milliseconds kStallMax = std::chrono::hours(24);
inline constexpr double kFlowShiftMin = 0.01;
inline constexpr double kFlowShiftMax = 100;

// A TCP address to listen on; port 0 means any free one.
struct Endpoint {
  std::string host;  // an IPv4 or IPv6 address (without brackets), or "localhost"
  uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
std::string toString(const Endpoint& endpoint);  // "127.0.0.1:7411", "[::1]:7411"

struct Device {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  uint32_t index = 0;  // of a CUDA device; 0 for the CPU

  friend bool operator==(const Device&, const Device&) = default;
};
std::string toString(const Device& device);  // "cpu", "cuda:0"

// What carries the collectives between a group's ranks. The names are those of c10d's backends.
enum class Communication {
  kAuto,  // only while the file is read
  kGloo,  // over the loopback device; tensors of GPUs are staged in pinned host memory
  kNccl,  // from GPU to GPU
};
std::string_view toString(Communication communication);  // "auto", "gloo", "nccl"

// What carries the heads that ulysses ranks scatter.
enum class UlyssesTransport {
  kAuto,     // only while the file is read
  kC10d,     // the group's communication
  kShm,      // direct writes into each other's memory: ranks on the CPU
  kCudaIpc,  // the same: ranks on GPUs
};
inline constexpr std::array kUlyssesTransports{UlyssesTransport::kC10d, UlyssesTransport::kShm,
                                               UlyssesTransport::kCudaIpc};
std::string_view toString(UlyssesTransport transport);  // "auto", "c10d", "shm", "cuda_ipc"

// The workers that run one stage together.
struct GroupSpec {
  std::string name;             // that of its stage, for a replica with its number: "denoise", "denoise.1"
  size_t place = 0;             // of its stage, in Topology::stages
  std::string stage;            // registered stage name, "wan.denoiser"
  std::string method;           // the one a job runs; what the edges name
  std::string model_dir;        // absolute; empty for a stage without a checkpoint
  std::vector<Device> devices;  // by rank
  MeshDegrees parallel;         // their product is the number of ranks; dp is 1, as replicas are groups of their own
  Communication communication = Communication::kAuto;
  std::string communication_reason;
  UlyssesTransport ulysses_transport = UlyssesTransport::kAuto;  // of no matter without ulysses
  std::string ulysses_transport_reason;
  uint32_t threads = 0;  // of each rank; 0 only while the file is read
  DType dtype = DType::kFloat32;
  std::map<std::string, std::string> options;  // handed to the stage as they are
  std::optional<uint64_t> memory_bytes_max;    // of each rank; absent: unlimited
  std::optional<milliseconds> stall;           // absent: that of the deadlines

  uint32_t ranks() const { return static_cast<uint32_t>(devices.size()); }
};

// How tensors of an edge travel. The names are those of the channel backends.
enum class Transport {
  kShm,      // sealed memfd pools: both sides on the CPU of one host
  kCudaIpc,  // pools in device memory: both sides on GPUs of one host
  kPinned,   // sealed memfd pools, pinned by the side that is on a GPU
};
std::string_view toString(Transport transport);  // "shm", "cuda_ipc", "pinned"

// A part of the pipeline, which a job passes once: the group of the file's entry, or its replicas. These are groups
// that differ in their devices alone; a job uses one of them.
struct StageSpec {
  std::string name;            // the group's in the file
  size_t entry = 0;            // in the file's list of groups
  std::vector<size_t> groups;  // indexes in Topology::groups, one after the other
};

// An edge as the file has it. Each pair of its stages' groups has an EdgeSpec, with a channel of its own.
struct LinkSpec {
  std::string name;       // "text.encode->denoise.denoise"
  size_t from = 0;        // index in Topology::stages
  size_t to = 0;          // index in Topology::stages
  size_t first_edge = 0;  // index in Topology::edges; by group of `from`, then of `to`
};

// How the ranks of either side of an edge hold videos in token layout. The stages say it: known once they were asked.
struct TokenCuts {
  TokenCut producer = TokenCut::kNone;  // none: rank 0 publishes
  TokenCut consumer = TokenCut::kNone;  // none: every rank reads all

  friend bool operator==(const TokenCuts&, const TokenCuts&) = default;
};

// Outputs of one group's method feed another group's method.
struct EdgeSpec {
  std::string name;  // "text.encode->denoise.denoise", "text.encode->denoise.1.denoise"
  size_t link = 0;   // index in Topology::links
  size_t from = 0;   // index in Topology::groups
  size_t to = 0;     // index in Topology::groups
  uint32_t slots = 2;
  uint32_t profiles_max = 8;
  uint64_t unpooled_bytes_max = 0;
  std::optional<int32_t> producer_shard_dim;  // absent: replicated, rank 0 publishes
  std::optional<int32_t> consumer_shard_dim;  // absent: every rank reads all
  TokenCuts tokens;                           // there are no shard_dims where videos cross in token layout
  Transport transport = Transport::kShm;
  std::string transport_reason;

  // Each rank of the producer its part, not rank 0 all of it.
  bool publishesParts() const { return producer_shard_dim || tokens.producer != TokenCut::kNone; }
};

struct SpoolSpec {
  std::string dir;  // absolute; empty: a "spool" folder in the daemon's runtime directory, gone with it
  uint64_t bytes_max = 0;
  milliseconds retention{};
};

struct QueueSpec {
  uint32_t length_max = 0;
  milliseconds aging{};  // waiting this long raises a job's priority by one
};

struct Deadlines {
  milliseconds load{};
  milliseconds warm_up{};
  milliseconds job{};
  milliseconds stall{};
  milliseconds heartbeat{};       // interval
  milliseconds heartbeat_miss{};  // silence after which a worker counts as hung
  milliseconds shutdown_grace{};
  milliseconds channel_progress{};
  milliseconds collective{};
  milliseconds encode{};  // from a job's last frame to its finished file
};

// By the names of their keys.
std::vector<std::pair<std::string, milliseconds>> named(const Deadlines& deadlines);

struct RestartSpec {
  milliseconds backoff_min{};
  milliseconds backoff_max{};
  milliseconds stable_after{};  // a group that lived this long starts again from backoff_min
  uint32_t failures_max = 0;    // failed starts in a row after which the daemon gives up
};

// What is kept of where the time of jobs went.
struct TraceSpec {
  uint32_t spans_max = 0;  // of a command on a rank; 0: none
  uint64_t bytes_max = 0;  // of all jobs
};

enum class LogFormat { kText, kJson };

struct LogSpec {
  std::string level;  // trace, debug, info, warn, error
  LogFormat format = LogFormat::kText;
};

// Job parameters where a request gives none; absent: the model's own default.
struct JobDefaults {
  std::optional<uint32_t> frames;
  std::optional<uint32_t> width;
  std::optional<uint32_t> height;
  std::optional<uint32_t> steps;
  std::optional<double> guidance;
  std::optional<double> fps;
  std::optional<double> flow_shift;
  std::optional<std::string> negative_prompt;
};

struct Limits {
  uint32_t frames_max = 0;
  uint64_t pixels_max = 0;  // width * height
  uint32_t steps_max = 0;
  double guidance_max = 0;
  double fps_max = 0;
  uint32_t prompt_bytes_max = 0;
  uint32_t jobs_kept = 0;            // finished jobs that stay listed
  milliseconds job_retention{};      // how long they stay listed
  uint32_t in_flight_per_group = 0;  // commands a worker may hold queued, the running one included
};

// Thread: immutable, read from any.
struct Topology {
  std::string file;     // as given on the command line; part of error messages
  Locations locations;  // of its keys, for what only workers find wrong
  Endpoint listen;
  Endpoint http;
  std::string runtime_dir;  // absolute; the private directory is made inside
  SpoolSpec spool;
  QueueSpec queue;
  Deadlines deadlines;
  RestartSpec restart;
  LogSpec log;
  TraceSpec trace;
  std::vector<GroupSpec> groups;  // as in the file, replicas one after the other
  std::vector<EdgeSpec> edges;    // by link
  std::vector<StageSpec> stages;  // in the order in which a job passes them; the last one emits the frames
  std::vector<LinkSpec> links;    // as in the file
  JobDefaults defaults;
  Limits limits;

  const StageSpec& stageOf(size_t group) const { return stages[groups[group].place]; }
  bool emitsFrames(size_t group) const { return groups[group].place + 1 == stages.size(); }
  // The edge of this link between two groups of its stages.
  size_t edgeBetween(size_t link, size_t from, size_t to) const;
  // By place in the pipeline.
  std::vector<std::string> stageNames() const;
  // How long a stage of this group may make no progress, where a job does not say.
  milliseconds stallOf(size_t group) const { return groups[group].stall.value_or(deadlines.stall); }
};

}  // namespace latentd::config
