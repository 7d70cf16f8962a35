#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/config/topology.h"

// Values as they stand in the topology file: text with a unit in, typed value out, and back.
namespace latentd::config {

enum class Type {
  kSection,     // a mapping of further keys
  kList,        // a sequence of mappings
  kText,        // any text
  kName,        // lower-case letters, digits, '_' and '-', starting with a letter
  kDottedName,  // names joined by '.', "wan.denoiser"
  kPath,        // relative to the file's folder
  kCount,       // unsigned integer
  kInteger,     // signed integer
  kReal,        // finite number
  kBytes,       // 64KiB, 1GiB
  kDuration,    // 500ms, 1h
  kEndpoint,    // 127.0.0.1:7411
  kFrameSize,   // 128x128
  kMethod,      // text.encode: a group and one of its methods
  kChoice,      // one of a list of words
  kDevices,     // sequence of cpu and cuda:N
  kOptions,     // mapping of names to scalars
};

// Bounds of a number, inclusive. For kText, kName, kPath and the like: of the length in bytes; for kDevices and
// kOptions: of the number of entries; for kDuration: in milliseconds. All bounds are exact in a double.
struct Range {
  double min = 0;
  double max = 0;
};

struct Rule {
  Type type = Type::kText;
  Range range;
  std::vector<std::string> choices;  // kChoice only
};

struct FrameSize {
  uint32_t width = 0;   // pixels
  uint32_t height = 0;  // pixels
};

struct MethodRef {
  std::string group;
  std::string method;
};

using Options = std::map<std::string, std::string>;
using Value = std::variant<std::string, uint64_t, int64_t, double, milliseconds, Endpoint, FrameSize, MethodRef,
                           std::vector<Device>, Options>;

// The value of a scalar; INVALID_ARGUMENT says what was got and what is expected. Not for kSection, kList, kOptions;
// for kDevices the text is one device.
StatusOr<Value> parseScalar(const Rule& rule, std::string_view text);

// The canonical text of a value: parseScalar() of it gives the value again.
std::string formatValue(const Rule& rule, const Value& value);

// "an integer from 1 to 64", "a size from 1MiB to 1TiB with its unit, such as 64MiB": for errors and the schema.
std::string describe(const Rule& rule);

std::string formatBytes(uint64_t bytes);            // exact: "1GiB", "1500KiB", "17B"
std::string formatDuration(milliseconds duration);  // exact: "1h", "90s", "1500ms"

}  // namespace latentd::config
