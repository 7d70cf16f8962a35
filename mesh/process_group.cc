#include "mesh/process_group.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>

#include "mesh/communication_error.h"
#include "mesh/operation_signature.h"
#include "mesh/scalar_type.h"
#include "runtime/base/check.h"
#include "runtime/base/nanoseconds.h"

namespace latentd::mesh {
namespace {

using Deadline = Communicator::Deadline;

void require(bool holds, const char* what) {
  if (!holds) throw CommunicationError(absl::InvalidArgumentError(what));
}

void requireDense(const at::Tensor& tensor) {
  require(tensor.defined() && tensor.is_contiguous(), "a tensor of a communication operation is not contiguous");
}

Operation makeOperation(const char* kind, std::string group, uint64_t sequence, const at::Tensor& given,
                        uint64_t bytes) {
  Operation operation;
  operation.kind = kind;
  operation.group = std::move(group);
  operation.sequence = sequence;
  operation.dtype = toDType(given.scalar_type());
  operation.shape = given.sizes().vec();
  operation.bytes_sent = bytes;
  return operation;
}

std::string who(const GroupContext& context, const Operation& operation) {
  return "rank " + std::to_string(context.rank.value) + ", group " + operation.group + ", " + operation.kind + " " +
         std::to_string(operation.sequence) + " of " + tensorText(operation);
}

Status late(const GroupContext& context, const Operation& operation) {
  return absl::DeadlineExceededError(who(context, operation) + ": not done within " +
                                     std::to_string(context.timeout.count()) + " ms");
}

// Gloo begins with the place in its source and ends with advice.
std::string cleaned(std::string text) {
  if (const size_t place = text.find(".cc:"); text.starts_with('[') && place != std::string::npos) {
    if (const size_t end = text.find("] ", place); end != std::string::npos) text.erase(0, end + 2);
  }
  return text.substr(0, std::min(text.find(". This is typically"), text.find('\n')));
}

}  // namespace

// Owner: a ProcessGroup; stays where it is when that moves, for its pending operations.
struct ProcessGroup::State {
  std::string name;
  std::vector<Rank> members;
  int rank = 0;
  GroupContext context;
  std::unique_ptr<Communicator> communicator;
  uint64_t collectives = 0;
  uint64_t exchanges = 0;
  std::atomic<uint64_t> submitted = 0;
  std::atomic<uint64_t> bytes_sent = 0;

  using Start = std::function<std::unique_ptr<Communicator::Work>(Deadline)>;
  Pending submit(Operation operation, bool collective, const Start& start);
  Pending submitCollective(const char* kind, const at::Tensor& given, uint64_t bytes, const Start& start);
  // Throws if a peer does something else. All of them compare, and each before it sends anything.
  void compare(const Operation& operation, Deadline deadline);
  // Does a part of the operation. What fails or outlasts the deadline ends the mesh; throws what ended it.
  void guard(const Operation& operation, Deadline deadline, const std::function<void()>& part);
  // To be called in a handler.
  [[noreturn]] void rethrow(const Operation& operation);
};

// One submitted operation.
class Pending::Work {
 public:
  Work(ProcessGroup::State& group, Operation operation, uint64_t number, std::unique_ptr<Communicator::Work> work)
      : group_(group), operation_(std::move(operation)), number_(number), work_(std::move(work)) {}

  void wait() {
    const Deadline deadline = std::chrono::steady_clock::now() + group_.context.timeout;
    group_.guard(operation_, deadline, [this] { work_->wait(); });
    if (group_.context.recorder != nullptr) group_.context.recorder->end(number_);
  }

 private:
  ProcessGroup::State& group_;
  Operation operation_;
  uint64_t number_;  // in the recorder
  std::unique_ptr<Communicator::Work> work_;
};

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  std::swap(work_, other.work_);  // what this one waited for is waited for when the other goes
  return *this;
}

Pending::~Pending() {
  try {
    wait();
  } catch (const CommunicationError&) {
    // The mesh has ended with it: the next operation says so.
  }
}

void Pending::wait() {
  if (const std::unique_ptr<Work> work = std::move(work_)) work->wait();
}

