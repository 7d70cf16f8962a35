#include "tests/channel/cuda/import_messages.h"

#include <sstream>

namespace latentd::channel::testing {

std::string ImportMessage::encode() const {
  std::ostringstream text;
  text << numbers.size();
  for (const int64_t number : numbers)
    text << ' ' << number;
  text << '\n' << bytes;
  return text.str();
}

ImportMessage ImportMessage::decode(const std::string& text) {
  ImportMessage message;
  const size_t end = text.find('\n');
  std::istringstream line(text.substr(0, end));
  size_t count = 0;
  line >> count;
  message.numbers.resize(count);
  for (int64_t& number : message.numbers)
    line >> number;
  message.bytes = text.substr(end + 1);
  return message;
}

void appendList(std::vector<int64_t>& numbers, const std::vector<int64_t>& values) {
  numbers.push_back(static_cast<int64_t>(values.size()));
  numbers.insert(numbers.end(), values.begin(), values.end());
}

}  // namespace latentd::channel::testing
