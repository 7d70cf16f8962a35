#include "channel/tensor_desc.h"

#include <algorithm>
#include <utility>

#include "channel/limits.h"

namespace latentd::channel {

std::string toString(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

StatusOr<TensorDesc> TensorDesc::make(DType dtype, std::vector<int64_t> shape, Device device) {
  TensorDesc desc;
  desc.dtype_ = dtype;
  desc.shape_ = std::move(shape);
  desc.device_ = device;
  if (byteSize(dtype) == 0) {
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "tensor has dtype number " + std::to_string(static_cast<int>(dtype)) + ", which is none");
  }
  if (desc.shape_.size() > kDimensionsMax) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "tensor has " + std::to_string(desc.shape_.size()) +
                                                              " dimensions; at most " + std::to_string(kDimensionsMax));
  }
  bool empty = false;
  uint64_t bytes = byteSize(dtype);
  for (const int64_t extent : desc.shape_) {
    const bool fits = extent >= 0 && (extent == 0 || bytes <= kTensorBytesMax / static_cast<uint64_t>(extent));
    if (!fits) {
      return makeStatus(absl::StatusCode::kInvalidArgument, "extents of " + desc.toString() +
                                                                " must be 0 or more, and at most " +
                                                                std::to_string(kTensorBytesMax) + " bytes together");
    }
    empty = empty || extent == 0;
    if (extent > 0) bytes *= static_cast<uint64_t>(extent);
  }
  desc.bytes_ = empty ? 0 : bytes;
  return desc;
}

StatusOr<TensorDesc> TensorDesc::of(const TensorView& view) {
  if (view.strides.size() != view.shape.size()) {
    return makeStatus(absl::StatusCode::kInvalidArgument, "a tensor has " + std::to_string(view.shape.size()) +
                                                              " dimensions but " + std::to_string(view.strides.size()) +
                                                              " strides");
  }
  LATENTD_ASSIGN_OR_RETURN(TensorDesc desc, make(view.dtype, view.shape, view.device));
  for (size_t i = 0; i < view.shape.size(); ++i) {
    if (view.strides[i] < 0) {
      return makeStatus(absl::StatusCode::kInvalidArgument,
                        "stride " + std::to_string(view.strides[i]) + " of " + desc.toString() + " is negative");
    }
  }
  if (desc.bytes_ > 0 && view.data == nullptr) {
    return makeStatus(absl::StatusCode::kInvalidArgument, desc.toString() + " has no storage");
  }
  return desc;
}

bool TensorDesc::isOf(const TensorView& view) const {
  return view.dtype == dtype_ && view.shape == shape_ && view.device == device_ &&
         view.strides.size() == shape_.size() && (bytes_ == 0 || view.data != nullptr) &&
         std::all_of(view.strides.begin(), view.strides.end(), [](int64_t stride) { return stride >= 0; });
}

StatusOr<TensorDesc> TensorDesc::parse(const v1::TensorDesc& message) {
  if (message.device_type() > static_cast<uint32_t>(DeviceType::kCuda)) {
    return makeStatus(absl::StatusCode::kInvalidArgument,
                      "device type " + std::to_string(message.device_type()) + " is none");
  }
  const bool known = message.dtype() > 0 && message.dtype() <= static_cast<int>(DType::kBool);
  return make(known ? static_cast<DType>(message.dtype()) : DType::kInvalid,
              std::vector<int64_t>(message.shape().begin(), message.shape().end()),
              Device{static_cast<DeviceType>(message.device_type()), message.device_index()});
}

void TensorDesc::write(v1::TensorDesc& message) const {
  message.set_dtype(static_cast<latentd::v1::DType>(dtype_));
  for (const int64_t extent : shape_)
    message.add_shape(extent);
  message.set_device_type(static_cast<uint32_t>(device_.type));
  message.set_device_index(device_.index);
}

std::string TensorDesc::toString() const {
  std::string text(latentd::toString(dtype_));
  text.push_back('[');
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (i > 0) text.append(", ");
    text.append(std::to_string(shape_[i]));
  }
  return text + "] on " + channel::toString(device_);
}

}  // namespace latentd::channel
