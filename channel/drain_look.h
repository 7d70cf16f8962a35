#pragma once

#include <functional>
#include <utility>

#include "channel/limits.h"
#include "runtime/base/clock.h"
#include "runtime/base/event_loop.h"

namespace latentd::channel {

// Lets an endpoint that ends look again, after kDrainLook, whether a device has caught up: one look at a time.
// Owner: the endpoint. Thread: its lock; `look` runs on the loop's thread and begins with done().
class DrainLook {
 public:
  void request(EventLoop& loop, const Clock& clock, std::function<void()> look) {
    if (std::exchange(requested_, true)) return;
    loop.post([&loop, &clock, look = std::move(look)] { loop.addTimer(clock.now() + kDrainLook, look); });
  }
  void done() { requested_ = false; }

 private:
  bool requested_ = false;
};

}  // namespace latentd::channel
