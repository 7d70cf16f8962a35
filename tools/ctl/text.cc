#include "tools/ctl/text.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

namespace latentd::ctl {
namespace {

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

using Json = nlohmann::ordered_json;

// Of every StatusProto in it.
void nameCodes(Json& value) {
  const bool status = value.is_object() && value.size() == 2 && value.contains("code") && value.contains("message");
  if (status && value["code"].is_number_integer()) value["code"] = statusCodeName(value["code"].get<int>());
  if (!value.is_structured()) return;
  for (Json& inner : value)
    nameCodes(inner);
}

}  // namespace

std::string formatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string formatSeconds(double seconds) {
  seconds = std::max(seconds, 0.0);
  if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02d}", whole / 60, whole % 60);
  return fmt::format("{}:{:02d}:{:02d}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string formatNumber(double value) { return fmt::format("{:g}", value); }

std::string formatTime(const google::protobuf::Timestamp& time) {
  const std::time_t seconds = time.seconds();
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return "?";
  std::array<char, 32> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return {text.data(), length};
}

std::string statusCodeName(int code) { return absl::StatusCodeToString(static_cast<absl::StatusCode>(code)); }

google::protobuf::Duration toDuration(std::chrono::milliseconds duration) {
  google::protobuf::Duration made;
  made.set_seconds(duration.count() / 1000);
  made.set_nanos(static_cast<int32_t>(duration.count() % 1000 * 1'000'000));
  return made;
}

double nowSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double elapsedSeconds(const v1::StageProgress& stage, double now) {
  if (!stage.has_start_time()) return 0;
  const double end = stage.has_finish_time() ? toSeconds(stage.finish_time()) : now;
  return std::max(0.0, end - toSeconds(stage.start_time()));
}

double inputWaitSeconds(const v1::StageProgress& stage, double now) {
  if (stage.has_input_wait()) return toSeconds(stage.input_wait());
  if (!stage.has_compute_start_time()) return elapsedSeconds(stage, now);
  return std::max(0.0, toSeconds(stage.compute_start_time()) - toSeconds(stage.start_time()));
}

double workSeconds(const v1::StageProgress& stage, double now) {
  return std::max(0.0, elapsedSeconds(stage, now) - inputWaitSeconds(stage, now));
}

bool wasCutOff(const v1::Job& job, const v1::StageProgress& stage) {
  if (job.state() != v1::JOB_STATE_FAILED && job.state() != v1::JOB_STATE_CANCELLED) return false;
  return stage.has_start_time() && toSeconds(stage.finish_time()) >= toSeconds(job.finish_time());
}

std::string returnCause(const v1::Job& job) {
  // What follows the first line is what the worker printed.
  const std::string& cause = job.restart_cause().message();
  return cause.substr(0, cause.find('\n'));
}

std::string returnText(const v1::Job& job) {
  std::string text;
  const auto add = [&](const char* what, uint32_t times) {
    if (times == 0) return;
    text += (text.empty() ? "" : ", ") + std::string(what) + (times > 1 ? fmt::format(" {} times", times) : "");
  };
  add("restarted", job.restarts());
  add("displaced", job.displacements());
  return text.empty() ? text : text + ": " + returnCause(job);
}

std::string waitText(const v1::StageProgress& stage) {
  switch (stage.wait_reason()) {
    case v1::WAIT_REASON_GROUP_BUSY:
      return "it runs another job";
    case v1::WAIT_REASON_GROUP_NOT_READY:
      return "its workers start again";
    case v1::WAIT_REASON_EDGE_FULL:
      return "the stage behind it is busy";
    default:
      return "";
  }
}

std::string describeEnd(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_CANCELLED) return "job " + job.id() + " was cancelled: " + job.error().message();
  return "job " + job.id() + " failed: " + statusCodeName(job.error().code()) + ": " + job.error().message();
}

std::string describeParameters(const v1::JobParameters& parameters) {
  return fmt::format("{} frames, {}x{}, {} steps, guidance {}, seed {}, {} fps", parameters.frames(),
                     parameters.width(), parameters.height(), parameters.steps(),
                     formatNumber(parameters.guidance_scale()), parameters.seed(), formatNumber(parameters.fps()));
}

std::string oneLine(std::string_view text, size_t columns) {
  const bool cut = characters(text) > columns;
  const size_t kept = cut && columns > 3 ? columns - 3 : columns;
  std::string line;
  size_t count = 0;
  for (const char c : text) {
    if ((c & 0xc0) != 0x80 && ++count > kept) break;
    const auto code = static_cast<unsigned char>(c);
    line += code < 0x20 || code == 0x7f ? ' ' : c;
  }
  return cut && columns > 3 ? line + "..." : line;
}

std::string formatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], characters(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - characters(row[i]) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string toJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return "{}\n";
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return "{}\n";
  nameCodes(json);
  return json.dump(pretty ? 1 : -1) + "\n";
}

}  // namespace latentd::ctl
