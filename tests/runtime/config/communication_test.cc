#include "runtime/config/communication.h"

#include "tests/support/catch.h"

namespace latentd::config {
namespace {

constexpr Device kCpu{Device::Kind::kCpu, 0};
constexpr Device kFirst{Device::Kind::kCuda, 0};
constexpr Device kSecond{Device::Kind::kCuda, 1};

GroupSpec settled(std::vector<Device> devices, Communication asked = Communication::kAuto) {
  GroupSpec group;
  group.devices = std::move(devices);
  group.communication = asked;
  CHECK(settleCommunication(group).ok());
  return group;
}

TEST_CASE("config: what carries collectives follows from the ranks' devices, and says why", "[config]") {
  CHECK(settled({kCpu, kCpu}).communication == Communication::kGloo);
  CHECK(settled({kCpu, kCpu}).communication_reason == "its ranks are on the CPU");
  CHECK(settled({kFirst, kSecond}).communication == Communication::kNccl);
  CHECK(settled({kFirst, kSecond}).communication_reason == "each of its ranks has a GPU of its own");
  CHECK(settled({kFirst, kSecond, kFirst}).communication == Communication::kGloo);
  CHECK(settled({kFirst, kSecond, kFirst}).communication_reason == "its ranks 0 and 2 share cuda:0");
}

TEST_CASE("config: what the file asks for holds where it is possible", "[config]") {
  const GroupSpec staged = settled({kFirst, kSecond}, Communication::kGloo);
  CHECK(staged.communication == Communication::kGloo);
  CHECK(staged.communication_reason == "the topology says so");
  CHECK(settled({kFirst, kSecond}, Communication::kNccl).communication == Communication::kNccl);
  GroupSpec impossible;
  impossible.devices = {kFirst, kFirst};
  impossible.communication = Communication::kNccl;
  CHECK(settleCommunication(impossible).code() == absl::StatusCode::kInvalidArgument);
}

GroupSpec scattered(Device device, UlyssesTransport asked = UlyssesTransport::kAuto) {
  GroupSpec group;
  group.devices = {device, device};
  group.ulysses_transport = asked;
  CHECK(settleUlyssesTransport(group).ok());
  return group;
}

TEST_CASE("config: what carries scattered heads follows from the ranks' devices, unless the file says it", "[config]") {
  CHECK(scattered(kCpu).ulysses_transport == UlyssesTransport::kShm);
  CHECK(scattered(kCpu).ulysses_transport_reason == "its ranks are on the CPU");
  CHECK(scattered(kFirst).ulysses_transport == UlyssesTransport::kCudaIpc);
  CHECK(scattered(kFirst).ulysses_transport_reason == "its ranks are on GPUs");
  CHECK(scattered(kCpu, UlyssesTransport::kC10d).ulysses_transport == UlyssesTransport::kC10d);
  CHECK(scattered(kCpu, UlyssesTransport::kShm).ulysses_transport_reason == "the topology says so");
  GroupSpec impossible;
  impossible.devices = {kFirst, kSecond};
  impossible.ulysses_transport = UlyssesTransport::kShm;
  CHECK(
      settleUlyssesTransport(impossible) ==
      absl::InvalidArgumentError("'shm' needs ranks on the CPU, and rank 0 is on cuda:0; give cuda_ipc, c10d or auto"));
  impossible.devices = {kCpu, kCpu};
  impossible.ulysses_transport = UlyssesTransport::kCudaIpc;
  CHECK(settleUlyssesTransport(impossible) ==
        absl::InvalidArgumentError("'cuda_ipc' needs ranks on GPUs, and rank 0 is on cpu; give shm, c10d or auto"));
}

}  // namespace
}  // namespace latentd::config
