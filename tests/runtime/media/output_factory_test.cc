#include "runtime/media/output_factory.h"

#include <sys/mount.h>

#include "tests/runtime/media/av_decode.h"
#include "tests/runtime/media/output_factory_fixture.h"

namespace latentd::media {
namespace {

constexpr uint32_t kFrames = 8;

}  // namespace

TEST_CASE("output: every format becomes a file of the spool", "[media][output]") {
  const v1::OutputFormat format = static_cast<v1::OutputFormat>(GENERATE(range(0, 7)));
  INFO(v1::OutputFormat_Name(format));
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(format), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, kFrames).ok());
  REQUIRE(writer.finish().ok());
  (*output)->finish();
  const StatusOr<OutputResult> result = done.wait();
  INFO(messageOf(result.status()));
  REQUIRE(result.ok());
  CHECK(result->frames == kFrames);
  CHECK(result->bytes == std::filesystem::file_size(result->path));
  CHECK(std::filesystem::path(result->path).parent_path() == fixture.spool_dir);
  const size_t pixel_bytes = size_t{kFrames} * kTestWidth * kTestHeight * 3;
  if (format == v1::OUTPUT_FORMAT_RGB24) {
    CHECK(result->bytes == pixel_bytes);
  } else if (format == v1::OUTPUT_FORMAT_NPY) {
    CHECK(result->bytes == 128 + pixel_bytes);
  } else {
    const DecodedVideo video = decodeVideo(result->path);
    CHECK(video.frames.size() == (format == v1::OUTPUT_FORMAT_PNG ? 1 : kFrames));
  }
  output->reset();  // an ended output stays
  CHECK(std::filesystem::exists(result->path));
  factory.remove("job");
  CHECK(fixture.nothingLeft());
  CHECK(done.calls() == 1);
}

TEST_CASE("output: float pixels arrive bit for bit", "[media][output]") {
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  v1::JobParameters parameters = testParameters(v1::OUTPUT_FORMAT_NPY, 1);
  parameters.set_float_pixels(true);
  auto output = openOutput(factory, "job", parameters, done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  CHECK(writer.geometry().format == PixelFormat::kRgbF32);
  const StatusOr<std::span<std::byte>> frame = writer.reserve(testDeadline());
  REQUIRE(frame.ok());
  for (size_t i = 0; i < frame->size(); ++i)
    (*frame)[i] = static_cast<std::byte>(i * 7);
  const std::string pixels(reinterpret_cast<const char*>(frame->data()), frame->size());
  writer.commit();
  REQUIRE(writer.finish().ok());
  (*output)->finish();
  const StatusOr<OutputResult> result = done.wait();
  REQUIRE(result.ok());
  CHECK(readFile(result->path).substr(128) == pixels);
}

TEST_CASE("output: success is told after finish() only, however early the file is complete", "[media][output]") {
  const v1::OutputFormat format = GENERATE(v1::OUTPUT_FORMAT_RGB24, v1::OUTPUT_FORMAT_PNG);
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(format), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, kFrames).ok());
  const size_t fds = openFds();
  REQUIRE(writer.finish().ok());
  // A thread of ours gives up its lock on the ring and its copy of the file.
  const bool raw = format == v1::OUTPUT_FORMAT_RGB24;
  REQUIRE(eventually([&] { return raw ? openFds() == fds - 2 : childPids().empty(); }));
  CHECK(done.calls() == 0);
  SECTION("finish() brings it") {
    (*output)->finish();
    CHECK(done.wait().ok());
    factory.remove("job");
    CHECK(fixture.nothingLeft());
  }
  SECTION("abort() still wins") {
    (*output)->abort(absl::CancelledError("not wanted"));
    CHECK(absl::IsCancelled(done.wait().status()));
    CHECK(fixture.nothingLeft());
  }
}

