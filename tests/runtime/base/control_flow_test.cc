#include <future>

#include "runtime/base/fault_point.h"
#include "runtime/base/gate.h"
#include "runtime/base/state_machine.h"
#include "tests/support/catch.h"

namespace latentd {
namespace {

enum class Door { kOpen, kShut, kLocked };

constexpr TransitionTable<Door, 3> kDoor{{
    {Door::kOpen, Door::kShut, "pushed"},
    {Door::kShut, Door::kOpen, "pulled"},
    {Door::kShut, Door::kLocked, "key"},
}};
static_assert(isWellFormed(kDoor));
static_assert(allows(kDoor, Door::kShut, Door::kLocked));
static_assert(!allows(kDoor, Door::kOpen, Door::kLocked));
static_assert(!isWellFormed(TransitionTable<Door, 2>{
    {{Door::kOpen, Door::kShut, "a"}, {Door::kOpen, Door::kShut, "b"}}}));
static_assert(!isWellFormed(TransitionTable<Door, 1>{{{Door::kOpen, Door::kShut, ""}}}));

Status risky(FaultPoints* faults) {
  LATENTD_FAULT_POINT(faults, "risky");
  return absl::OkStatus();
}

}  // namespace

TEST_CASE("state machine: moves along its table only", "[base]") {
  StateMachine<kDoor, Door> door(Door::kOpen);
  CHECK_FALSE(door.can(Door::kLocked));
  door.move(Door::kShut);
  CHECK(door.can(Door::kOpen));
  door.move(Door::kLocked);
  CHECK(door.is(Door::kLocked));
  CHECK_FALSE(door.can(Door::kOpen));
}

TEST_CASE("fault point: fails from its countdown on, until disarmed", "[base]") {
  CHECK(risky(nullptr).ok());
  FaultPoints faults;
  faults.arm("risky", 2, [] { return absl::InternalError("injected"); });
  CHECK(risky(&faults).ok());
  CHECK(risky(&faults).ok());
  CHECK(risky(&faults).code() == absl::StatusCode::kInternal);
  CHECK(risky(&faults).code() == absl::StatusCode::kInternal);
  faults.disarm("risky");
  CHECK(risky(&faults).ok());
  CHECK(faults.hits("risky") == 5);
  CHECK(faults.hits("other") == 0);
}

TEST_CASE("gate: refuses after the close and waits for what is inside", "[base]") {
  Gate gate;
  std::optional<Gate::Pass> pass = gate.enter();
  REQUIRE(pass.has_value());
  Gate::Pass moved = *std::move(pass);
  pass.reset();
  CHECK(gate.inFlight() == 1);
  gate.close();
  CHECK_FALSE(gate.enter().has_value());
  CHECK_FALSE(gate.waitEmpty(std::chrono::steady_clock::now() + std::chrono::milliseconds(10)));
  auto leaving = std::async(std::launch::async, [inside = std::move(moved)] {});
  leaving = {};
  CHECK(gate.waitEmpty(std::chrono::steady_clock::now() + std::chrono::seconds(20)));
}

}  // namespace latentd
