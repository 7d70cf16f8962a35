#include "runtime/config/loader.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/runtime/config/topology_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace latentd::config {
namespace {

// Inserts lines before the line number (1-based) of a text.
std::string insertedAt(const std::string& text, int line, const std::string& lines) {
  size_t at = 0;
  for (int i = 1; i < line; ++i)
    at = text.find('\n', at) + 1;
  return text.substr(0, at) + lines + text.substr(at);
}

// At the end of the file, where a section may stand.
std::string appended(const std::string& lines) { return kThreeGroups + lines; }

// Into the mapping of group `denoise` (line 6 is its stage).
std::string inGroup(const std::string& lines) { return insertedAt(kThreeGroups, 6, lines); }

// Into the mapping of the first edge (line 11 is its `to`).
std::string inEdge(const std::string& lines) { return insertedAt(kThreeGroups, 11, lines); }

struct Refusal {
  const char* what;
  std::string yaml;
  std::string message;
};

void check(const std::vector<Refusal>& cases) {
  for (const Refusal& refused : cases) {
    INFO(refused.what);
    CHECK(refusal(refused.yaml) == refused.message);
  }
}

}  // namespace

TEST_CASE("config: a small file gets every default", "[config]") {
  const StatusOr<Topology> topology = parse(kThreeGroups);
  REQUIRE(topology.ok());
  CHECK(toString(topology->listen) == "127.0.0.1:0");
  CHECK(toString(topology->http) == "127.0.0.1:7412");
  CHECK(topology->runtime_dir == "/tmp");
  CHECK(topology->spool.dir.empty());
  CHECK(topology->spool.bytes_max == uint64_t{1} << 30);
  CHECK(topology->deadlines.load == std::chrono::minutes(2));
  CHECK(topology->queue.length_max == 64);
  REQUIRE(topology->groups.size() == 3);
  CHECK(topology->groups[1].method == "denoise");
  CHECK(topology->groups[1].devices == std::vector<Device>{Device{}});
  CHECK(topology->groups[1].threads == 2);  // 8 cores, 3 workers
  CHECK(topology->groups[1].dtype == DType::kFloat32);
  CHECK_FALSE(topology->groups[1].memory_bytes_max.has_value());
  REQUIRE(topology->edges.size() == 2);
  CHECK(topology->edges[0].name == "text.encode->denoise.denoise");
  CHECK(topology->edges[0].slots == 2);
  CHECK(topology->edges[0].transport == Transport::kShm);
  REQUIRE(topology->stages.size() == 3);
  CHECK(topology->stages[1].name == "denoise");
  CHECK(topology->stages[1].groups == std::vector<size_t>{1});
  CHECK(topology->emitsFrames(2));
  CHECK_FALSE(topology->defaults.frames.has_value());
}

