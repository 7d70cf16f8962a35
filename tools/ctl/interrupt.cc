#include "tools/ctl/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "runtime/base/check.h"

namespace latentd::ctl {

Interrupt::Interrupt(const Clock& clock) : clock_(clock) {
  sigset_t ours;
  sigemptyset(&ours);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&ours, number);
  LATENTD_CHECK(pthread_sigmask(SIG_BLOCK, &ours, &before_) == 0, "pthread_sigmask");
  signals_.reset(signalfd(-1, &ours, SFD_CLOEXEC));
  stop_.reset(eventfd(0, EFD_CLOEXEC));
  LATENTD_CHECK(signals_.valid() && stop_.valid(), "signalfd and eventfd");
  thread_ = std::thread([this] { run(); });
}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  LATENTD_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one), "eventfd");
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::setHandler(std::function<void(int)> handler) {
  MutexLock held(mutex_);
  handler_ = std::move(handler);
}

void Interrupt::deliver(int signal_number) {
  if (!filter_.counts(signal_number, clock_.now())) return;
  MutexLock held(mutex_);
  if (!handler_) std::_Exit(128 + signal_number);
  handler_(signal_number);
}

void Interrupt::run() {
  pthread_setname_np(pthread_self(), "interrupt");
  for (;;) {
    pollfd waits[2] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) deliver(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace latentd::ctl
