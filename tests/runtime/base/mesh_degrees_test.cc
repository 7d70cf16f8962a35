#include "runtime/base/mesh_degrees.h"

#include "tests/support/catch.h"

namespace latentd {
namespace {

TEST_CASE("mesh degrees: those that do anything are told, or all", "[base]") {
  CHECK(toString(MeshDegrees{}).empty());
  CHECK(toString(MeshDegrees{.cfg = 2, .ulysses = 4, .tp = 3}) == "cfg 2 x ulysses 4 x tp 3");
  CHECK(fullText(MeshDegrees{.dp = 2}) == "dp 2 x cfg 1 x ring 1 x ulysses 1 x spatial 1 x pp 1 x tp 1");
}

TEST_CASE("mesh degrees: each dimension has its own, and their product does not wrap around", "[base]") {
  MeshDegrees degrees;
  uint32_t next = 2;
  for (const MeshDim dim : kMeshDims)
    degrees.of(dim) = next++;
  CHECK(degrees.dp == 2);
  CHECK(degrees.cfg == 3);
  CHECK(degrees.ring == 4);
  CHECK(degrees.ulysses == 5);
  CHECK(degrees.spatial == 6);
  CHECK(degrees.pp == 7);
  CHECK(degrees.tp == 8);
  CHECK(degrees.product() == 2 * 3 * 4 * 5 * 6 * 7 * 8);
  CHECK(MeshDegrees{.dp = 65536, .cfg = 65536}.product() == UINT32_MAX);
  CHECK(MeshDegrees{.dp = 65536, .cfg = 65536, .tp = 65536}.product() == UINT32_MAX);
}

}  // namespace
}  // namespace latentd