TEST_CASE("config: every value lands in its field", "[config]") {
  const std::string yaml = R"(listen: "[::1]:5000"
http: 0.0.0.0:5001
runtime_dir: /run
log: {level: debug, format: json}
spool: {dir: /var/results, bytes_max: 3MiB, retention: 90s}
queue: {length_max: 7, aging: 5s}
deadlines: {load: 3s, warm_up: 4s, job: 5s, stall: 6s, heartbeat: 100ms, heartbeat_miss: 700ms, shutdown_grace: 8s,
            channel_progress: 9s, collective: 11s, encode: 10s}
restart: {backoff_min: 20ms, backoff_max: 2s, stable_after: 3s, failures_max: 4}
trace: {spans_max: 0, bytes_max: 1MiB}
groups:
  - {name: a, stage: x.y, devices: [cpu, cpu], parallel: {cfg: 2}, communication: gloo, threads: 3, dtype: bfloat16,
     memory_max: 2GiB, stall: 90s, options: {depth: 3, "name": "v w"}}
  - {name: b, stage: z, method: go}
edges:
  - {from: a.run, to: b.go, slots: 3, profiles_max: 4, unpooled_bytes_max: 5KiB, producer_shard_dim: 1,
     consumer_shard_dim: 0}
defaults: {frames: 17, size: 128x64, steps: 16, guidance: 2.5, fps: 7.5, flow_shift: 3, negative_prompt: dull}
limits: {frames_max: 100, pixels_max: 10000, steps_max: 20, guidance_max: 3, fps_max: 8, prompt_bytes_max: 9,
         jobs_kept: 10, job_retention: 11s, in_flight_per_group: 1}
)";
  const StatusOr<Topology> parsed = parse(yaml);
  INFO(refusal(yaml));
  REQUIRE(parsed.ok());
  const Topology& t = *parsed;
  CHECK(toString(t.listen) == "[::1]:5000");
  CHECK(toString(t.http) == "0.0.0.0:5001");
  CHECK(t.runtime_dir == "/run");
  CHECK(t.log.level == "debug");
  CHECK(t.log.format == LogFormat::kJson);
  CHECK(t.spool.dir == "/var/results");
  CHECK(t.spool.bytes_max == 3u << 20);
  CHECK(t.spool.retention == std::chrono::seconds(90));
  CHECK(t.queue.length_max == 7);
  CHECK(t.queue.aging == std::chrono::seconds(5));
  CHECK(t.deadlines.load.count() == 3000);
  CHECK(t.deadlines.warm_up.count() == 4000);
  CHECK(t.deadlines.job.count() == 5000);
  CHECK(t.deadlines.stall.count() == 6000);
  CHECK(t.stallOf(0).count() == 90'000);
  CHECK(t.stallOf(1).count() == 6000);
  CHECK(t.deadlines.heartbeat.count() == 100);
  CHECK(t.deadlines.heartbeat_miss.count() == 700);
  CHECK(t.deadlines.shutdown_grace.count() == 8000);
  CHECK(t.deadlines.channel_progress.count() == 9000);
  CHECK(t.deadlines.collective.count() == 11000);
  CHECK(t.deadlines.encode.count() == 10000);
  CHECK(t.restart.backoff_min.count() == 20);
  CHECK(t.restart.backoff_max.count() == 2000);
  CHECK(t.restart.stable_after.count() == 3000);
  CHECK(t.restart.failures_max == 4);
  CHECK(t.trace.spans_max == 0);
  CHECK(t.trace.bytes_max == 1u << 20);
  const GroupSpec& a = t.groups[0];
  CHECK(a.name == "a");
  CHECK(a.stage == "x.y");
  CHECK(a.method == "run");
  CHECK(a.ranks() == 2);
  CHECK(a.parallel.cfg == 2);
  CHECK(a.communication == Communication::kGloo);
  CHECK(a.threads == 3);
  CHECK(a.dtype == DType::kBFloat16);
  CHECK(a.memory_bytes_max == uint64_t{2} << 30);
  CHECK(a.options == std::map<std::string, std::string>{{"depth", "3"}, {"name", "v w"}});
  const EdgeSpec& edge = t.edges[0];
  CHECK(edge.from == 0);
  CHECK(edge.to == 1);
  CHECK(edge.slots == 3);
  CHECK(edge.profiles_max == 4);
  CHECK(edge.unpooled_bytes_max == 5 * 1024);
  CHECK(edge.producer_shard_dim == 1);
  CHECK(edge.consumer_shard_dim == 0);
  CHECK(t.defaults.frames == 17u);
  CHECK(t.defaults.width == 128u);
  CHECK(t.defaults.height == 64u);
  CHECK(t.defaults.steps == 16u);
  CHECK(t.defaults.guidance == 2.5);
  CHECK(t.defaults.fps == 7.5);
  CHECK(t.defaults.flow_shift == 3.0);
  CHECK(t.defaults.negative_prompt == std::string("dull"));
  CHECK(t.limits.frames_max == 100);
  CHECK(t.limits.pixels_max == 10000);
  CHECK(t.limits.steps_max == 20);
  CHECK(t.limits.guidance_max == 3);
  CHECK(t.limits.fps_max == 8);
  CHECK(t.limits.prompt_bytes_max == 9);
  CHECK(t.limits.jobs_kept == 10);
  CHECK(t.limits.job_retention.count() == 11000);
  CHECK(t.limits.in_flight_per_group == 1);
}

