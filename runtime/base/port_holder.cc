#include "runtime/base/port_holder.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

namespace latentd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListening = "0A";  // TCP_LISTEN in /proc/net/tcp
constexpr size_t kCommandBytesMax = 200;       // enough to recognise a command; a message stays one line

// "0100007F:1CF3" -> 0x1CF3.
bool hasPort(const std::string& address, uint16_t port) {
  const size_t colon = address.rfind(':');
  return colon != std::string::npos && std::stoul(address.substr(colon + 1), nullptr, 16) == port;
}

// Socket inodes that listen on the port. Columns: sl local_address rem_address st queues timer retransmits uid timeout
// inode.
void collectListeners(const char* table, uint16_t port, std::set<std::string>& inodes) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // the header
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (words && state == kListening && hasPort(local, port)) inodes.insert("socket:[" + inode + "]");
  }
}

std::string commandLine(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  while (!command.empty() && command.back() == '\0')
    command.pop_back();
  for (char& c : command) {
    if (!std::isprint(static_cast<unsigned char>(c))) c = ' ';
  }
  if (command.size() > kCommandBytesMax) command = command.substr(0, kCommandBytesMax) + "...";
  return command;
}

bool holds(const fs::path& process, const std::set<std::string>& inodes) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (inodes.count(fs::read_symlink(it->path(), gone).string()) > 0) return true;
  }
  return false;
}

}  // namespace

std::string describePortHolder(uint16_t port) {
  std::set<std::string> inodes;
  collectListeners("/proc/net/tcp", port, inodes);
  collectListeners("/proc/net/tcp6", port, inodes);
  if (inodes.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename();
    if (!std::isdigit(static_cast<unsigned char>(pid.front())) || !holds(it->path(), inodes)) continue;
    return "pid " + pid + " (" + commandLine(it->path()) + ")";
  }
  return "a process that this user may not inspect (try `ss -ltnp` as root)";
}

}  // namespace latentd