TEST_CASE("output: abort or destruction mid-way leaves no file and no process", "[media][output]") {
  const v1::OutputFormat format = GENERATE(v1::OUTPUT_FORMAT_RGB24, v1::OUTPUT_FORMAT_MP4);
  const bool destroys = GENERATE(false, true);
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(format), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, 3).ok());
  if (destroys) {
    output->reset();
    CHECK(namesIn(fixture.spool_dir).empty());  // at once
  } else {
    (*output)->abort(absl::CancelledError("the user gave up"));
    CHECK(messageOf(writer.reserve(testDeadline()).status()) == "the user gave up");
  }
  CHECK(absl::IsCancelled(done.wait().status()));
  CHECK(absl::IsCancelled(writer.reserve(testDeadline()).status()));
  CHECK(fixture.nothingLeft());
  CHECK(done.calls() == 1);
}

TEST_CASE("output: a worker that goes before its last frame ends the output", "[media][output]") {
  const v1::OutputFormat format = GENERATE(v1::OUTPUT_FORMAT_NPY, v1::OUTPUT_FORMAT_GIF);
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(format), done);
  REQUIRE(output.ok());
  {
    FrameRingWriter writer = attachWriter(**output);
    REQUIRE(writeFrames(writer, 0, 3).ok());
  }
  const Status status = done.wait().status();
  CHECK(absl::IsCancelled(status));
  CHECK(messageOf(status) == "frame ring: its writer went before the last frame");
  CHECK(isFramesMissing(status));
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: a job without a frame is no video", "[media][output]") {
  const v1::OutputFormat format = GENERATE(v1::OUTPUT_FORMAT_Y4M, v1::OUTPUT_FORMAT_MP4);
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(format), done);
  REQUIRE(output.ok());
  REQUIRE(attachWriter(**output).finish().ok());
  (*output)->finish();
  const Status status = done.wait().status();
  CHECK(messageOf(status) == "the job ended without a frame");
  CHECK(isFramesMissing(status));
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: kill -9 of the encoder ends one output, names the signal, and stops the worker", "[media][output]") {
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  DoneProbe other_done;
  auto output = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_MP4, 1000), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, 40).ok());
  const pid_t pid = fixture.encoderPid();
  auto other = openOutput(factory, "other", testParameters(v1::OUTPUT_FORMAT_MP4), other_done);
  REQUIRE(other.ok());
  REQUIRE(::kill(pid, SIGKILL) == 0);
  const Status status = done.wait().status();
  CHECK(absl::IsUnavailable(status));
  CHECK_FALSE(isFramesMissing(status));
  CHECK(messageOf(status) ==
        "latent-encoder (pid " + std::to_string(pid) + ") ended with signal SIGKILL; it printed nothing");
  CHECK_FALSE(writeFrames(writer, 0, 40).ok());

  FrameRingWriter other_writer = attachWriter(**other);
  REQUIRE(writeFrames(other_writer, 0, kFrames).ok());
  REQUIRE(other_writer.finish().ok());
  (*other)->finish();
  CHECK(other_done.wait().ok());
  factory.remove("other");
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: an encoder that stands still holds the worker back, and goes on", "[media][output]") {
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  constexpr uint32_t kMany = 100;
  auto output = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_MP4, kMany), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, 1).ok());
  const pid_t pid = fixture.encoderPid();
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  const Status blocked = writeFrames(writer, 1, kMany, std::chrono::steady_clock::now() + milliseconds(300));
  CHECK(absl::IsDeadlineExceeded(blocked));
  const uint32_t written = writer.framesCommitted();
  CHECK(written < kMany);
  REQUIRE(::kill(pid, SIGCONT) == 0);
  REQUIRE(writeFrames(writer, written, kMany - written).ok());
  REQUIRE(writer.finish().ok());
  (*output)->finish();
  const StatusOr<OutputResult> result = done.wait();
  REQUIRE(result.ok());
  CHECK(result->frames == kMany);
  CHECK(decodeVideo(result->path).frames.size() == kMany);
}

