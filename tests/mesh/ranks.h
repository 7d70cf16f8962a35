#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "runtime/base/flight_recorder.h"
#include "tests/support/peer_group.h"
#include "tests/support/temp_dir.h"

// Tests of several ranks: a process each, which runs a hidden test case of this very binary.
//
//   TEST_CASE("rank that gathers", "[.][child]") {
//     ChildRank rank;
//     CHECK(allGatherInt(rank.mesh().world(), ...) == ...);
//   }
//   TEST_CASE("collectives: ...", "[mesh]") { Ranks("rank that gathers", {.degrees = {.tp = 2}}).requireSuccess(); }
namespace latentd::mesh::testing {

// What every rank of a test is started with.
struct RanksOptions {
  MeshDegrees degrees;
  std::string setup;                          // for the test case
  std::chrono::milliseconds timeout{20'000};  // of the mesh
  at::Device device = at::kCPU;               // a CUDA device without an index: one GPU a rank
  CommunicationBackend backend = CommunicationBackend::kGloo;
  ScatterTransport ulysses = ScatterTransport::kC10d;
  bool recorder = true;
  bool verify = false;
};

// All ranks of a mesh, seen from the test. What they print comes to the test if one of them fails; whatever still runs
// at the end is killed, and the folder of the rendezvous removed. Thread: one.
class Ranks {
 public:
  Ranks(const std::string& test_case, const RanksOptions& options);

  size_t size() const { return size_; }
  void send(size_t rank, const std::string& text) { children_.send(rank, text); }
  // The rank's next message; the test fails if there is none.
  std::string next(size_t rank);
  // All ranks are at ChildRank::stopHere(), and go on.
  void meet();
  void signal(size_t rank, int number) { children_.signal(rank, number); }
  void kill(size_t rank);

  // Waits for all that were not killed. The test fails, with what they printed, unless every one of them passed.
  void requireSuccess();
  // What the ranks did.
  const FlightRecorder& recorder() const { return *recorder_; }

 private:
  std::string output(size_t rank) const;

  const latentd::testing::TempDir folder_;
  size_t size_;
  std::optional<FlightRecorder> recorder_;
  std::vector<bool> killed_;
  latentd::testing::PeerGroup children_;  // declared last: gone before the folder is
};

// One rank, in its process.
class ChildRank {
 public:
  enum class Start { kMesh, kNothing };
  // Start::kNothing leaves the mesh to the test case.
  explicit ChildRank(Start start = Start::kMesh);

  uint32_t rank() const { return rank_; }
  Mesh& mesh() { return *mesh_; }
  at::Device device() const { return device_; }
  ScatterTransport ulysses() const { return options_.ulysses; }
  const std::string& setup() const { return setup_; }
  // Of the next mesh, which meets at a place of its own. Ranks make as many meshes in the same order. The recorder is
  // the same for all: a process group of one name is used in one of them.
  Mesh::Options options(const MeshDegrees& degrees);
  // The next mesh in place of the last one; nothing on ranks that it has no place for.
  void remake(const MeshDegrees& degrees);
  // In the next meshes.
  void scatterBy(ScatterTransport transport) { options_.ulysses = transport; }
  // Ends the mesh as a worker does that leaves.
  void leave() { mesh_.reset(); }

  void send(const std::string& text) { parent_.send(text); }
  std::string next() { return parent_.next(); }
  // Says "here" and waits to be told on, or to be killed.
  void stopHere();

 private:
  latentd::testing::ParentPipe parent_;
  uint32_t rank_ = 0;
  std::string folder_;
  RanksOptions options_;
  at::Device device_ = at::kCPU;  // this rank's
  std::string setup_;
  int meshes_ = 0;
  std::unique_ptr<Mesh> mesh_;
};

}  // namespace latentd::mesh::testing
