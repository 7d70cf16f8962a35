#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "runtime/base/check.h"

namespace latentd {

// One allowed edge of a state machine and what causes it.
template <class State>
struct Transition {
  State from;
  State to;
  std::string_view cause;
};

template <class State, size_t N>
using TransitionTable = std::array<Transition<State>, N>;

template <class State, size_t N>
constexpr bool allows(const TransitionTable<State, N>& table, State from, State to) {
  for (const Transition<State>& edge : table) {
    if (edge.from == from && edge.to == to) return true;
  }
  return false;
}

// No edge twice; for static_assert beside a table.
template <class State, size_t N>
constexpr bool isWellFormed(const TransitionTable<State, N>& table) {
  for (size_t i = 0; i < N; ++i) {
    for (size_t j = i + 1; j < N; ++j) {
      if (table[i].from == table[j].from && table[i].to == table[j].to) return false;
    }
    if (table[i].cause.empty()) return false;
  }
  return true;
}

// A state that moves only along the edges of its table; any other move is a bug of ours and aborts. A value type.
// Thread: its owner's.
template <const auto& kTable, class State>
class StateMachine {
 public:
  constexpr explicit StateMachine(State initial) : state_(initial) {}
  constexpr State state() const { return state_; }
  constexpr bool is(State state) const { return state_ == state; }
  constexpr bool can(State to) const { return allows(kTable, state_, to); }
  constexpr void move(State to) {
    LATENTD_CHECK(can(to), "a transition that the state table does not have");
    state_ = to;
  }

 private:
  State state_;
};

}  // namespace latentd