TEST_CASE("output: an encoder that does not end by its deadline is killed", "[media][output]") {
  FactoryFixture fixture;
  fixture.options.encode_deadline = milliseconds(200);
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_MP4), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, 1).ok());
  REQUIRE(::kill(fixture.encoderPid(), SIGSTOP) == 0);
  (*output)->finish();
  const Status status = done.wait().status();
  CHECK(absl::IsDeadlineExceeded(status));
  CHECK(messageOf(status) ==
        "the output was not complete 200 ms after the last frame (deadlines.encode); 1 frames were handed over");
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: what a failing encoder printed is told", "[media][output]") {
  struct Case {
    std::string script;
    absl::StatusCode code;
    std::string message;
  };
  const Case cases[] = {
      {"echo first >&2; echo; echo 'codec broke' >&2; exit 3", absl::StatusCode::kInternal,
       ") ended with exit code 3; its last lines: first | codec broke"},
      {"echo 'no libav' >&2; exit 127", absl::StatusCode::kUnavailable,
       "the encoder cannot run here, its last lines: no libav; npy, y4m and rgb24 need none"},
      {"kill -SEGV $$", absl::StatusCode::kUnavailable, ") ended with signal SIGSEGV; it printed nothing"},
      {"yes 0123456789 | head -c 1000000 >&2; exit 1", absl::StatusCode::kInternal, "0123456789 | 0123456789"},
  };
  for (const Case& failing : cases) {
    INFO(failing.script);
    FactoryFixture fixture;
    fixture.useScript(failing.script);
    SpoolOutputFactory& factory = fixture.start();
    DoneProbe done;
    auto output = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_MP4), done);
    REQUIRE(output.ok());
    const Status status = done.wait().status();
    CHECK(status.code() == failing.code);
    CHECK(messageOf(status).find(failing.message) != std::string::npos);
    CHECK(messageOf(status).size() < 4096);
    CHECK(fixture.nothingLeft());
  }
}

TEST_CASE("output: without an encoder that runs, raw formats remain", "[media][output]") {
  FactoryFixture fixture;
  const bool is_there = GENERATE(false, true);
  fixture.options.encoder = is_there ? "/bin/false" : fixture.dir.file("missing");
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  Status refused;
  REQUIRE(eventually([&] {  // the probe takes a moment
    DoneProbe ignored;
    refused = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_GIF), ignored).status();
    return !refused.ok();
  }));
  CHECK(absl::IsUnavailable(refused));
  INFO(messageOf(refused));
  CHECK(messageOf(refused).find(is_there ? "ended with exit code 1" : "No such file or directory") !=
        std::string::npos);
  auto output = openOutput(factory, "raw", testParameters(v1::OUTPUT_FORMAT_RGB24), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, kFrames).ok());
  REQUIRE(writer.finish().ok());
  (*output)->finish();
  CHECK(done.wait().ok());
}

TEST_CASE("output: parameters that are no video are refused", "[media][output]") {
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  const auto refusal = [&](const std::function<void(v1::JobParameters&)>& change) {
    v1::JobParameters parameters = testParameters(v1::OUTPUT_FORMAT_MP4);
    change(parameters);
    DoneProbe done;
    const auto output = openOutput(factory, "job", parameters, done);
    CHECK(done.calls() == (output.ok() ? 1 : 0));
    return output.ok() ? done.wait().status() : output.status();
  };
  CHECK(absl::IsInvalidArgument(refusal([](auto& p) { p.set_frames(0); })));
  CHECK(absl::IsInvalidArgument(refusal([](auto& p) { p.set_width(0); })));
  CHECK(absl::IsInvalidArgument(refusal([](auto& p) { p.set_height(1'000'000); })));
  CHECK(absl::IsInvalidArgument(refusal([](auto& p) { p.set_fps(0); })));
  CHECK(absl::IsInvalidArgument(refusal([](auto& p) { p.set_float_pixels(true); })));
  CHECK(absl::IsInvalidArgument(refusal([](auto& p) { p.set_format(static_cast<v1::OutputFormat>(77)); })));
  const Status too_large = refusal([](auto& p) {
    p.set_format(v1::OUTPUT_FORMAT_RGB24);
    p.set_frames(1'000'000);
  });
  CHECK(absl::IsResourceExhausted(too_large));
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: a container that grows past the spool's bound fails like a full disk", "[media][output]") {
  FactoryFixture fixture;
  fixture.options.spool.bytes_max = 2000;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_GIF, 1000), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  CHECK_FALSE(writeFrames(writer, 0, 1000).ok());
  const Status status = done.wait().status();
  INFO(messageOf(status));
  CHECK(absl::IsResourceExhausted(status));
  CHECK(messageOf(status).find("File too large") != std::string::npos);
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: a full disk under the spool ends the output with RESOURCE_EXHAUSTED", "[media][output]") {
  const v1::OutputFormat format = GENERATE(v1::OUTPUT_FORMAT_RGB24, v1::OUTPUT_FORMAT_GIF);
  FactoryFixture fixture;
  const std::string disk = fixture.dir.file("disk");
  std::filesystem::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    WARN("needs the right to mount a small disk; the writers' own tests cover a full one with /dev/full");
    return;
  }
  fixture.options.spool.dir = disk + "/spool";
  fixture.spool_dir = fixture.options.spool.dir;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(format, 1000), done);
  REQUIRE(output.ok());
  {
    FrameRingWriter writer = attachWriter(**output);
    CHECK_FALSE(writeFrames(writer, 0, 1000).ok());
  }
  const Status status = done.wait().status();
  INFO(messageOf(status));
  CHECK(absl::IsResourceExhausted(status));
  CHECK(messageOf(status).find("No space left on device") != std::string::npos);
  CHECK(fixture.nothingLeft());
  output->reset();
  fixture.factory.reset();
  CHECK(::umount(disk.c_str()) == 0);  // nothing holds it
}

