#include "tests/channel/channel_rig.h"

#include <stdlib.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "tests/support/catch.h"

namespace latentd::channel::testing {

bool eventually(const std::function<bool()>& holds) {
  const Clock::TimePoint deadline = soon();
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // between looks, not for synchronisation
  }
  return true;
}

uint32_t testSeed() {
  const char* given = std::getenv("LATENTD_TEST_SEED");
  return given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
}

size_t openDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

void Heard::add(const Transfer& transfer) {
  MutexLock lock(mutex_);
  transfers_.push_back(transfer);
}

void Heard::fail(const Status& status) {
  MutexLock lock(mutex_);
  failures_.push_back(status);
}

void Heard::retire() {
  MutexLock lock(mutex_);
  ++retirements_;
}

std::vector<Transfer> Heard::transfers() const {
  MutexLock lock(mutex_);
  return transfers_;
}

std::vector<Status> Heard::failures() const {
  MutexLock lock(mutex_);
  return failures_;
}

uint32_t Heard::retirements() const {
  MutexLock lock(mutex_);
  return retirements_;
}

ChannelSpec smallSpec() {
  ChannelSpec spec;
  spec.channel_id = 7;
  spec.edge = "a.out->b.in";
  spec.producer_epoch = Epoch(3);
  spec.consumer_epoch = Epoch(5);
  spec.unpooled_bytes_max = 1 << 20;
  spec.progress_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
  return spec;
}

Rig::Rig(const ContractBackend& backend, const ChannelSpec& spec)
    : spec_(spec), backend_(backend), loop_(clock_, "rig-loop") {
  for (uint32_t p = 0; p < spec.producer_ranks; ++p) {
    addresses_.push_back(backend.address(dir_, p));
    ProducerCallbacks callbacks;
    callbacks.on_transfer_done = [this](const Transfer& transfer) { producer_heard_.add(transfer); };
    callbacks.on_failed = [this](const Status& status) { producer_heard_.fail(status); };
    callbacks.on_retired = [this] { producer_heard_.retire(); };
    auto producer = openProducer(spec, Rank(p), addresses_[p], context(), callbacks);
    REQUIRE(producer.status().ToString() == "OK");
    producers_.push_back(*std::move(producer));
  }
  for (uint32_t c = 0; c < spec.consumer_ranks; ++c) {
    ConsumerCallbacks callbacks;
    callbacks.on_failed = [this](const Status& status) { consumer_heard_.fail(status); };
    callbacks.on_retired = [this] { consumer_heard_.retire(); };
    auto consumer = openConsumer(spec, Rank(c), addresses_, Device{}, context(), callbacks);
    REQUIRE(consumer.status().ToString() == "OK");
    consumers_.push_back(*std::move(consumer));
  }
  REQUIRE(eventually([this] {
    for (const auto& producer : producers_) {
      if (!producer->bound()) return false;
    }
    return true;
  }));
}

Rig::~Rig() {
  CHECK(closeAll().ToString() == "OK");
  consumers_.clear();
  producers_.clear();
}

Status Rig::closeAll() {
  for (const auto& consumer : consumers_)
    consumer->close();
  for (const auto& producer : producers_)
    producer->close();
  for (const auto& consumer : consumers_)
    LATENTD_RETURN_IF_ERROR(consumer->join(soon()));
  for (const auto& producer : producers_)
    LATENTD_RETURN_IF_ERROR(producer->join(soon()));
  return absl::OkStatus();
}

ChannelContext Rig::context() { return {backend_.backend, &loop_.loop(), &clock_, &faults_}; }

StatusOr<ArtifactTree> Rig::receive(uint64_t number, uint32_t rank) {
  WaitOptions wait;
  wait.deadline = clock_.now() + kPatience;
  return consumers_[rank]->receive(SequenceNumber(number), cache_, wait);
}

Status Rig::publish(uint64_t number, const ArtifactTree& tree, uint32_t rank) {
  WaitOptions wait;
  wait.deadline = clock_.now() + kPatience;
  return producers_[rank]->publish(SequenceNumber(number), tree, wait);
}

}  // namespace latentd::channel::testing
