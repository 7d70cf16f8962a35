#include "runtime/metrics/component_metrics.h"

namespace latentd::metrics {
namespace {

// Powers of four from the shortest to the longest that is still of interest: 8 to 10 buckets tell a regression and keep
// a scrape small. Hand-offs of 64 KiB take some 20 us; a denoise step milliseconds to seconds; a job seconds to an
// hour.
Buckets handoffBuckets() { return {4e-6, 16e-6, 64e-6, 256e-6, 1e-3, 4e-3, 16e-3, 64e-3, 0.25, 1, 4}; }
Buckets stepBuckets() { return {1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30}; }
Buckets stageBuckets() { return {1e-3, 4e-3, 16e-3, 64e-3, 0.25, 1, 4, 16, 60, 300, 1200}; }
Buckets jobBuckets() { return {0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800, 3600}; }
// Canonical codes but OK, as labels.
constexpr const char* kFailureCodes[] = {
    "CANCELLED",          "UNKNOWN",        "INVALID_ARGUMENT",    "DEADLINE_EXCEEDED",
    "NOT_FOUND",          "ALREADY_EXISTS", "PERMISSION_DENIED",   "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED", "ABORTED",        "FAILED_PRECONDITION", "OUT_OF_RANGE",
    "UNIMPLEMENTED",      "INTERNAL",       "UNAVAILABLE",         "DATA_LOSS"};

Buckets requestBuckets() { return {1e-4, 4e-4, 1.6e-3, 6.4e-3, 25e-3, 0.1, 0.4, 1.6}; }

}  // namespace

JobMetrics::JobMetrics(Registry& registry)
    : submitted(registry.counter("latentd_jobs_submitted_total", "Jobs accepted into the queue.")),
      ended(registry.counters("latentd_jobs_total", "Jobs that ended, by result.", "result")),
      retried(registry.counter("latentd_jobs_retried_total",
                               "Jobs put back into the queue because a worker died under them.")),
      displaced(registry.counter("latentd_jobs_displaced_total",
                                 "Jobs put back into the queue by the loss of a group that was not running them.")),
      rejected(registry.counters("latentd_jobs_rejected_total", "Submissions refused, by reason.", "reason")),
      queue_depth(registry.gauge("latentd_queue_depth", "Jobs in the queue.")),
      running(registry.gauge("latentd_jobs_running", "Jobs that left the queue and have not ended.")),
      queue_wait(registry.histogram("latentd_queue_wait_seconds",
                                    "Submission until the first stage computes, once a job: of its first run.",
                                    jobBuckets())),
      duration(registry.histograms("latentd_job_seconds", "Submission to the end, by result.", jobBuckets(), "result")),
      stage(registry.histograms("latentd_stage_seconds",
                                "Time inside a stage's method, without its waits for inputs and slots.", stageBuckets(),
                                "stage")),
      input_wait(registry.histograms("latentd_stage_input_wait_seconds",
                                     "Time until a stage's inputs were there and copied.", stageBuckets(), "stage")),
      publish(registry.histograms("latentd_stage_publish_seconds",
                                  "Time to stage a stage's outputs into slots, waits for free ones included.",
                                  handoffBuckets(), "stage")),
      stage_commands(registry.counters("latentd_stage_commands_total",
                                       "Commands sent to a group, one a job and stage; group names the replica.",
                                       "stage", "group")),
      stage_failures(registry.counters("latentd_stage_failures_total", "Stage runs that failed, by status code.",
                                       "stage", "reason")),
      denoise_step(
          registry.histogram("latentd_denoise_step_seconds", "Duration of one completed denoise step.", stepBuckets())),
      cancel(registry.histograms("latentd_cancel_seconds",
                                 "Cancel request until no worker held anything of the job, by the stage it met.",
                                 stageBuckets(), "stage")) {
  for (const char* result : {"succeeded", "failed", "cancelled"}) {
    ended.with(result);
    duration.with(result);
  }
  for (const char* reason : {"queue_full", "draining", "invalid", "not_ready"})
    rejected.with(reason);
}

void JobMetrics::expect(const std::vector<std::string>& stages) {
  for (const std::string& name : stages) {
    for (Histograms<1>* family : {&stage, &input_wait, &publish, &cancel})
      family->with(name);
    for (const char* code : kFailureCodes)
      stage_failures.with(name, code);
  }
}

EdgeMetrics::EdgeMetrics(Registry& registry)
    : info(registry.gauges("latentd_edge_info",
                           "Channels of the edge by what carries their tensors: 1, or one for each pair of replicas.",
                           "edge", "transport")),
      bytes(registry.counters("latentd_edge_bytes_total", "Tensor bytes handed off.", "edge")),
      published(registry.counters("latentd_edge_published_bytes_total",
                                  "Tensor bytes handed off, by the rank of the producer that published them.", "edge",
                                  "rank")),
      read(registry.counters("latentd_edge_read_bytes_total",
                             "Tensor bytes that a rank of the consumer has read: its part, or all.", "edge", "rank")),
      handoffs(registry.counters("latentd_handoffs_total",
                                 "Artifacts acknowledged by every consumer rank; parts, where each rank publishes its "
                                 "own.",
                                 "edge")),
      handoff(registry.histograms("latentd_handoff_seconds",
                                  "Publication to the last acknowledgement, with the wait for a consumer that is busy.",
                                  handoffBuckets(), "edge")),
      slot_wait(registry.histograms("latentd_slot_wait_seconds", "Time a producer waited for a free slot.",
                                    handoffBuckets(), "edge")),
      slots(registry.gauges("latentd_slots", "Slots of one profile, of all channels of the edge.", "edge")),
      slots_in_use(registry.gauges("latentd_slots_in_use", "Slots published and not yet acknowledged.", "edge")),
      slots_discarded(registry.counters("latentd_slots_discarded_total",
                                        "Artifacts acknowledged without being copied, by reason.", "edge", "reason")),
      unpooled(registry.counters("latentd_unpooled_handoffs_total",
                                 "Hand-offs that took a one-shot buffer beyond the profile limit.", "edge")),
      stale_dropped(
          registry.counters("latentd_stale_messages_total", "Messages of a former epoch that were dropped.", "edge")),
      read_ahead(registry.counters(
          "latentd_reads_ahead_total",
          "Times that a GPU of the consumer read slots before the record that names them came.", "edge")),
      reread(registry.counters("latentd_rereads_total",
                               "Artifacts that were read ahead, were something else, and so were read again.",
                               "edge")) {}

void EdgeMetrics::expect(const std::vector<std::string>& edges) {
  for (const std::string& name : edges) {
    for (Counters<1>* family : {&bytes, &handoffs, &unpooled, &stale_dropped, &read_ahead, &reread})
      family->with(name);
    for (Histograms<1>* family : {&handoff, &slot_wait})
      family->with(name);
    for (const char* reason : {"cancelled", "failed"})
      slots_discarded.with(name, reason);
  }
}

WorkerMetrics::WorkerMetrics(Registry& registry)
    : up(registry.gauges("latentd_worker_up", "1 while the worker is ready.", "group", "rank")),
      restarts(registry.counters("latentd_worker_restarts_total", "Group respawns, by what ended the last one.",
                                 "group", "reason")),
      resident_memory(
          registry.gauges("latentd_worker_resident_memory_bytes", "Resident memory of a worker.", "group", "rank")),
      device_memory(
          registry.gauges("latentd_device_memory_bytes",
                          "Memory that all workers together hold of a device. Kinds on the CPU: resident (pages in "
                          "memory) and, of these, pools (slots of edges); on a GPU: allocated (tensors), reserved (by "
                          "the allocator, tensors included) and pools, beside it.",
                          "device", "kind")),
      mesh_operations(registry.counters("latentd_mesh_operations_total",
                                        "Operations between the ranks of a group that a rank has begun.", "group",
                                        "rank")),
      mesh_bytes(registry.counters("latentd_mesh_bytes_total", "Bytes that a rank has given to others of its group.",
                                   "group", "rank")),
      ulysses_info(registry.gauges("latentd_ulysses_info",
                                   "Groups with ulysses by what carries the heads that their ranks scatter: 1 for the "
                                   "transport that they took at their last start.",
                                   "group", "transport")),
      model_load(registry.gauges("latentd_model_load_seconds", "Last load of a group's model, slowest rank.", "group")),
      warm_up(registry.gauges("latentd_warm_up_seconds", "Last warm-up of a group, slowest rank.", "group")),
      model_weights(registry.gauges("latentd_model_weight_bytes", "Weights held by a group, all ranks.", "group")) {}

void WorkerMetrics::expect(const std::string& group, uint32_t ranks) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::string label = std::to_string(rank);
    up.with(group, label);
    if (ranks == 1) continue;
    mesh_operations.with(group, label);
    mesh_bytes.with(group, label);
  }
  for (const char* reason : {"exit", "signal", "heartbeat", "deadline", "load", "channel", "recycle"})
    restarts.with(group, reason);
}