TEST_CASE("output: a result goes when its time is over, without a call", "[media][output]") {
  FactoryFixture fixture;
  fixture.options.spool.retention = milliseconds(100);
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe done;
  auto output = openOutput(factory, "job", testParameters(v1::OUTPUT_FORMAT_RGB24), done);
  REQUIRE(output.ok());
  FrameRingWriter writer = attachWriter(**output);
  REQUIRE(writeFrames(writer, 0, kFrames).ok());
  REQUIRE(writer.finish().ok());
  (*output)->finish();
  REQUIRE(done.wait().ok());
  CHECK(fixture.nothingLeft());
}

TEST_CASE("output: the factory's end takes what runs with it", "[media][output]") {
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  DoneProbe raw_done;
  DoneProbe encoded_done;
  auto raw = openOutput(factory, "raw", testParameters(v1::OUTPUT_FORMAT_RGB24), raw_done);
  auto encoded = openOutput(factory, "encoded", testParameters(v1::OUTPUT_FORMAT_MP4), encoded_done);
  REQUIRE(raw.ok());
  REQUIRE(encoded.ok());
  raw->reset();
  encoded->reset();
  fixture.factory.reset();
  CHECK(raw_done.calls() == 1);
  CHECK(encoded_done.calls() == 1);
  CHECK(childPids().empty());
  CHECK(namesIn(fixture.spool_dir).empty());
}

TEST_CASE("output: a hundred outputs leave no descriptor or process, and few threads", "[media][output]") {
  FactoryFixture fixture;
  SpoolOutputFactory& factory = fixture.start();
  REQUIRE(eventually([] { return childPids().empty(); }));  // the probe
  const size_t fds_before = openFds();
  const size_t threads_before = threadCount();
  constexpr v1::OutputFormat kFormats[] = {v1::OUTPUT_FORMAT_RGB24, v1::OUTPUT_FORMAT_NPY, v1::OUTPUT_FORMAT_Y4M,
                                           v1::OUTPUT_FORMAT_GIF, v1::OUTPUT_FORMAT_PNG};
  for (int i = 0; i < 100; ++i) {
    DoneProbe done;
    auto output = openOutput(factory, "job" + std::to_string(i), testParameters(kFormats[i % 5], 2), done);
    REQUIRE(output.ok());
    FrameRingWriter writer = attachWriter(**output);
    REQUIRE(writeFrames(writer, 0, 2).ok());
    REQUIRE(writer.finish().ok());
    (*output)->finish();
    const StatusOr<OutputResult> result = done.wait();
    INFO(messageOf(result.status()));
    REQUIRE(result.ok());
    factory.remove("job" + std::to_string(i));
  }
  CHECK(fixture.nothingLeft());
  CHECK(eventually([&] { return openFds() == fds_before; }));
  // Kept for others; of sixty outputs, one after another, hardly more than one.
  CHECK(threadCount() < threads_before + 10);
}

}  // namespace latentd::media
