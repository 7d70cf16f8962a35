#pragma once

#include "proto/common.pb.h"
#include "runtime/base/status.h"

namespace latentd::supervisor {

inline v1::StatusProto toProto(const Status& status) {
  v1::StatusProto proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(messageOf(status));
  return proto;
}

}  // namespace latentd::supervisor