TEST_CASE("config: what is not YAML, or more than a topology needs, is refused with its line", "[config]") {
  check({
      {"empty", "", "t.yaml:1: the file is empty; see --print-schema for the keys"},
      {"only a comment", "# nothing\n", "t.yaml:1: the file is empty; see --print-schema for the keys"},
      {"not a mapping", "- a\n- b\n", "t.yaml:1: got the list '[a, b]', expected a mapping of keys to values"},
      {"broken", "listen: [\n", "t.yaml:2: not valid YAML: end of sequence flow not found"},
      {"two documents", kThreeGroups + "---\nlisten: 127.0.0.1:1\n",
       "t.yaml:1: the file holds more than one document (---)"},
      {"repeated key", appended("queue:\n  aging: 5s\n  aging: 6s\n"),
       "t.yaml:16: key 'aging' is given twice, first on line 15; remove one"},
      {"anchor", appended("queue: &q {aging: 5s}\n"),
       "t.yaml:14: anchors (&name) are refused; write the value out where it is needed"},
      {"tag", appended("queue: !!python/object {aging: 5s}\n"),
       "t.yaml:14: tag tag:yaml.org,2002:python/object is refused; write the plain value"},
      {"complex key", appended("[a, b]: c\n"), "t.yaml:14: a key must be plain text, not a list or a mapping"},
      {"empty key", appended("~: c\n"), "t.yaml:14: a key is empty; give it a name"},
      {"deep", appended("a: [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]\n"), "t.yaml:14: nested deeper than 16 levels"},
      {"NUL", std::string("listen: 127.0.0.1:0\nhttp: \0\n", 28),
       "t.yaml:2: contains a control character; a topology is plain UTF-8 text"},
  });
  // yaml-cpp names the anchor from 0.8 on.
  CHECK(
      refusal(appended("queue: *q\n")).starts_with("t.yaml:14: not valid YAML: the referenced anchor is not defined"));
}

TEST_CASE("config: a key that does not exist is refused with the nearest that do", "[config]") {
  check({
      {"top", appended("lissten: 127.0.0.1:1\n"),
       "t.yaml:14: lissten: unknown key (value '127.0.0.1:1'); did you mean 'listen'? Valid here: listen, http, model, "
       "runtime_dir, log, groups, edges, defaults, limits, spool, queue, deadlines, restart, trace"},
      {"section", appended("queue:\n  lenght_max: 3\n"),
       "t.yaml:15: queue.lenght_max: unknown key (value '3'); did you mean 'length_max'? Valid here: length_max, "
       "aging"},
      {"nothing near", appended("queue: {zzz: [1]}\n"),
       "t.yaml:14: queue.zzz: unknown key; valid here: length_max, aging"},
      {"group", inGroup("    thread: 3\n"),
       "t.yaml:6: groups[1].thread: unknown key (value '3'); did you mean 'threads'? Valid here: name, stage, method, "
       "model, devices, threads, dtype, communication, ulysses_transport, memory_max, stall, options, parallel"},
      {"nested", inGroup("    parallel: {ulises: 2}\n"),
       "t.yaml:6: groups[1].parallel.ulises: unknown key (value '2'); did you mean 'ulysses'? Valid here: dp, cfg, "
       "ring, ulysses, spatial, pp, tp"},
      {"edge", inEdge("    slot: 3\n"),
       "t.yaml:11: edges[0].slot: unknown key (value '3'); did you mean 'slots'? Valid here: from, to, slots, "
       "profiles_max, unpooled_bytes_max, producer_shard_dim, consumer_shard_dim"},
  });
}

