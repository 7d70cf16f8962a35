#pragma once

#include <memory>
#include <random>
#include <string>

#include "tests/channel/channel_rig.h"

// SIGKILL of either side in every state of the state tables, between real processes: the survivor gets UNAVAILABLE in
// time, ends in order, and holds nothing. The endpoints run in hidden test cases of the suite.
namespace latentd::channel::testing {

// What a child's endpoint stands on.
class KillBackend {
 public:
  virtual ~KillBackend() = default;
  virtual std::shared_ptr<Backend> backend() = 0;
  virtual Device device() const = 0;
  virtual Allocator& allocator() = 0;
  // A tensor where the backend has its device, numbered from `first`.
  virtual TensorView floats(int64_t count, float first) = 0;
  virtual float floatAt(const TensorView& view, int64_t index) = 0;
};

enum class Side { kProducer, kConsumer };

// Each test binary defines it, for the transports that it names.
std::shared_ptr<KillBackend> makeKillBackend(const std::string& transport, Side side);

// `reads_ahead`: consumers of the transport do (channel/PROTOCOL.md).
void killInEveryState(const std::string& transport, bool reads_ahead);
// Kills either side at random moments of steady traffic.
void killAtRandom(const std::string& transport, std::mt19937& random, int rounds);

}  // namespace latentd::channel::testing
