#include "runtime/api/message_bytes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <string>

#include "runtime/base/status_field.h"
#include "runtime/base/utf8.h"

namespace latentd::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

std::string flatten(const grpc::ByteBuffer& bytes) {
  grpc::Slice flat;
  if (!bytes.DumpToSingleSlice(&flat).ok()) return "";
  return std::string(reinterpret_cast<const char*>(flat.begin()), flat.size());
}

// "prompt is not UTF-8: ...", of the first such text as far as the bytes make sense; OK if there is none. Requests nest
// as deep as their types do, and no type contains itself.
Status checkTexts(const Descriptor& type, const std::string& bytes) {
  CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  while (const uint32_t tag = stream.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&stream, tag)) return absl::OkStatus();
      continue;
    }
    uint32_t length = 0;
    std::string value;
    if (!stream.ReadVarint32(&length) || length > bytes.size()) return absl::OkStatus();
    if (!stream.ReadString(&value, static_cast<int>(length))) return absl::OkStatus();
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr) continue;
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      LATENTD_RETURN_IF_ERROR(checkTexts(*field->message_type(), value));
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      const auto problem = describeInvalidUtf8(value);
      if (problem) return atField(absl::InvalidArgumentError(field->name() + " " + *problem), field->name());
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status refuseBytes(const Descriptor& type, const grpc::ByteBuffer& bytes) {
  LATENTD_RETURN_IF_ERROR(checkTexts(type, flatten(bytes)));
  return absl::InvalidArgumentError("the bytes sent are no " + type.full_name() +
                                    ": make client and daemon from the same proto/api.proto");
}

}  // namespace latentd::api
