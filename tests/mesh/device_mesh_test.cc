#include "mesh/device_mesh.h"

#include <algorithm>
#include <functional>
#include <set>

#include "tests/support/catch.h"

namespace latentd::mesh {
namespace {

using Degrees = std::array<uint32_t, 7>;  // in the order of kMeshDims

MeshDegrees named(const Degrees& d) { return {d[0], d[1], d[2], d[3], d[4], d[5], d[6]}; }

// Every way to write `ranks` as a product of seven degrees.
void forEachFactorisation(uint32_t ranks, const std::function<void(const Degrees&)>& visit) {
  Degrees degrees{};
  const std::function<void(size_t, uint32_t)> choose = [&](size_t dim, uint32_t left) {
    if (dim == degrees.size() - 1) {
      degrees[dim] = left;
      return visit(degrees);
    }
    for (uint32_t degree = 1; degree <= left; ++degree) {
      if (left % degree != 0) continue;
      degrees[dim] = degree;
      choose(dim + 1, left / degree);
    }
  };
  choose(0, ranks);
}

// The ranks in order are what seven nested loops count out, the outermost dimension slowest: no division, no stride.
std::vector<Degrees> countedOut(const Degrees& d) {
  std::vector<Degrees> coordinates;
  for (uint32_t dp = 0; dp < d[0]; ++dp)
    for (uint32_t cfg = 0; cfg < d[1]; ++cfg)
      for (uint32_t ring = 0; ring < d[2]; ++ring)
        for (uint32_t ulysses = 0; ulysses < d[3]; ++ulysses)
          for (uint32_t spatial = 0; spatial < d[4]; ++spatial)
            for (uint32_t pp = 0; pp < d[5]; ++pp)
              for (uint32_t tp = 0; tp < d[6]; ++tp)
                coordinates.push_back({dp, cfg, ring, ulysses, spatial, pp, tp});
  return coordinates;
}

void checkMesh(const Degrees& degrees, uint32_t ranks) {
  const auto mesh = DeviceMesh::make(named(degrees), ranks);
  REQUIRE(mesh.ok());
  const std::vector<Degrees> expected = countedOut(degrees);
  REQUIRE(expected.size() == ranks);
  for (size_t d = 0; d < kMeshDims.size(); ++d) {
    const MeshDim dim = kMeshDims[d];
    std::set<std::vector<uint32_t>> sets;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(mesh->coordinate(Rank(rank), dim) == expected[rank][d]);
      // Peers: all ranks that agree in every other dimension, found by looking at all of them.
      std::vector<uint32_t> agreeing;
      for (uint32_t other = 0; other < ranks; ++other) {
        Degrees moved = expected[other];
        moved[d] = expected[rank][d];
        if (moved == expected[rank]) agreeing.push_back(other);
      }
      std::vector<uint32_t> peers;
      for (const Rank peer : mesh->peers(Rank(rank), dim))
        peers.push_back(peer.value);
      REQUIRE(peers == agreeing);
      sets.insert(agreeing);
    }
    REQUIRE(mesh->groups(dim).size() == sets.size());
  }
}

}  // namespace

TEST_CASE("mesh: coordinates and peers of every factorisation of 1 to 16 ranks", "[mesh]") {
  size_t meshes = 0;
  for (uint32_t ranks = 1; ranks <= 16; ++ranks) {
    forEachFactorisation(ranks, [&](const Degrees& degrees) {
      checkMesh(degrees, ranks);
      ++meshes;
    });
  }
  CHECK(meshes > 500);
}

TEST_CASE("mesh: a sequence is cut along ring first, then along ulysses", "[mesh]") {
  const auto mesh = DeviceMesh::make({.cfg = 2, .ring = 2, .ulysses = 2, .tp = 2}, 16);
  REQUIRE(mesh.ok());
  CHECK(mesh->sequenceDegree() == 4);
  for (uint32_t rank = 0; rank < 16; ++rank) {
    const std::vector<Rank> peers = mesh->sequencePeers(Rank(rank));
    REQUIRE(peers.size() == 4);
    for (uint32_t position = 0; position < 4; ++position) {
      CHECK(mesh->sequenceCoordinate(peers[position]) == position);
      CHECK(mesh->coordinate(peers[position], MeshDim::kCfg) == mesh->coordinate(Rank(rank), MeshDim::kCfg));
      CHECK(mesh->coordinate(peers[position], MeshDim::kTensorParallel) == rank % 2);
    }
    CHECK(std::count(peers.begin(), peers.end(), Rank(rank)) == 1);
  }
}

TEST_CASE("mesh: degrees that do not make the group's ranks are refused with both numbers", "[mesh]") {
  const auto refused = DeviceMesh::make({.cfg = 2, .ulysses = 3}, 4);
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(messageOf(refused.status()) ==
        "the degrees dp 1 x cfg 2 x ring 1 x ulysses 3 x spatial 1 x pp 1 x tp 1 make 6 ranks, the group has 4");
  CHECK(messageOf(DeviceMesh::make({.tp = 0}, 1).status()).find("degree tp is 0") != std::string::npos);
  // The product of large degrees does not wrap around to the number of ranks.
  CHECK_FALSE(DeviceMesh::make({.dp = 65536, .cfg = 65536}, 0).ok());
  CHECK_FALSE(DeviceMesh::make({.dp = 65536, .cfg = 65537}, 65536).ok());
}

TEST_CASE("mesh: the place of a rank has the dimensions of more than one, in their order", "[mesh]") {
  const auto mesh = DeviceMesh::make({.cfg = 2, .ulysses = 2, .tp = 3}, 12);
  REQUIRE(mesh.ok());
  CHECK(toString(mesh->place(Rank(0))) == "cfg 0, ulysses 0, tp 0");
  CHECK(toString(mesh->place(Rank(10))) == "cfg 1, ulysses 1, tp 1");
  CHECK(DeviceMesh::make({}, 1)->place(Rank(0)).empty());
}

}  // namespace latentd::mesh
