#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/event.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/stream.h"
#include "runtime/cuda/stream_drain.h"
#include "tests/support/catch.h"
#include "tests/support/child_test_case.h"
#include "tests/support/stream_blocker.h"

// Needs a GPU, or the emulation. The other process of the interprocess cases is a hidden case of this binary.
namespace latentd::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ChildTestCase;
using testing::StreamBlocker;

constexpr DeviceIndex kDevice{0};
constexpr size_t kBytes = 2 << 20;  // a block: what is smaller is exported with its neighbours

// What two processes of a hand-off exchange at the start.
struct Handles {
  MemoryHandle memory;
  EventHandle ready;
};

Stream makeStream() {
  auto stream = Stream::create(kDevice);
  REQUIRE(stream.ok());
  return *std::move(stream);
}

DeviceBuffer makeBuffer(uint64_t bytes) {
  auto buffer = DeviceBuffer::allocate(kDevice, bytes);
  REQUIRE(buffer.ok());
  return *std::move(buffer);
}

std::vector<unsigned char> bytesOf(const void* device, const Stream& stream) {
  std::vector<unsigned char> host(kBytes);
  REQUIRE(cudaMemcpyAsync(host.data(), device, kBytes, cudaMemcpyDeviceToHost, stream.view().get()) == cudaSuccess);
  REQUIRE(stream.synchronize().ok());
  return host;
}

TEST_CASE("cuda: a device has a name for every process, and memory", "[cuda]") {
  const auto uuid = deviceUuid(kDevice);
  REQUIRE(uuid.ok());
  CHECK(uuid->size() == std::string("GPU-").size() + 36);
  const auto memory = deviceMemory(kDevice);
  REQUIRE(memory.ok());
  CHECK(memory->free_bytes <= memory->total_bytes);
  CHECK(deviceMemory(DeviceIndex(4711)).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("cuda: an allocation that does not fit names its bytes and leaves the context usable", "[cuda]") {
  const auto huge = DeviceBuffer::allocate(kDevice, uint64_t{1} << 50);
  REQUIRE(huge.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(messageOf(huge.status()).find("1125899906842624") != std::string::npos);
  CHECK(makeBuffer(kBytes).data() != nullptr);
}

TEST_CASE("cuda: a stream waits for an event of another one", "[cuda]") {
  const Stream producer = makeStream();
  const Stream consumer = makeStream();
  const DeviceBuffer buffer = makeBuffer(kBytes);
  REQUIRE(cudaMemsetAsync(buffer.data(), 1, kBytes, consumer.view().get()) == cudaSuccess);
  REQUIRE(consumer.synchronize().ok());
  auto event = Event::create(kDevice);
  REQUIRE(event.ok());
  StreamBlocker blocker(producer.view());
  REQUIRE(cudaMemsetAsync(buffer.data(), 2, kBytes, producer.view().get()) == cudaSuccess);
  REQUIRE(event->record(producer.view()).ok());
  CHECK_FALSE(event->complete().value());
  REQUIRE(event->makeWait(consumer.view()).ok());
  blocker.release();
  CHECK(bytesOf(buffer.data(), consumer) == std::vector<unsigned char>(kBytes, 2));
  CHECK(event->complete().value());
}

TEST_CASE("cuda: draining ends with the work, or at the deadline", "[cuda]") {
  const Stream stream = makeStream();
  CHECK(drain(stream.view(), milliseconds(0)).ok());
  StreamBlocker blocker(stream.view());
  CHECK(drain(stream.view(), milliseconds(20)).code() == absl::StatusCode::kDeadlineExceeded);
  blocker.release();
  CHECK(drain(stream.view(), seconds(10)).ok());
}

TEST_CASE("cuda: another process reads memory once its event is complete", "[cuda]") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  ChildTestCase child("cuda child that reads imported memory", {theirs.get()});
  theirs.reset();

  const Stream stream = makeStream();
  const DeviceBuffer buffer = makeBuffer(kBytes);
  auto ready = Event::createInterprocess(kDevice);
  REQUIRE(ready.ok());
  REQUIRE(cudaMemsetAsync(buffer.data(), 1, kBytes, stream.view().get()) == cudaSuccess);
  REQUIRE(stream.synchronize().ok());
  StreamBlocker blocker(stream.view());
  REQUIRE(cudaMemsetAsync(buffer.data(), 7, kBytes, stream.view().get()) == cudaSuccess);
  REQUIRE(ready->record(stream.view()).ok());
  const Handles handles{buffer.exportHandle().value(), ready->exportHandle().value()};
  REQUIRE(send(ours.get(), &handles, sizeof(handles), 0) == sizeof(handles));
  // The child has imported both and its stream waits.
  char byte;
  REQUIRE(recv(ours.get(), &byte, 1, 0) == 1);
  blocker.release();
  CHECK(child.wait(seconds(60)) == 0);
}

TEST_CASE("cuda child that reads imported memory", "[.][child]") {
  Handles handles;
  REQUIRE(recv(3, &handles, sizeof(handles), 0) == sizeof(handles));
  const Stream stream = makeStream();
  auto memory = ImportedMemory::open(kDevice, handles.memory);
  REQUIRE(memory.ok());
  auto ready = Event::import(kDevice, handles.ready);
  REQUIRE(ready.ok());
  CHECK_FALSE(ready->complete().value());
  REQUIRE(ready->makeWait(stream.view()).ok());
  REQUIRE(send(3, "x", 1, 0) == 1);
  CHECK(bytesOf(memory->data(), stream) == std::vector<unsigned char>(kBytes, 7));
}

}  // namespace
}  // namespace latentd::cuda