TEST_CASE("config: a value that is not of its type or range is refused with what is", "[config]") {
  const std::string size = " with its unit (B, KiB, MiB, GiB, TiB), such as 64MiB";
  const std::string time = " with its unit (ms, s, m, h, d), such as 1s";
  check({
      {"scalar for section", appended("queue: 3\n"), "t.yaml:14: queue: got '3', expected a mapping of keys to values"},
      {"section for scalar", appended("queue: {aging: {a: 1}}\n"),
       "t.yaml:14: queue.aging: got the mapping '{a: 1}', expected a time from 1s to 1d" + time},
      {"long list for scalar", appended("queue: {aging: [" + std::string(200, 'x') + "]}\n"),
       "t.yaml:14: queue.aging: got the list '[" + std::string(79, 'x') +
           "...' (202 bytes), expected a time from 1s to 1d" + time},
      {"count", appended("queue: {length_max: many}\n"),
       "t.yaml:14: queue.length_max: got 'many', expected an integer from 1 to 100000"},
      {"count below", appended("queue: {length_max: 0}\n"),
       "t.yaml:14: queue.length_max: got '0', expected an integer from 1 to 100000"},
      {"count negative", appended("queue: {length_max: -1}\n"),
       "t.yaml:14: queue.length_max: got '-1', expected an integer from 1 to 100000"},
      {"count with fraction", appended("queue: {length_max: 1.5}\n"),
       "t.yaml:14: queue.length_max: got '1.5', expected an integer from 1 to 100000"},
      {"count past 64 bits", appended("queue: {length_max: 99999999999999999999}\n"),
       "t.yaml:14: queue.length_max: got '99999999999999999999', expected an integer from 1 to 100000"},
      {"real", appended("defaults: {guidance: nan}\n"),
       "t.yaml:14: defaults.guidance: got 'nan', expected a number from 0 to 1000"},
      {"bytes without unit", appended("spool: {bytes_max: 1024}\n"),
       "t.yaml:14: spool.bytes_max: got '1024', expected a size from 1MiB to 1024TiB" + size},
      {"bytes decimal unit", appended("spool: {bytes_max: 1GB}\n"),
       "t.yaml:14: spool.bytes_max: got '1GB', expected a size from 1MiB to 1024TiB" + size},
      {"bytes overflow", appended("spool: {bytes_max: 18446744073709551615TiB}\n"),
       "t.yaml:14: spool.bytes_max: got '18446744073709551615TiB', expected a size from 1MiB to 1024TiB" + size},
      {"time without unit", appended("deadlines: {load: 5}\n"),
       "t.yaml:14: deadlines.load: got '5', expected a time from 1s to 1d" + time},
      {"time out of range", appended("deadlines: {load: 0s}\n"),
       "t.yaml:14: deadlines.load: got '0s', expected a time from 1s to 1d" + time},
      {"choice", appended("log: {level: warning}\n"),
       "t.yaml:14: log.level: got 'warning', expected one of trace, debug, info, warn, error"},
      {"choice, near", appended("log: {level: wran}\n"),
       "t.yaml:14: log.level: got 'wran', expected one of trace, debug, info, warn, error; did you mean 'warn'?"},
      {"endpoint", with(kThreeGroups, "127.0.0.1:0", "localhots:1"),
       "t.yaml:1: listen: got 'localhots:1', expected an IP address or localhost and a port, such as 127.0.0.1:7411 or "
       "[::1]:0 (port 0: any free one)"},
      {"endpoint port", with(kThreeGroups, "127.0.0.1:0", "127.0.0.1:65536"),
       "t.yaml:1: listen: got '127.0.0.1:65536', expected an IP address or localhost and a port, such as "
       "127.0.0.1:7411 or [::1]:0 (port 0: any free one)"},
      {"frame size", appended("defaults: {size: 0x128}\n"),
       "t.yaml:14: defaults.size: got '0x128', expected WIDTHxHEIGHT in pixels, such as 128x128, each from 1 to 16384"},
      {"name", with(kThreeGroups, "name: decode", "name: De.code"),
       "t.yaml:7: groups[2].name: got 'De.code', expected a name of 1 to 32 lower-case letters, digits, '_' and '-', "
       "starting with a letter"},
      {"stage", with(kThreeGroups, "noop.sink", "noop..sink"),
       "t.yaml:8: groups[2].stage: got 'noop..sink', expected names joined by '.', such as wan.denoiser, 1 to 64 "
       "bytes"},
      {"method", with(kThreeGroups, "decode.decode", "decode"),
       "t.yaml:13: edges[1].to: got 'decode', expected a group and its method, such as text.encode"},
      {"shard dim", inEdge("    consumer_shard_dim: 9\n"),
       "t.yaml:11: edges[0].consumer_shard_dim: got '9', expected an integer from 0 to 7"},
      {"dtype", inGroup("    dtype: float64\n"),
       "t.yaml:6: groups[1].dtype: got 'float64', expected one of float32, bfloat16, float16; did you mean 'float32' "
       "or "
       "'float16'?"},
      {"long value", appended("log: {level: " + std::string(200, 'x') + "}\n"),
       "t.yaml:14: log.level: got '" + std::string(80, 'x') +
           "...' (200 bytes), expected one of trace, debug, info, warn, error"},
  });
}

TEST_CASE("config: a key without a value is told what it takes, and that it may go if it may", "[config]") {
  check({
      {"endpoint", appended("http:\n"),
       "t.yaml:14: http: has no value (null); give an IP address or localhost and a port, such as 127.0.0.1:7411 or "
       "[::1]:0 (port 0: any free one), or remove the key"},
      {"section", appended("queue: ~\n"),
       "t.yaml:14: queue: has no value (null); give a mapping of keys to values, or remove the key"},
      {"required", with(kThreeGroups, "stage: noop.middle", "stage: null"),
       "t.yaml:6: groups[1].stage: has no value (null); give names joined by '.', such as wan.denoiser, 1 to 64 bytes"},
  });
}

