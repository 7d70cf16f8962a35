#include "tools/ctl/submit_request.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "runtime/base/unique_fd.h"
#include "runtime/base/utf8.h"
#include "tools/ctl/format.h"
#include "tools/ctl/output_file.h"
#include "tools/ctl/text.h"

namespace latentd::ctl {
namespace {

constexpr size_t kPromptBytesMax = 1024 * 1024;  // the daemon's limit for a whole request

StatusOr<std::string> readAll(int fd, const std::string& name) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errnoStatus(errno, "reading the prompt from " + name);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > kPromptBytesMax) {
      return absl::InvalidArgumentError("prompt: " + name + " is longer than 1 MiB; give a text of a few sentences");
    }
  }
}

StatusOr<std::string> readPrompt(const SubmitOptions& options) {
  if (!options.prompt && !options.prompt_file) {
    return absl::InvalidArgumentError("--prompt: is missing; give a text, such as --prompt \"a red circle\"");
  }
  const std::string source = options.prompt_file.value_or("-");
  if (options.prompt && *options.prompt != "-") return *options.prompt;
  UniqueFd file;
  if (source != "-") {
    file.reset(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return errnoStatus(errno, "--prompt-file " + source);
  }
  LATENTD_ASSIGN_OR_RETURN(
      std::string text, readAll(file.valid() ? file.get() : STDIN_FILENO, source == "-" ? "standard input" : source));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r'))
    text.pop_back();
  return text;
}

Status checkUtf8(std::string_view flag, std::string_view text) {
  const std::optional<size_t> at = firstInvalidUtf8(text);
  if (!at) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(flag) + ": byte " + std::to_string(*at) +
                                    " is not valid UTF-8; convert the text (iconv -t utf-8)");
}

std::optional<uint32_t> parseNumber(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Status parseSize(const std::string& size, v1::JobParameters& parameters) {
  const size_t cross = size.find_first_of("xX");
  if (cross != std::string::npos) {
    const auto width = parseNumber(std::string_view(size).substr(0, cross));
    const auto height = parseNumber(std::string_view(size).substr(cross + 1));
    if (width && height) {
      parameters.set_width(*width);
      parameters.set_height(*height);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError("--size " + size + ": is not WIDTHxHEIGHT in pixels, such as 832x480");
}

// Distinct for every run, so that a retry by hand or by gRPC is a repetition and not a second job.
std::string newRequestId() {
  std::random_device random;
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id = "ctl-";
  for (int word = 0; word < 4; ++word) {
    for (uint32_t bits = random(), i = 0; i < 8; ++i, bits >>= 4)
      id += kDigits[bits & 15];
  }
  return id;
}

void setNumbers(const SubmitOptions& options, v1::JobParameters& parameters) {
  if (options.frames) parameters.set_frames(*options.frames);
  if (options.steps) parameters.set_steps(*options.steps);
  if (options.guidance) parameters.set_guidance_scale(*options.guidance);
  if (options.seed) parameters.set_seed(*options.seed);
  if (options.fps) parameters.set_fps(*options.fps);
  if (options.flow_shift) parameters.set_flow_shift(*options.flow_shift);
  parameters.set_float_pixels(options.float_pixels);
}

}  // namespace

StatusOr<v1::SubmitRequest> makeSubmitRequest(const SubmitOptions& options) {
  v1::SubmitRequest request;
  v1::JobParameters& parameters = *request.mutable_parameters();
  if (options.detach && !options.output.empty()) {
    return absl::InvalidArgumentError(
        "-o " + options.output +
        ": --detach writes no file; leave -o away (--format chooses the format) and fetch "
        "the video with `latentctl download ID -o " +
        options.output + "`");
  }
  LATENTD_RETURN_IF_ERROR(OutputFile::checkName(options.output));
  LATENTD_ASSIGN_OR_RETURN(const v1::OutputFormat format, chooseFormat(options.format, options.output));
  if (options.float_pixels && format != v1::OUTPUT_FORMAT_NPY) {
    return absl::InvalidArgumentError("--float: only .npy holds floating-point pixels, not ." + formatName(format));
  }
  LATENTD_ASSIGN_OR_RETURN(std::string prompt, readPrompt(options));
  LATENTD_RETURN_IF_ERROR(checkUtf8("--prompt", prompt));
  if (!options.size.empty()) LATENTD_RETURN_IF_ERROR(parseSize(options.size, parameters));
  if (options.negative_prompt) {
    LATENTD_RETURN_IF_ERROR(checkUtf8("--negative-prompt", *options.negative_prompt));
    parameters.set_negative_prompt(*options.negative_prompt);
  }
  parameters.set_prompt(std::move(prompt));
  parameters.set_format(format);
  setNumbers(options, parameters);
  request.set_priority(options.priority);
  request.set_retries(options.retry ? 1 : 0);
  if (options.deadline) *request.mutable_deadline() = toDuration(*options.deadline);
  if (options.stall_timeout) *request.mutable_stall_timeout() = toDuration(*options.stall_timeout);
  request.set_request_id(newRequestId());
  return request;
}

grpc::Status withOptionNames(const grpc::Status& status) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kOptions{
      {{"prompt", "--prompt"},
       {"negative_prompt", "--negative-prompt"},
       {"frames", "--frames"},
       {"width", "--size, width"},
       {"height", "--size, height"},
       {"size", "--size"},
       {"steps", "--steps"},
       {"guidance_scale", "--guidance"},
       {"seed", "--seed"},
       {"fps", "--fps"},
       {"flow_shift", "--flow-shift"},
       {"deadline", "--deadline"},
       {"stall_timeout", "--stall-timeout"}}};
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) return status;
  const std::string& message = status.error_message();
  const std::string_view field = std::string_view(message).substr(0, message.find_first_of(" :"));
  for (const auto& [known, option] : kOptions) {
    if (known != field) continue;
    return {status.error_code(), std::string(option) + message.substr(field.size()), status.error_details()};
  }
  return status;
}

}  // namespace latentd::ctl
