#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/metrics/registry.h"

// The metrics of each component of the supervisor's process: plain structs, registered in their constructors, one of
// each per registry. What is known of their labels at the start, by then or by expect(), is exposed from the start, as
// 0: a rate needs a first value. Owner: the component. Thread: any.
namespace latentd::metrics {

// Life of jobs in queue and pipeline.
struct JobMetrics {
  explicit JobMetrics(Registry& registry);
  // stages: the groups' names.
  void expect(const std::vector<std::string>& stages);

  Counter& submitted;          // jobs_submitted_total: accepted into the queue
  Counters<1> ended;           // jobs_total{result}: succeeded, failed, cancelled
  Counter& retried;            // jobs_retried_total: put back into the queue, as a worker died under them
  Counter& displaced;          // jobs_displaced_total: the same by the loss of a group that was not running them
  Counters<1> rejected;        // jobs_rejected_total{reason}: queue_full, draining, invalid, not_ready
  Gauge& queue_depth;          // queue_depth
  Gauge& running;              // jobs_running
  Histogram& queue_wait;       // queue_wait_seconds: submission until the first stage computes
  Histograms<1> duration;      // job_seconds{result}: submission to the end
  Histograms<1> stage;         // stage_seconds{stage}: inside the stage's method
  Histograms<1> input_wait;    // stage_input_wait_seconds{stage}: until the inputs were there and copied
  Histograms<1> publish;       // stage_publish_seconds{stage}: staging outputs into slots
  Counters<2> stage_commands;  // stage_commands_total{stage,group}: one a job and stage; group is the replica
  Counters<2> stage_failures;  // stage_failures_total{stage,reason}: reason is the status code's name
  Histogram& denoise_step;     // denoise_step_seconds
  Histograms<1> cancel;        // cancel_seconds{stage}: request until everything of the job was released
};

// The data plane as the supervisor sees it, by edge of the topology: with replicas, all its channels together.
struct EdgeMetrics {
  explicit EdgeMetrics(Registry& registry);
  void expect(const std::vector<std::string>& edges);

  Gauges<2> info;               // edge_info{edge,transport}: its channels of this transport
  Counters<1> bytes;            // edge_bytes_total{edge}
  Counters<2> published;        // edge_published_bytes_total{edge,rank}: by rank of the producers
  Counters<2> read;             // edge_read_bytes_total{edge,rank}: by rank of the consumers
  Counters<1> handoffs;         // handoffs_total{edge}
  Histograms<1> handoff;        // handoff_seconds{edge}: publication to the last acknowledgement
  Histograms<1> slot_wait;      // slot_wait_seconds{edge}: back-pressure met by the producer
  Gauges<1> slots;              // slots{edge}: of one profile
  Gauges<1> slots_in_use;       // slots_in_use{edge}
  Counters<2> slots_discarded;  // slots_discarded_total{edge,reason}
  Counters<1> unpooled;         // unpooled_handoffs_total{edge}: beyond the profile limit
  Counters<1> stale_dropped;    // stale_messages_total{edge}: of a former epoch
  Counters<1> read_ahead;       // reads_ahead_total{edge}: of slots whose record had not come
  Counters<1> reread;           // rereads_total{edge}: of what was read ahead and was something else
};

// Worker processes, by group and rank.
struct WorkerMetrics {
  explicit WorkerMetrics(Registry& registry);
  void expect(const std::string& group, uint32_t ranks);

  Gauges<2> up;  // worker_up{group,rank}: 1 from ready until lost
  // reason: exit, signal, heartbeat, deadline, load, channel (none opens or retires), recycle (asked for, or deaf)
  Counters<2> restarts;         // worker_restarts_total{group,reason}
  Gauges<2> resident_memory;    // worker_resident_memory_bytes{group,rank}
  Gauges<2> device_memory;      // device_memory_bytes{device,kind}: of all workers; kinds as in proto/worker.proto
  Counters<2> mesh_operations;  // mesh_operations_total{group,rank}: between ranks; groups of several ranks only
  Counters<2> mesh_bytes;       // mesh_bytes_total{group,rank}: given to other ranks
  Gauges<2> ulysses_info;       // ulysses_info{group,transport}: 1 for what carries the heads that its ranks scatter
  Gauges<1> model_load;         // model_load_seconds{group}: of the last start, the slowest rank's
  Gauges<1> warm_up;            // warm_up_seconds{group}
  Gauges<1> model_weights;      // model_weight_bytes{group}
};

// The way out: encoders, raw writers, spool.
struct EncoderMetrics {
  explicit EncoderMetrics(Registry& registry);

  Counter& frames;         // frames_total: in finished results
  Histograms<1> encode;    // encode_seconds{format}: last frame to the complete file
  Counters<1> failures;    // encoder_failures_total{reason}: the outputs' own; reason is the status code's name
  Gauge& spool_bytes;      // spool_bytes
  Gauge& spool_bytes_max;  // spool_max_bytes
};

// The public port.
struct ApiMetrics {
  explicit ApiMetrics(Registry& registry);

  Counters<2> requests;     // grpc_requests_total{method,result}: result is the status code's name
  Histograms<1> duration;   // grpc_request_seconds{method}: unary ones; streams last as long as their reader
  Gauge& watchers;          // grpc_watchers
  Gauge& downloads;         // grpc_downloads
  Counter& watch_skipped;   // watch_updates_skipped_total: superseded before a slow reader took them
  Counter& download_bytes;  // download_bytes_total
};

// Registers build_info{version} and the start time once.
void registerBuildInfo(Registry& registry, std::string_view version);

}  // namespace latentd::metrics