void ProcessGroup::State::guard(const Operation& operation, Deadline deadline, const std::function<void()>& part) {
  std::optional<DeadlineWatch::Armed> armed;
  if (context.watch != nullptr) {
    // By value: it may still run when this operation, and its group, are gone.
    const auto end_late = [context = context, operation] { (void)context.end->end(late(context, operation)); };
    armed.emplace(*context.watch, deadline, end_late);
  }
  try {
    part();
  } catch (...) {
    rethrow(operation);
  }
}

void ProcessGroup::State::rethrow(const Operation& operation) {
  MeshEnd& end = *context.end;
  try {
    throw;
  } catch (const CommunicationError& error) {
    throw CommunicationError(end.end(error.status()));
  } catch (const Communicator::TimedOut&) {
    throw CommunicationError(end.end(late(context, operation)));
  } catch (const c10::DistError& error) {
    throw CommunicationError(
        end.end(absl::UnavailableError(who(context, operation) + ": " + cleaned(error.what_without_backtrace()))));
  } catch (const c10::Error& error) {
    throw CommunicationError(
        end.end(absl::InternalError(who(context, operation) + ": " + cleaned(error.what_without_backtrace()))));
  } catch (const std::exception& error) {
    throw CommunicationError(end.end(absl::UnavailableError(who(context, operation) + ": " + cleaned(error.what()))));
  }
}

void ProcessGroup::State::compare(const Operation& operation, Deadline deadline) {
  Status differs;
  if (context.recorder != nullptr) differs = context.recorder->disagreement(operation, members, /*same_shape=*/true);
  if (differs.ok() && context.verify)
    differs = compareSignatures(*communicator, operation, members, rank, context.device, deadline);
  if (!differs.ok()) throw CommunicationError(differs);
}

Pending ProcessGroup::State::submit(Operation operation, bool collective, const Start& start) {
  if (const auto cause = context.end->cause()) throw CommunicationError(*cause);
  const auto now = std::chrono::steady_clock::now();
  const Deadline deadline = now + context.timeout;
  operation.submitted_ns = toNanoseconds(now);
  if (context.run != nullptr) operation.run = *context.run;
  for (const Rank member : members)
    operation.members |= uint64_t{1} << member.value;
  submitted.fetch_add(1, std::memory_order_relaxed);
  const uint64_t number = context.recorder == nullptr ? 0 : context.recorder->begin(operation);
  std::unique_ptr<Communicator::Work> work;
  guard(operation, deadline, [&] {
    if (collective) compare(operation, deadline);
    work = start(deadline);
  });
  bytes_sent.fetch_add(operation.bytes_sent, std::memory_order_relaxed);
  return Pending(std::make_unique<Pending::Work>(*this, std::move(operation), number, std::move(work)));
}

Pending ProcessGroup::State::submitCollective(const char* kind, const at::Tensor& given, uint64_t bytes,
                                              const Start& start) {
  return submit(makeOperation(kind, name, ++collectives, given, bytes), /*collective=*/true, start);
}

ProcessGroup::ProcessGroup() = default;
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

ProcessGroup::ProcessGroup(std::string name, std::vector<Rank> members, std::unique_ptr<Communicator> communicator,
                           const GroupContext& context)
    : state_(std::make_unique<State>()) {
  const auto mine = std::find(members.begin(), members.end(), context.rank);
  LATENTD_CHECK(mine != members.end(), "a rank makes only groups that it belongs to");
  state_->rank = static_cast<int>(mine - members.begin());
  state_->name = std::move(name);
  state_->members = std::move(members);
  state_->context = context;
  state_->communicator = std::move(communicator);
}

const std::string& ProcessGroup::name() const {
  static const std::string kAlone = "alone";
  return state_ ? state_->name : kAlone;
}

int ProcessGroup::rank() const { return state_ ? state_->rank : 0; }

int ProcessGroup::size() const { return state_ ? static_cast<int>(state_->members.size()) : 1; }

const std::vector<Rank>& ProcessGroup::members() const {
  static const std::vector<Rank> kNone;
  return state_ ? state_->members : kNone;
}

at::Device ProcessGroup::device() const { return state_->context.device; }

std::chrono::milliseconds ProcessGroup::timeout() const { return state_->context.timeout; }