TEST_CASE("config: every key with words for values names what it got, and the words", "[config]") {
  struct Place {
    const char* key;
    std::string (*in)(const std::string&);
    const char* where;
    const char* words;
  };
  const auto group = [](const std::string& entry) { return inGroup("    " + entry + "\n"); };
  const auto log = [](const std::string& entry) { return appended("log: {" + entry + "}\n"); };
  const Place places[] = {
      {"ulysses_transport", group, "t.yaml:6: groups[1].", "one of auto, c10d, shm, cuda_ipc"},
      {"communication", group, "t.yaml:6: groups[1].", "one of auto, gloo, nccl"},
      {"dtype", group, "t.yaml:6: groups[1].", "one of float32, bfloat16, float16"},
      {"level", log, "t.yaml:14: log.", "one of trace, debug, info, warn, error"},
      {"format", log, "t.yaml:14: log.", "one of text, json"},
  };
  // As it stands in the file, and as it is told.
  const std::pair<const char*, const char*> values[] = {
      {"5", "'5'"},
      {"1.5", "'1.5'"},
      {"true", "'true'"},
      {"''", "''"},
      {"'null'", "'null'"},
      {"[auto, shm]", "the list '[auto, shm]'"},
      {"[]", "the list '[]'"},
      {"{auto: 1}", "the mapping '{auto: 1}'"},
  };
  for (const Place& place : places) {
    const std::string key = place.key;
    const std::string where = place.where + key;
    for (const auto& [value, told] : values)
      CHECK(refusal(place.in(key + ": " + value)) == where + ": got " + told + ", expected " + place.words);
    for (const char* nothing : {"", "null", "~"}) {
      CHECK(refusal(place.in(key + ": " + nothing)) ==
            where + ": has no value (null); give " + place.words + ", or remove the key");
    }
  }
  CHECK(refusal(group("ulysses_transport: nccl")) ==
        "t.yaml:6: groups[1].ulysses_transport: got 'nccl', expected one of auto, c10d, shm, cuda_ipc");
}

TEST_CASE("config: devices and options are checked entry by entry", "[config]") {
  const std::string devices =
      "a list of 1 to 64 devices, one for each rank: cpu or cuda:N, such as [cpu] or [cuda:0, cuda:1]";
  check({
      {"scalar", inGroup("    devices: cpu\n"), "t.yaml:6: groups[1].devices: got 'cpu', expected " + devices},
      {"none", inGroup("    devices: []\n"), "t.yaml:6: groups[1].devices: got 0 entries, expected " + devices},
      {"unknown", inGroup("    devices: [gpu:0]\n"), "t.yaml:6: groups[1].devices: got 'gpu:0', expected " + devices},
      {"no index", inGroup("    devices: [cuda]\n"), "t.yaml:6: groups[1].devices: got 'cuda', expected " + devices},
      {"bad index", inGroup("    devices: [\"cuda:-1\"]\n"),
       "t.yaml:6: groups[1].devices: got 'cuda:-1', expected " + devices},
      {"nested", inGroup("    devices: [[cpu]]\n"),
       "t.yaml:6: groups[1].devices: got the list '[[cpu]]', expected " + devices},
      {"null", inGroup("    devices: [~]\n"),
       "t.yaml:6: groups[1].devices: got the list '[null]', expected " + devices},
      {"option list", inGroup("    options: [a]\n"),
       "t.yaml:6: groups[1].options: got the list '[a]', expected a mapping of at most 64 names to plain values"},
      {"option nested", inGroup("    options: {a: {b: c}}\n"),
       "t.yaml:6: groups[1].options: option 'a': got the mapping '{b: c}', expected text or a number (latent-worker "
       "--describe has what each option takes)"},
      {"option null", inGroup("    options: {ring_attention: null}\n"),
       "t.yaml:6: groups[1].options: option 'ring_attention': got null, expected text or a number (latent-worker "
       "--describe has what each option takes)"},
  });
}

