#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

// The Jobs service takes bytes and parses them itself: gRPC answers what it cannot parse with UNIMPLEMENTED and no
// message, and protobuf does not parse a text that is not UTF-8.
namespace latentd::api {

// INVALID_ARGUMENT for bytes that are no such request: it names the field of the first text that is not UTF-8.
Status refuseBytes(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& bytes);

template <class Request>
StatusOr<Request> parseRequest(const grpc::ByteBuffer& bytes) {
  Request request;
  grpc::ByteBuffer consumed(bytes);
  if (grpc::SerializationTraits<Request>::Deserialize(&consumed, &request).ok()) return request;
  return refuseBytes(*Request::descriptor(), bytes);
}

template <class Response>
grpc::ByteBuffer toBytes(const Response& response) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  const grpc::Status status = grpc::SerializationTraits<Response>::Serialize(response, &bytes, &own_buffer);
  LATENTD_CHECK(status.ok(), "a response is far below the 2 GiB that protobuf serializes");
  return bytes;
}

}  // namespace latentd::api
