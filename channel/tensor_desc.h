#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "channel/tensor_view.h"
#include "proto/channel.pb.h"
#include "runtime/base/status.h"

namespace latentd::channel {

// What a tensor is, without its storage. Made by validated constructors only, so that bytes() cannot overflow.
// A value type.
class TensorDesc {
 public:
  TensorDesc() = default;
  // INVALID_ARGUMENT beyond channel/limits.h, for a negative extent or an unknown dtype.
  static StatusOr<TensorDesc> make(DType dtype, std::vector<int64_t> shape, Device device);
  // Of a view; its strides must have one entry for each dimension and its data must exist.
  static StatusOr<TensorDesc> of(const TensorView& view);
  // Whether of() would return this one.
  bool isOf(const TensorView& view) const;
  static StatusOr<TensorDesc> parse(const v1::TensorDesc& message);
  void write(v1::TensorDesc& message) const;

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  Device device() const { return device_; }
  uint64_t bytes() const { return bytes_; }
  std::string toString() const;  // "float32[1, 16, 5] on cpu"

  friend bool operator==(const TensorDesc&, const TensorDesc&) = default;

 private:
  DType dtype_ = DType::kInvalid;
  std::vector<int64_t> shape_;
  Device device_;
  uint64_t bytes_ = 0;
};

std::string toString(Device device);

}  // namespace latentd::channel