TEST_CASE("config: what is missing is named", "[config]") {
  check({
      {"groups", "listen: 127.0.0.1:0\n", "t.yaml:1: groups: missing; give a list of mappings, 1 to 64 entries"},
      {"no group", "groups: []\n", "t.yaml:1: groups: got 0 entries, expected a list of mappings, 1 to 64 entries"},
      {"group for groups", "groups: {name: a}\n",
       "t.yaml:1: groups: got the mapping '{name: a}', expected a list of mappings, 1 to 64 entries"},
      {"group of text", "groups: [text]\n", "t.yaml:1: groups[0]: got 'text', expected a mapping of keys to values"},
      {"group of nothing", "groups: [~]\n", "t.yaml:1: groups[0]: got null, expected a mapping of keys to values"},
      {"stage", with(kThreeGroups, "    stage: noop.middle\n", ""),
       "t.yaml:5: groups[1].stage: missing; give names joined by '.', such as wan.denoiser, 1 to 64 bytes"},
      {"to", with(kThreeGroups, "    to: denoise.denoise\n", ""),
       "t.yaml:10: edges[0].to: missing; give a group and its method, such as text.encode"},
      {"method of a lone group", "groups:\n  - {name: a, stage: s}\n",
       "t.yaml:2: groups[0].method: missing; a group without edges names the method that a job runs"},
  });
  CHECK(refusal("groups:\n  - {name: a, stage: s, method: m}\n") == "OK");
}

TEST_CASE("config: groups and edges must make one graph that ends in one group", "[config]") {
  check({
      {"name twice", with(kThreeGroups, "name: decode", "name: text"),
       "t.yaml:7: groups[2].name: 'text' is also the name of groups[0]; give each group a name of its own"},
      {"no such group", with(kThreeGroups, "to: decode.decode", "to: decod.decode"),
       "t.yaml:13: edges[1].to: there is no group 'decod'; did you mean 'decode'? Groups: 'text', 'denoise' or "
       "'decode'"},
      {"itself", with(kThreeGroups, "to: decode.decode", "to: denoise.denoise"),
       "t.yaml:13: edges[1].to: 'denoise' is the group that the edge comes from; an edge joins two different groups"},
      {"two methods", with(kThreeGroups, "from: denoise.denoise", "from: denoise.other"),
       "t.yaml:12: edges[1].from: names method 'other' of group denoise, which elsewhere is 'denoise'; a job runs one "
       "method of a group"},
      {"own method", inGroup("    method: other\n"),
       "t.yaml:12: edges[0].to: names method 'denoise' of group denoise, which elsewhere is 'other'; a job runs one "
       "method of a group"},
      {"edge twice", appended("  - {from: text.encode, to: denoise.denoise}\n"),
       "t.yaml:14: edges[2]: text.encode->denoise.denoise is given already by edges[0]; remove one"},
      {"circle", appended("  - {from: decode.decode, to: text.encode}\n"),
       "t.yaml:9: edges: the groups feed each other in a circle: text -> denoise -> decode -> text; remove one of "
       "these "
       "edges"},
      {"lone group", with(kThreeGroups, "edges:", "  - {name: extra, stage: s}\nedges:"),
       "t.yaml:9: groups[3]: group 'extra' has no edge; connect it or remove it"},
      {"two sinks",
       with(kThreeGroups, "edges:", "  - {name: extra, stage: s}\nedges:\n  - {from: text.encode, to: extra.run}"),
       "t.yaml:9: groups[3]: both 'decode' and 'extra' feed no other group; exactly one emits the frames"},
      {"two kinds of device", inGroup("    devices: [\"cuda:0\", cpu]\n    parallel: {ulysses: 2}\n"),
       "t.yaml:6: groups[1].devices: lists cuda:0 and cpu; the ranks of a group are all on GPUs or all on the CPU"},
  });
}

TEST_CASE("config: a diamond of groups is ordered along its edges", "[config]") {
  const std::string yaml = R"(groups:
  - {name: sink, stage: s}
  - {name: left, stage: s}
  - {name: right, stage: s}
  - {name: source, stage: s}
edges:
  - {from: left.m, to: sink.m}
  - {from: right.m, to: sink.m}
  - {from: source.m, to: left.m}
  - {from: source.m, to: right.m}
)";
  const StatusOr<Topology> topology = parse(yaml);
  REQUIRE(topology.ok());
  std::vector<size_t> entries;
  for (const StageSpec& stage : topology->stages)
    entries.push_back(stage.entry);
  CHECK(entries == std::vector<size_t>{3, 1, 2, 0});
  CHECK(topology->emitsFrames(0));
  CHECK(topology->links[2].from == 0);  // in places of the pipeline
  CHECK(topology->links[2].to == 1);
}

