#include "runtime/config/transport.h"

#include "tests/support/catch.h"

namespace latentd::config {
namespace {

GroupSpec groupOn(const std::string& name, std::vector<Device> devices) {
  GroupSpec group;
  group.name = name;
  group.devices = std::move(devices);
  return group;
}

constexpr Device kCpu{Device::Kind::kCpu, 0};
constexpr Device kHost{};
constexpr Device kFirst{Device::Kind::kCuda, 0};
constexpr Device kSecond{Device::Kind::kCuda, 1};

}  // namespace

TEST_CASE("config: the transport of an edge follows from where its groups are, and says why", "[config]") {
  const GroupSpec host = groupOn("text", {kCpu});
  const GroupSpec first = groupOn("denoise", {kFirst});
  const GroupSpec second = groupOn("decode", {kSecond});
  const GroupSpec both = groupOn("both", {kFirst, kSecond});

  CHECK(selectTransport(host, host).transport == Transport::kShm);
  CHECK(selectTransport(first, first).transport == Transport::kCudaIpc);
  CHECK(selectTransport(first, first).reason.find("share their GPUs") != std::string::npos);
  CHECK(selectTransport(both, second).reason.find("share their GPUs") != std::string::npos);
  CHECK(selectTransport(first, second).transport == Transport::kCudaIpc);
  CHECK(selectTransport(first, second).reason.find("GPUs of this host") != std::string::npos);
  CHECK(selectTransport(first, both).reason.find("GPUs of this host") != std::string::npos);

  const TransportChoice down = selectTransport(first, host);
  CHECK(down.transport == Transport::kPinned);
  CHECK(down.reason == "the producer is on a GPU, the consumer on the CPU: tensors are staged in pinned host memory");
  const TransportChoice up = selectTransport(host, second);
  CHECK(up.transport == Transport::kPinned);
  CHECK(up.reason == "the producer is on the CPU, the consumer on a GPU: tensors are staged in pinned host memory");
}

TEST_CASE("config: GPUs that are not peers meet in host memory", "[config]") {
  const DeviceSurvey survey{3, {{0, 1}}};
  const GroupSpec first = groupOn("denoise", {kFirst});
  const GroupSpec second = groupOn("decode", {kSecond});
  const TransportChoice choice = selectTransport(second, first, survey);
  CHECK(choice.transport == Transport::kPinned);
  CHECK(choice.reason == "cuda:1 and cuda:0 are not peers: tensors are staged in pinned host memory");
  CHECK(selectTransport(first, first, survey).transport == Transport::kCudaIpc);
  CHECK(selectTransport(first, groupOn("third", {{Device::Kind::kCuda, 2}}), survey).transport == Transport::kCudaIpc);

  Topology topology;
  topology.groups = {first, second};
  topology.edges.push_back({.name = "a->b", .from = 0, .to = 1, .transport = Transport::kCudaIpc});
  settleTransports(survey, topology);
  CHECK(topology.edges[0].transport == Transport::kPinned);
  CHECK(topology.edges[0].transport_reason.find("not peers") != std::string::npos);

  CHECK(!missingDevice(survey, second));
  CHECK(missingDevice({1, {}}, second) ==
        std::optional<std::string>("group decode is on cuda:1, and this machine has 1 GPU(s), counted from 0"));
  CHECK(!missingDevice({1, {}}, first));
  CHECK(missingDevice({0, {}}, first) ==
        std::optional<std::string>("group denoise is on cuda:0, and this machine has no GPU"));
}

TEST_CASE("config: processes that share a GPU and take turns are told of MPS", "[config]") {
  const std::vector<GroupSpec> groups = {groupOn("text", {kHost, kHost}), groupOn("denoise", {kFirst, kSecond}),
                                         groupOn("decode", {kSecond})};
  const auto turns = turnsTaken({2, {}}, groups);
  REQUIRE(turns);
  CHECK(turns->starts_with("cuda:1 has 2 worker processes, which take turns"));
  CHECK(!turnsTaken({2, {}, true}, groups));
  CHECK(!turnsTaken({1, {}}, groups));
  CHECK(!turnsTaken({2, {}}, {groups[0], groups[1]}));
  CHECK(!turnsTaken({0, {}}, groups));
}

TEST_CASE("config: transports have the names of their backends", "[config]") {
  CHECK(toString(Transport::kShm) == "shm");
  CHECK(toString(Transport::kCudaIpc) == "cuda_ipc");
  CHECK(toString(Transport::kPinned) == "pinned");
}

}  // namespace latentd::config
