#include "mesh/first_cause.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/base/unique_fd.h"

namespace latentd::mesh {
namespace {

// Nothing longer is a cause that we wrote.
constexpr size_t kTextMax = 16 << 10;

std::string encode(const Status& status) {
  return std::to_string(static_cast<int>(status.code())) + " " + messageOf(status);
}

std::optional<Status> decode(const std::string& text) {
  std::istringstream in(text);
  int code = 0;
  if (!(in >> code) || code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) return std::nullopt;
  in.get();
  return makeStatus(static_cast<absl::StatusCode>(code), std::string(std::istreambuf_iterator<char>(in), {}));
}

}  // namespace

std::optional<Status> FirstCause::given() const {
  if (::access(path_.c_str(), F_OK) != 0) return std::nullopt;  // the usual case, and looked at before each operation
  std::ifstream file(path_, std::ios::binary);
  std::string text(kTextMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return decode(text);
}

Status FirstCause::give(const Status& mine) const {
  if (auto theirs = given()) return *std::move(theirs);
  // Of this call alone: threads of one process may give at once too.
  std::string whole = path_ + ".XXXXXX";
  const UniqueFd file(::mkostemp(whole.data(), O_CLOEXEC));
  if (!file.valid()) return mine;
  const std::string text = encode(mine).substr(0, kTextMax);
  // A link appears with all of its content, and only one rank can make it.
  const bool first = ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                     ::link(whole.c_str(), path_.c_str()) == 0;
  ::unlink(whole.c_str());
  return first ? mine : given().value_or(mine);
}

}  // namespace latentd::mesh