TEST_CASE("config: values that contradict each other are both named", "[config]") {
  check({
      {"ranks", inGroup("    devices: [cpu, cpu, cpu]\n    parallel: {cfg: 2, ulysses: 2}\n"),
       "t.yaml:7: groups[1].parallel: cfg 2 x ulysses 2 makes 4 ranks, but devices lists 3; the two must be equal: "
       "list "
       "4 devices, or change the degrees (latent-worker --describe has those of noop.middle)"},
      {"ranks of one degree", inGroup("    devices: [cpu, cpu, cpu, cpu]\n    parallel: {ulysses: 3, tp: 2}\n"),
       "t.yaml:7: groups[1].parallel: ulysses 3 x tp 2 makes 6 ranks, but devices lists 4; the two must be equal: list "
       "6 "
       "devices, or change the degrees (latent-worker --describe has those of noop.middle)"},
      {"ranks of replicas", inGroup("    devices: [cpu, cpu, cpu, cpu]\n    parallel: {cfg: 2}\n"),
       "t.yaml:7: groups[1].parallel: cfg 2 makes 2 ranks, but devices lists 4; the two must be equal: list 2 devices, "
       "give dp: 2 (replicas), or change the degrees (latent-worker --describe has those of noop.middle)"},
      {"ranks without parallel", inGroup("    devices: [cpu, cpu]\n"),
       "t.yaml:5: groups[1].parallel: without degrees there is 1 rank, but devices lists 2; the two must be equal: "
       "list "
       "1 device, give dp: 2 (replicas), or change the degrees (latent-worker --describe has those of noop.middle)"},
      {"nccl on the CPU", inGroup("    devices: [cpu, cpu]\n    parallel: {cfg: 2}\n    communication: nccl\n"),
       "t.yaml:8: groups[1].communication: 'nccl' needs a GPU for each rank, and its ranks are on the CPU; give gloo "
       "or "
       "auto"},
      {"nccl on one GPU",
       inGroup("    communication: nccl\n    devices: [\"cuda:1\", \"cuda:0\", \"cuda:1\"]\n    parallel: {tp: 3}\n"),
       "t.yaml:6: groups[1].communication: 'nccl' needs a GPU for each rank, and its ranks 0 and 2 share cuda:1; give "
       "gloo or auto"},
      {"ports", with(appended("http: 0.0.0.0:7000\n"), "127.0.0.1:0", "127.0.0.1:7000"),
       "t.yaml:14: http: '0.0.0.0:7000' takes the port of listen (127.0.0.1:7000); give each a port of its own, or 0 "
       "for "
       "any free one"},
      {"heartbeat", appended("deadlines: {heartbeat: 3s}\n"),
       "t.yaml:14: deadlines.heartbeat_miss: '5s' is too short for deadlines.heartbeat; give at least 6s"},
      {"backoff", appended("restart: {backoff_min: 2s, backoff_max: 1s}\n"),
       "t.yaml:14: restart.backoff_max: '1s' is too short for restart.backoff_min; give at least 2s"},
      {"frames", appended("defaults: {frames: 30}\nlimits: {frames_max: 20}\n"),
       "t.yaml:14: defaults.frames: '30' is above limits.frames_max (20); lower the one or raise the other"},
      {"size", appended("defaults: {size: 100x101}\nlimits: {pixels_max: 10000}\n"),
       "t.yaml:14: defaults.size: '10100' is above limits.pixels_max (10000); lower the one or raise the other"},
      {"steps", appended("defaults: {steps: 30}\nlimits: {steps_max: 20}\n"),
       "t.yaml:14: defaults.steps: '30' is above limits.steps_max (20); lower the one or raise the other"},
      {"guidance", appended("defaults: {guidance: 2.5}\nlimits: {guidance_max: 2}\n"),
       "t.yaml:14: defaults.guidance: '2.5' is above limits.guidance_max (2); lower the one or raise the other"},
      {"fps", appended("defaults: {fps: 30}\nlimits: {fps_max: 29.97}\n"),
       "t.yaml:14: defaults.fps: '30' is above limits.fps_max (29.97); lower the one or raise the other"},
      {"negative prompt", appended("defaults: {negative_prompt: abc}\nlimits: {prompt_bytes_max: 2}\n"),
       "t.yaml:14: defaults.negative_prompt: '3' is above limits.prompt_bytes_max (2); lower the one or raise the "
       "other"},
      {"socket path", appended("runtime_dir: /" + std::string(60, 'd') + "\n"),
       "t.yaml:14: runtime_dir: '/" + std::string(60, 'd') +
           "' has 61 bytes, at most 52 leave room for socket paths; give a shorter one, such as /tmp"},
  });
  CHECK(refusal(with(appended("http: 127.0.0.2:7000\n"), "127.0.0.1:0", "127.0.0.1:7000")) == "OK");
}