EncoderMetrics::EncoderMetrics(Registry& registry)
    : frames(registry.counter("latentd_frames_total", "Frames in finished results.")),
      encode(
          registry.histograms("latentd_encode_seconds", "Last frame to the complete file.", stageBuckets(), "format")),
      failures(registry.counters(
          "latentd_encoder_failures_total",
          "Outputs that failed by themselves, by status code: not for lack of frames or with their job.", "reason")),
      spool_bytes(registry.gauge("latentd_spool_bytes", "Size of the kept results.")),
      spool_bytes_max(registry.gauge("latentd_spool_max_bytes", "Configured bound of the kept results.")) {
  for (const char* format : {"mp4", "gif", "y4m", "png", "npy", "rgb24"})
    encode.with(format);
  for (const char* code : kFailureCodes)
    failures.with(code);
}

ApiMetrics::ApiMetrics(Registry& registry)
    : requests(registry.counters("latentd_grpc_requests_total", "Finished calls of the public API, by status code.",
                                 "method", "result")),
      duration(
          registry.histograms("latentd_grpc_request_seconds", "Duration of unary calls.", requestBuckets(), "method")),
      watchers(registry.gauge("latentd_grpc_watchers", "Open Watch streams.")),
      downloads(registry.gauge("latentd_grpc_downloads", "Open Download and GetTrace streams.")),
      watch_skipped(registry.counter("latentd_watch_updates_skipped_total",
                                     "Progress updates superseded before a slow reader took them.")),
      download_bytes(registry.counter("latentd_download_bytes_total", "Result bytes sent to clients.")) {
  for (const char* method : {"Submit", "Get", "List", "Cancel", "Delete", "GetTopology", "GetEdges", "GetFlightRecords",
                             "Drain", "GetVersion"}) {
    requests.with(method, "OK");
    duration.with(method);
  }
  for (const char* stream : {"Watch", "Download", "GetTrace"})
    requests.with(stream, "OK");
}

void registerBuildInfo(Registry& registry, std::string_view version) {
  registry.gauges("latentd_build_info", "1, labelled with the version.", "version").with(version).Set(1);
  registry.gauge("latentd_start_time_seconds", "Start of the daemon, seconds since 1970.").SetToCurrentTime();
}

}  // namespace latentd::metrics
