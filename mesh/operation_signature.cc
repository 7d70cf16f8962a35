#include "mesh/operation_signature.h"

#include <cstring>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "mesh/communication_error.h"
#include "mesh/scalar_type.h"
#include "runtime/base/dtype.h"

namespace latentd::mesh {
namespace {

// A kind, a dtype and as many sizes as the recorder keeps, in decimal.
constexpr int64_t kSignatureBytes = 192;

std::string signatureOf(const Operation& operation) { return operationText(operation).substr(0, kSignatureBytes - 1); }

std::string textAt(const at::Tensor& rows, int64_t row) {
  const char* text = reinterpret_cast<const char*>(rows.const_data_ptr()) + row * kSignatureBytes;
  return std::string(text, ::strnlen(text, kSignatureBytes));
}

std::string name(Rank rank) { return "rank " + std::to_string(rank.value); }

// What two sides of a message have to agree on.
at::Tensor headerOf(const at::Tensor& tensor) {
  const int64_t dtype = static_cast<int64_t>(toDType(tensor.scalar_type()));
  return at::tensor({dtype, tensor.numel()}, tensor.options().dtype(at::kLong));
}

std::string textOf(const at::Tensor& header) {
  const int64_t* fields = header.const_data_ptr<int64_t>();
  return std::to_string(fields[1]) + " elements of " + std::string(toString(static_cast<DType>(fields[0])));
}

struct ExpectedHeader {
  Rank peer;
  at::Tensor theirs;  // once it came
  at::Tensor ours;
};

class ComparedWork final : public Communicator::Work {
 public:
  ComparedWork(std::unique_ptr<Work> headers, std::unique_ptr<Work> messages, Rank rank,
               std::vector<ExpectedHeader> expected)
      : headers_(std::move(headers)), messages_(std::move(messages)), rank_(rank), expected_(std::move(expected)) {}

  void wait() override {
    headers_->wait();
    for (const ExpectedHeader& header : expected_) {
      const at::Tensor theirs = header.theirs.to(at::kCPU), ours = header.ours.to(at::kCPU);
      if (theirs.equal(ours)) continue;
      throw CommunicationError(absl::InternalError("an exchange differs between its ranks: " + name(header.peer) +
                                                   " sends " + textOf(theirs) + ", " + name(rank_) + " receives " +
                                                   textOf(ours)));
    }
    messages_->wait();
  }

 private:
  std::unique_ptr<Work> headers_;
  std::unique_ptr<Work> messages_;
  Rank rank_;
  std::vector<ExpectedHeader> expected_;
};

}  // namespace

Status compareSignatures(Communicator& communicator, const Operation& mine, const std::vector<Rank>& members, int rank,
                         at::Device device, Communicator::Deadline deadline) {
  const std::string signature = signatureOf(mine);
  at::Tensor given = at::zeros({1, kSignatureBytes}, at::kByte);
  std::memcpy(given.mutable_data_ptr(), signature.data(), signature.size());
  const auto size = static_cast<int64_t>(members.size());
  at::Tensor all = at::empty({size, kSignatureBytes}, at::TensorOptions(at::kByte).device(device));
  communicator.allGather(all, given.to(device), deadline)->wait();
  all = all.to(at::kCPU);
  for (int64_t other = 0; other < size; ++other) {
    const std::string theirs = textAt(all, other);
    if (theirs == signature) continue;
    return operationDiffers(mine, members[rank], signature, members[other], theirs);
  }
  return absl::OkStatus();
}

std::unique_ptr<Communicator::Work> exchangeCompared(Communicator& communicator, const std::vector<PeerTensor>& sends,
                                                     const std::vector<PeerTensor>& receives,
                                                     const std::vector<Rank>& members, int rank,
                                                     Communicator::Deadline deadline) {
  std::vector<PeerTensor> given;
  for (const PeerTensor& send : sends)
    given.push_back({send.peer, headerOf(send.tensor)});
  std::vector<ExpectedHeader> expected;
  std::vector<PeerTensor> got;
  for (const PeerTensor& receive : receives) {
    got.push_back({receive.peer, at::empty({2}, receive.tensor.options().dtype(at::kLong))});
    expected.push_back({members[receive.peer], got.back().tensor, headerOf(receive.tensor)});
  }
  auto headers = communicator.exchange(std::move(given), std::move(got), deadline);
  auto messages = communicator.exchange(sends, receives, deadline);
  return std::make_unique<ComparedWork>(std::move(headers), std::move(messages), members[rank], std::move(expected));
}

}  // namespace latentd::mesh