// What such a transport does without ulysses is noted elsewhere (supervisor/idle_keys).
TEST_CASE("config: a ulysses transport that the devices cannot have is refused at any degree, another taken",
          "[config]") {
  struct Case {
    const char* devices;
    const char* possible;
    const char* impossible;
    const char* why;  // from rank 0's device on
  };
  const Case cases[] = {
      {"[cpu]", "shm", "cuda_ipc", "needs ranks on GPUs, and rank 0 is on cpu; give shm, c10d or auto"},
      {"['cuda:0']", "cuda_ipc", "shm", "needs ranks on the CPU, and rank 0 is on cuda:0; give cuda_ipc, c10d or auto"},
      {"[cpu, cpu]", "shm", "cuda_ipc", "needs ranks on GPUs, and rank 0 is on cpu; give shm, c10d or auto"},
      {"['cuda:0', 'cuda:1']", "cuda_ipc", "shm",
       "needs ranks on the CPU, and rank 0 is on cuda:0; give cuda_ipc, c10d or auto"},
  };
  for (const Case& tried : cases) {
    INFO(tried.devices);
    const std::string devices = tried.devices;
    const auto degrees =
        devices.find(',') == std::string::npos ? std::vector{"{}"} : std::vector{"{ulysses: 2}", "{cfg: 2}", "{dp: 2}"};
    for (const char* parallel : degrees) {
      const auto with_transport = [&](const char* transport) {
        return refusal(inGroup("    devices: " + devices + "\n    parallel: " + parallel +
                               "\n    ulysses_transport: " + transport + "\n"));
      };
      for (const char* possible : {tried.possible, "c10d", "auto"})
        CHECK(with_transport(possible) == "OK");
      CHECK(with_transport(tried.impossible) ==
            "t.yaml:8: groups[1].ulysses_transport: '" + std::string(tried.impossible) + "' " + tried.why);
    }
  }
}

TEST_CASE("config: paths start at the file's folder, and model folders must exist", "[config]") {
  const latentd::testing::TempDir folder;
  const std::filesystem::path dir = folder.path();
  std::filesystem::create_directory(dir / "weights");
  const auto write = [&](const std::string& yaml) {
    std::ofstream(dir / "t.yaml") << yaml;
    return (dir / "t.yaml").string();
  };
  const std::string own = with(kThreeGroups, "noop.middle", "noop.middle\n    model: ../" + dir.filename().string());
  const StatusOr<Topology> topology =
      loadTopology(write(own + "model: ./weights/\nspool: {dir: out}\n"), testSurroundings());
  REQUIRE(topology.ok());
  CHECK(topology->groups[0].model_dir == (dir / "weights").string());
  CHECK(topology->groups[1].model_dir == dir.string());
  CHECK(topology->spool.dir == (dir / "out").string());

  const std::string file = write(kThreeGroups + "model: missing\n");
  CHECK(messageOf(loadTopology(file, testSurroundings()).status()) ==
        file + ":14: model: '" + (dir / "missing").string() +
            "' is not a folder; give a diffusers directory, absolute or relative to this file's folder");
  const std::string own_file = write(with(kThreeGroups, "noop.middle", "noop.middle\n    model: t.yaml"));
  CHECK(messageOf(loadTopology(own_file, testSurroundings()).status()) ==
        file + ":7: groups[1].model: '" + (dir / "t.yaml").string() +
            "' is not a folder; give a diffusers directory, absolute or relative to this file's folder");
}

TEST_CASE("config: a file that cannot be read says why", "[config]") {
  const latentd::testing::TempDir folder;
  const std::string& dir = folder.path();
  CHECK(loadTopology(dir + "/none.yaml", testSurroundings()).status() ==
        makeStatus(absl::StatusCode::kNotFound, dir + "/none.yaml: No such file or directory"));
  CHECK(messageOf(loadTopology(dir, testSurroundings()).status()) ==
        dir + ": not a regular file; give a topology in YAML");
  REQUIRE(::mkfifo((dir + "/fifo").c_str(), 0600) == 0);  // must not wait for a writer
  CHECK(messageOf(loadTopology(dir + "/fifo", testSurroundings()).status()) ==
        dir + "/fifo: not a regular file; give a topology in YAML");
  std::ofstream(dir + "/big.yaml") << std::string((1 << 20) + 1, ' ');
  CHECK(messageOf(loadTopology(dir + "/big.yaml", testSurroundings()).status()) ==
        dir + "/big.yaml: 1048577 bytes; a topology has at most 1048576");
}

}  // namespace latentd::config