Pending ProcessGroup::allGather(at::Tensor output, at::Tensor input) {
  requireDense(output);
  requireDense(input);
  require(output.scalar_type() == input.scalar_type() && output.numel() == size() * input.numel(),
          "all_gather: the output is not one input of each rank");
  if (!state_) {
    output.view(input.sizes()).copy_(input);
    return {};
  }
  const uint64_t bytes = input.nbytes() * static_cast<uint64_t>(size() - 1);
  return state_->submitCollective("all_gather", input, bytes, [&](Deadline deadline) {
    return state_->communicator->allGather(output, input, deadline);
  });
}

Pending ProcessGroup::allReduceSum(at::Tensor tensor) {
  requireDense(tensor);
  if (!state_) return {};
  const auto ranks = static_cast<uint64_t>(size());
  const uint64_t bytes = 2 * tensor.nbytes() * (ranks - 1) / ranks;
  return state_->submitCollective("all_reduce", tensor, bytes, [&](Deadline deadline) {
    return state_->communicator->allReduceSum(tensor, deadline);
  });
}

Pending ProcessGroup::allToAll(at::Tensor output, at::Tensor input) {
  requireDense(output);
  requireDense(input);
  require(output.scalar_type() == input.scalar_type() && output.numel() == input.numel() && input.dim() > 0 &&
              input.size(0) % size() == 0,
          "all_to_all: the first dimension is not one equal block for each rank, or output and input differ");
  if (!state_) {
    output.view(input.sizes()).copy_(input);
    return {};
  }
  const auto ranks = static_cast<uint64_t>(size());
  const uint64_t bytes = input.nbytes() / ranks * (ranks - 1);
  return state_->submitCollective("all_to_all", input, bytes, [&](Deadline deadline) {
    return state_->communicator->allToAll(output, input, deadline);
  });
}

Pending ProcessGroup::broadcast(at::Tensor tensor, int root) {
  requireDense(tensor);
  require(root >= 0 && root < size(), "broadcast: the root is no rank of the group");
  if (!state_) return {};
  const uint64_t bytes = rank() == root ? tensor.nbytes() * static_cast<uint64_t>(size() - 1) : 0;
  return state_->submitCollective("broadcast", tensor, bytes, [&](Deadline deadline) {
    return state_->communicator->broadcast(tensor, root, deadline);
  });
}

Pending ProcessGroup::exchange(std::vector<PeerTensor> sends, std::vector<PeerTensor> receives) {
  uint64_t bytes = 0;
  for (const std::vector<PeerTensor>* parts : {&sends, &receives}) {
    for (const PeerTensor& part : *parts) {
      requireDense(part.tensor);
      require(part.peer >= 0 && part.peer < size() && part.peer != rank(),
              "exchange: a peer is no other rank of the group");
      if (parts == &sends) bytes += part.tensor.nbytes();
    }
  }
  if (sends.empty() && receives.empty()) return {};
  const at::Tensor& given = sends.empty() ? receives.front().tensor : sends.front().tensor;
  // Counted, and named, apart from the collectives: not all ranks take part in each.
  Operation operation = makeOperation("exchange", name() + ".p2p", ++state_->exchanges, given, bytes);
  return state_->submit(std::move(operation), /*collective=*/false, [&](Deadline deadline) {
    Communicator& communicator = *state_->communicator;
    if (!state_->context.verify) return communicator.exchange(std::move(sends), std::move(receives), deadline);
    return exchangeCompared(communicator, sends, receives, members(), rank(), deadline);
  });
}

Pending ProcessGroup::carry(const char* kind, const at::Tensor& given, uint64_t bytes, const Carrier& start) {
  LATENTD_CHECK(state_ != nullptr, "a rank that is alone gives nobody anything");
  return state_->submitCollective(kind, given, bytes, [&](Deadline) { return start(); });
}

uint64_t ProcessGroup::bytesSent() const { return state_ ? state_->bytes_sent.load(std::memory_order_relaxed) : 0; }

uint64_t ProcessGroup::submitted() const { return state_ ? state_->submitted.load(std::memory_order_relaxed) : 0; }

void ProcessGroup::abort() noexcept {
  if (state_) state_->communicator->abort();
}

void ProcessGroup::fail(const Status& cause) noexcept {
  const std::string who = "rank " + std::to_string(state_->context.rank.value) + ", group " + state_->name;
  (void)state_->context.end->end(annotate(cause, who));
}

}  // namespace latentd::mesh
