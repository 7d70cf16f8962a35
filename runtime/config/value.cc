#include "runtime/config/value.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "runtime/config/spelling.h"

namespace latentd::config {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

// Largest first: formatting takes the first that divides.
constexpr std::array<Unit, 5> kByteUnits{{{"TiB", uint64_t{1} << 40},
                                          {"GiB", uint64_t{1} << 30},
                                          {"MiB", uint64_t{1} << 20},
                                          {"KiB", uint64_t{1} << 10},
                                          {"B", 1}}};
constexpr std::array<Unit, 5> kDurationUnits{
    {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};

// In descriptions, where the range allows them.
constexpr double kExampleBytes = 64 << 20;
constexpr double kExampleMilliseconds = 500;

Status refused(const Rule& rule, std::string_view text, std::string_view hint = "") {
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "got " + shown(text) + ", expected " + describe(rule) + std::string(hint));
}

bool within(const Range& range, double value) { return value >= range.min && value <= range.max; }

// The whole text as a number of type T, or nothing.
template <class T>
std::optional<T> parseNumber(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

template <size_t N>
std::optional<uint64_t> parseWithUnit(std::string_view text, const std::array<Unit, N>& units) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::optional<uint64_t> number = parseNumber<uint64_t>(text.substr(0, digits));
  const auto unit =
      std::find_if(units.begin(), units.end(), [&](const Unit& known) { return known.name == text.substr(digits); });
  uint64_t scaled = 0;
  if (!number || unit == units.end() || __builtin_mul_overflow(*number, unit->factor, &scaled)) return std::nullopt;
  return scaled;
}

template <size_t N>
std::string formatWithUnit(uint64_t amount, const std::array<Unit, N>& units) {
  for (const Unit& unit : units) {
    if (amount % unit.factor == 0 && amount > 0) return std::to_string(amount / unit.factor) + std::string(unit.name);
  }
  return "0" + std::string(units.back().name);
}

std::string formatReal(double number) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return std::string(buffer.data(), result.ptr);
}

bool isName(std::string_view text) {
  const auto is_tail = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !text.empty() && text[0] >= 'a' && text[0] <= 'z' && std::all_of(text.begin(), text.end(), is_tail);
}

bool isDottedName(std::string_view text) {
  for (size_t dot; (dot = text.find('.')) != std::string_view::npos; text.remove_prefix(dot + 1)) {
    if (!isName(text.substr(0, dot))) return false;
  }
  return isName(text);
}

std::optional<Endpoint> parseEndpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<uint16_t> port = parseNumber<uint16_t>(text.substr(colon + 1));
  std::string host(text.substr(0, colon));
  std::array<unsigned char, sizeof(in6_addr)> address{};
  const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (in_brackets) host = host.substr(1, host.size() - 2);
  const bool valid = in_brackets ? inet_pton(AF_INET6, host.c_str(), address.data()) == 1
                                 : host == "localhost" || inet_pton(AF_INET, host.c_str(), address.data()) == 1;
  if (!valid || !port) return std::nullopt;
  return Endpoint{host, *port};
}

std::optional<FrameSize> parseFrameSize(const Range& range, std::string_view text) {
  const size_t cross = text.find('x');
  if (cross == std::string_view::npos) return std::nullopt;
  const std::optional<uint32_t> width = parseNumber<uint32_t>(text.substr(0, cross));
  const std::optional<uint32_t> height = parseNumber<uint32_t>(text.substr(cross + 1));
  if (!width || !height || !within(range, *width) || !within(range, *height)) return std::nullopt;
  return FrameSize{*width, *height};
}

std::optional<Device> parseDevice(std::string_view text) {
  constexpr std::string_view kCudaPrefix = "cuda:";
  // More than any host has; keeps a typing error from looking like a device.
  constexpr uint32_t kDeviceIndexMax = 255;
  if (text == "cpu") return Device{};
  if (!text.starts_with(kCudaPrefix)) return std::nullopt;
  const std::optional<uint32_t> index = parseNumber<uint32_t>(text.substr(kCudaPrefix.size()));
  if (!index || *index > kDeviceIndexMax) return std::nullopt;
  return Device{Device::Kind::kCuda, *index};
}

std::optional<MethodRef> parseMethodRef(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  if (!isName(text.substr(0, dot)) || !isName(text.substr(dot + 1))) return std::nullopt;
  return MethodRef{std::string(text.substr(0, dot)), std::string(text.substr(dot + 1))};
}

// Wraps what one of the parsers above gave.
template <class T>
StatusOr<Value> valueOr(const std::optional<T>& parsed, const Rule& rule, std::string_view text) {
  if (!parsed) return refused(rule, text);
  return Value(*parsed);
}

// A number has to be in the rule's range too.
template <class T, class Amount>
StatusOr<Value> inRange(const std::optional<Amount>& parsed, const Rule& rule, std::string_view text) {
  if (!parsed || !within(rule.range, static_cast<double>(*parsed))) return refused(rule, text);
  return Value(T(*parsed));
}

StatusOr<Value> parseText(bool well_formed, const Rule& rule, std::string_view text) {
  if (!well_formed || !within(rule.range, static_cast<double>(text.size()))) return refused(rule, text);
  return Value(std::string(text));
}

StatusOr<Value> parseReal(const Rule& rule, std::string_view text) {
  const std::optional<double> number = parseNumber<double>(text);
  if (!number || !std::isfinite(*number) || !within(rule.range, *number)) return refused(rule, text);
  return Value(*number);
}

