#include "tests/mesh/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include <ATen/Parallel.h>

#include "runtime/base/shm_region.h"
#include "tests/support/catch.h"

namespace latentd::mesh::testing {
namespace {

constexpr int kRecorderFd = 4;  // 3 is the pipe to the parent

std::string outputFile(const std::string& folder, size_t rank) { return folder + "/rank" + std::to_string(rank); }

// One line of words, then the test case's own text.
std::string encode(const RanksOptions& options, const std::string& folder, size_t rank) {
  std::ostringstream line;
  line << folder << ' ' << rank << ' ' << options.timeout.count() << ' ' << options.device << ' '
       << static_cast<int>(options.backend) << ' ' << static_cast<int>(options.ulysses) << ' ' << options.recorder
       << ' ' << options.verify;
  for (const MeshDim dim : kMeshDims)
    line << ' ' << options.degrees.of(dim);
  return line.str() + "\n" + options.setup;
}

FlightRecorder attached(int fd, size_t rank) {
  auto own = duplicateFd(fd);
  REQUIRE(own.ok());
  auto region = ShmRegion::map(*std::move(own), 1);
  REQUIRE(region.ok());
  auto recorder = FlightRecorder::attach(*std::move(region), Rank(static_cast<uint32_t>(rank)));
  REQUIRE(recorder.ok());
  return *std::move(recorder);
}

}  // namespace

Ranks::Ranks(const std::string& test_case, const RanksOptions& options)
    : size_(options.degrees.product()), killed_(size_, false) {
  auto region = FlightRecorder::createRegion(static_cast<uint32_t>(size_));
  REQUIRE(region.ok());
  recorder_ = attached(region->fd(), 0);
  for (size_t rank = 0; rank < size_; ++rank)
    children_.start(test_case, encode(options, folder_.path(), rank), {region->fd()});
  meet();  // short time-outs of a test count from here, not from the start of the slowest process
}

void Ranks::meet() {
  for (size_t rank = 0; rank < size_; ++rank)
    REQUIRE(next(rank) == "here");
  for (size_t rank = 0; rank < size_; ++rank)
    send(rank, "go");
}

std::string Ranks::output(size_t rank) const {
  std::ifstream file(outputFile(folder_.path(), rank));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Ranks::next(size_t rank) {
  auto text = children_.next(rank);
  if (!text) FAIL("rank " << rank << " said nothing:\n" << output(rank));
  return *std::move(text);
}

void Ranks::kill(size_t rank) {
  children_.kill(rank);
  killed_[rank] = true;
}

void Ranks::requireSuccess() {
  std::string failures;
  for (size_t rank = 0; rank < size_; ++rank) {
    if (killed_[rank]) continue;
    const std::optional<int> code = children_.wait(rank);
    if (code == 0) continue;
    failures += "rank " + std::to_string(rank) +
                (code ? " ended with " + std::to_string(*code) : std::string(" still runs")) + ":\n" + output(rank);
  }
  if (!failures.empty()) FAIL(failures);
}

ChildRank::ChildRank(Start start) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);  // as in a worker: Gloo writes to connections that a peer closed
  at::set_num_threads(1);
  std::istringstream text(parent_.next());
  std::string line;
  std::getline(text, line);
  setup_.assign(std::istreambuf_iterator<char>(text), {});
  std::istringstream words(line);
  std::string device;
  int64_t timeout = 0;
  int backend = 0;
  int ulysses = 0;
  MeshDegrees& d = options_.degrees;
  words >> folder_ >> rank_ >> timeout >> device >> backend >> ulysses >> options_.recorder >> options_.verify;
  words >> d.dp >> d.cfg >> d.ring >> d.ulysses >> d.spatial >> d.pp >> d.tp;
  options_.timeout = std::chrono::milliseconds(timeout);
  options_.backend = static_cast<CommunicationBackend>(backend);
  options_.ulysses = static_cast<ScatterTransport>(ulysses);
  device_ = at::Device(device);
  if (device_.is_cuda() && !device_.has_index()) device_.set_index(static_cast<c10::DeviceIndex>(rank_));
  // The reporter's standard output: the parent shows it if this rank fails.
  const UniqueFd output(::open(outputFile(folder_, rank_).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ::dup2(output.get(), STDOUT_FILENO);
  stopHere();
  if (start == Start::kMesh) remake(options_.degrees);
}

Mesh::Options ChildRank::options(const MeshDegrees& degrees) {
  Mesh::Options options;
  options.degrees = degrees;
  options.rank = Rank(rank_);
  options.device = device_;
  options.backend = options_.backend;
  options.ulysses = options_.ulysses;
  options.rendezvous_file = folder_ + "/rendezvous" + std::to_string(meshes_++);
  options.timeout = options_.timeout;
  if (options_.recorder) options.recorder = attached(kRecorderFd, rank_);
  options.verify = options_.verify;
  return options;
}

void ChildRank::remake(const MeshDegrees& degrees) {
  mesh_.reset();
  Mesh::Options next = options(degrees);
  if (rank_ >= degrees.product()) return;
  auto made = Mesh::make(std::move(next));
  REQUIRE(made.status() == absl::OkStatus());
  mesh_ = *std::move(made);
}

void ChildRank::stopHere() {
  send("here");
  next();
}

}  // namespace latentd::mesh::testing
