#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What a test's process and its importing children say to each other: a line of numbers, then raw bytes.
namespace latentd::channel::testing {

inline constexpr size_t kImportMessageMax = 64 << 10;

enum class ImportCall : int64_t { kImport, kRead, kBorrow, kComplete, kUnmap, kDrop };

struct ImportMessage {
  std::vector<int64_t> numbers;
  std::string bytes;

  std::string encode() const;
  static ImportMessage decode(const std::string& text);
};

// Serialises numbers in the order a reader asks for them.
class NumberReader {
 public:
  explicit NumberReader(const std::vector<int64_t>& numbers) : numbers_(numbers) {}
  int64_t next() { return numbers_.at(position_++); }
  std::vector<int64_t> list() {
    std::vector<int64_t> values(static_cast<size_t>(next()));
    for (int64_t& value : values)
      value = next();
    return values;
  }

 private:
  const std::vector<int64_t>& numbers_;
  size_t position_ = 0;
};

void appendList(std::vector<int64_t>& numbers, const std::vector<int64_t>& values);

// Of a pool's mirror: what was lent lies as in the pool, what was read in a window behind it.
inline constexpr uint64_t kReadWindowBytes = 8 << 20;

}  // namespace latentd::channel::testing