StatusOr<Value> parseChoice(const Rule& rule, std::string_view text) {
  if (std::find(rule.choices.begin(), rule.choices.end(), text) != rule.choices.end()) return Value(std::string(text));
  const std::vector<std::string> similar = nearest(text, rule.choices);
  return refused(rule, text, similar.empty() ? "" : "; did you mean " + quotedList(similar) + "?");
}

std::string amount(const Rule& rule, double bound) {
  if (rule.type == Type::kBytes) return formatBytes(static_cast<uint64_t>(bound));
  if (rule.type == Type::kDuration) return formatDuration(milliseconds(static_cast<int64_t>(bound)));
  return rule.type == Type::kReal ? formatReal(bound) : std::to_string(static_cast<int64_t>(bound));
}

std::string span(const Rule& rule) { return amount(rule, rule.range.min) + " to " + amount(rule, rule.range.max); }

}  // namespace

StatusOr<Value> parseScalar(const Rule& rule, std::string_view text) {
  switch (rule.type) {
    case Type::kText:
    case Type::kPath:
      return parseText(true, rule, text);
    case Type::kName:
      return parseText(isName(text), rule, text);
    case Type::kDottedName:
      return parseText(isDottedName(text), rule, text);
    case Type::kCount:
      return inRange<uint64_t>(parseNumber<uint64_t>(text), rule, text);
    case Type::kInteger:
      return inRange<int64_t>(parseNumber<int64_t>(text), rule, text);
    case Type::kReal:
      return parseReal(rule, text);
    case Type::kBytes:
      return inRange<uint64_t>(parseWithUnit(text, kByteUnits), rule, text);
    case Type::kDuration:
      return inRange<milliseconds>(parseWithUnit(text, kDurationUnits), rule, text);
    case Type::kEndpoint:
      return valueOr(parseEndpoint(text), rule, text);
    case Type::kFrameSize:
      return valueOr(parseFrameSize(rule.range, text), rule, text);
    case Type::kMethod:
      return valueOr(parseMethodRef(text), rule, text);
    case Type::kChoice:
      return parseChoice(rule, text);
    case Type::kDevices: {
      const std::optional<Device> device = parseDevice(text);
      if (!device) return refused(rule, text);
      return Value(std::vector<Device>{*device});
    }
    case Type::kSection:
    case Type::kList:
    case Type::kOptions:
      break;
  }
  return refused(rule, text);
}

std::string formatValue(const Rule& rule, const Value& value) {
  struct Formatter {
    const Rule& rule;
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(uint64_t number) const {
      return rule.type == Type::kBytes ? formatBytes(number) : std::to_string(number);
    }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return formatReal(number); }
    std::string operator()(milliseconds duration) const { return formatDuration(duration); }
    std::string operator()(const Endpoint& endpoint) const { return toString(endpoint); }
    std::string operator()(const FrameSize& size) const {
      return std::to_string(size.width) + "x" + std::to_string(size.height);
    }
    std::string operator()(const MethodRef& method) const { return method.group + "." + method.method; }
    std::string operator()(const std::vector<Device>& devices) const {
      std::string text;
      for (const Device& device : devices)
        text += (text.empty() ? "" : ", ") + toString(device);
      return text;
    }
    std::string operator()(const Options& options) const {
      std::string text;
      for (const auto& [name, option] : options)
        text += (text.empty() ? "" : ", ") + name + ": " + option;
      return text;
    }
  };
  return std::visit(Formatter{rule}, value);
}

std::string describe(const Rule& rule) {
  switch (rule.type) {
    case Type::kSection:
      return "a mapping of keys to values";
    case Type::kList:
      return "a list of mappings, " + span(rule) + " entries";
    case Type::kText:
      return "text of " + span(rule) + " bytes";
    case Type::kName:
      return "a name of " + span(rule) + " lower-case letters, digits, '_' and '-', starting with a letter";
    case Type::kDottedName:
      return "names joined by '.', such as wan.denoiser, " + span(rule) + " bytes";
    case Type::kPath:
      return "a path of " + span(rule) + " bytes";
    case Type::kCount:
    case Type::kInteger:
      return "an integer from " + span(rule);
    case Type::kReal:
      return "a number from " + span(rule);
    case Type::kBytes:
      return "a size from " + span(rule) + " with its unit (B, KiB, MiB, GiB, TiB), such as " +
             amount(rule, std::clamp(kExampleBytes, rule.range.min, rule.range.max));
    case Type::kDuration:
      return "a time from " + span(rule) + " with its unit (ms, s, m, h, d), such as " +
             amount(rule, std::clamp(kExampleMilliseconds, rule.range.min, rule.range.max));
    case Type::kEndpoint:
      return "an IP address or localhost and a port, such as 127.0.0.1:7411 or [::1]:0 (port 0: any free one)";
    case Type::kFrameSize:
      return "WIDTHxHEIGHT in pixels, such as 128x128, each from " + span(rule);
    case Type::kMethod:
      return "a group and its method, such as text.encode";
    case Type::kChoice: {
      std::string text = "one of ";
      for (size_t i = 0; i < rule.choices.size(); ++i)
        text += (i == 0 ? "" : ", ") + rule.choices[i];
      return text;
    }
    case Type::kDevices:
      return "a list of " + span(rule) +
             " devices, one for each rank: cpu or cuda:N, such as [cpu] or [cuda:0, cuda:1]";
    case Type::kOptions:
      return "a mapping of at most " + amount(rule, rule.range.max) + " names to plain values";
  }
  return "";
}

std::string formatBytes(uint64_t bytes) { return formatWithUnit(bytes, kByteUnits); }

std::string formatDuration(milliseconds duration) {
  return formatWithUnit(static_cast<uint64_t>(duration.count()), kDurationUnits);
}

}  // namespace latentd::config
