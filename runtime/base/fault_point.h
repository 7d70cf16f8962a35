#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace latentd {

// Named places where a test makes code fail, stop or die. Production code gets a null FaultPoints: the macro below is
// then one predictable branch.
// Owner: the test. Thread: any. States: none. Failure: what the armed action returns.
class FaultPoints {
 public:
  using Action = std::function<Status()>;

  // The action runs at hit number `countdown` (0: the next one) of the point and at every later one.
  void arm(std::string_view point, uint64_t countdown, Action action);
  void disarm(std::string_view point);

  // Called by LATENTD_FAULT_POINT. The action runs outside the lock; it may block or end the process.
  Status hit(std::string_view point);
  // How often the point was reached.
  uint64_t hits(std::string_view point) const;

 private:
  struct Armed {
    uint64_t countdown = 0;
    Action action;
  };

  mutable Mutex mutex_;
  std::map<std::string, Armed, std::less<>> armed_ GUARDED_BY(mutex_);
  std::map<std::string, uint64_t, std::less<>> hits_ GUARDED_BY(mutex_);
};

}  // namespace latentd

// Returns the armed failure from the enclosing function. `points` may be null.
#define LATENTD_FAULT_POINT(points, name)                                                            \
  do {                                                                                               \
    if (::latentd::FaultPoints* latentd_points = (points); latentd_points != nullptr) [[unlikely]] { \
      LATENTD_RETURN_IF_ERROR(latentd_points->hit(name));                                            \
    }                                                                                                \
  } while (false)
