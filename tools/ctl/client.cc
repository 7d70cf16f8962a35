#include "tools/ctl/client.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/config/value.h"

namespace latentd::ctl {
namespace {

// A page of jobs with long prompts stays far below; the limit only keeps a broken peer from filling our memory.
constexpr int kMessageBytesMax = 64 * 1024 * 1024;
constexpr int kPingMsMin = 1000;  // the daemon takes more frequent pings for an attack

std::shared_ptr<grpc::Channel> makeChannel(const std::string& endpoint, std::chrono::milliseconds timeout) {
  // A silent peer is noticed after a ping interval and a ping time-out: together the time for an answer.
  const int half = std::max(kPingMsMin, static_cast<int>(timeout.count() / 2));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, half);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, half);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
}

std::string nameOf(grpc::StatusCode code) { return absl::StatusCodeToString(static_cast<absl::StatusCode>(code)); }

}  // namespace

void printError(bool json, const std::string& code, const std::string& message) {
  if (json) {
    const nlohmann::ordered_json error{{"error", {{"code", code}, {"message", message}}}};
    std::fprintf(stderr, "%s\n", error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::fprintf(stderr, "latentctl: %s\n", message.c_str());
  }
}

Client::Client(const GlobalOptions& options)
    : options_(options),
      channel_(makeChannel(options.endpoint, options.timeout)),
      jobs_(v1::Jobs::NewStub(channel_)),
      admin_(v1::Admin::NewStub(channel_)) {}

void Client::waitConnected(std::chrono::system_clock::time_point deadline) const {
  channel_->WaitForStateChange(GRPC_CHANNEL_READY, deadline);
}

bool Client::connected() const { return channel_->GetState(false) == GRPC_CHANNEL_READY; }

ExitCode Client::exitCodeOf(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return ExitCode::kOk;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      return ExitCode::kUsage;
    case grpc::StatusCode::UNAVAILABLE:
      // A daemon that is there and says no (it drains) keeps its connection.
      return connected() ? ExitCode::kRefused : ExitCode::kUnreachable;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ExitCode::kUnreachable;
    case grpc::StatusCode::NOT_FOUND:
      return ExitCode::kNotFound;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::ABORTED:
      return ExitCode::kRefused;
    default:
      return ExitCode::kInternal;
  }
}

ExitCode Client::failStream(const grpc::Status& status, const std::string& job, const std::string& state) const {
  const bool broken =
      status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::CANCELLED;
  if (!broken) return fail(status, exitCodeOf(status));
  printError(options_.json, nameOf(status.error_code()), explainLost(job, state));
  return ExitCode::kUnreachable;
}

// Whether the daemon is gone, hangs, or is another one by now shows when it is asked once more: over a new connection,
// so again if the first answer was the end of the old one.
std::string Client::explainLost(const std::string& job, const std::string& state) const {
  v1::GetJobRequest request;
  request.set_id(job);
  v1::Job found;
  const std::string seen = "job " + job + ", last seen " + state;
  const auto ask = [&] { return call(*jobs_, &v1::Jobs::Stub::Get, request, &found).error_code(); };
  grpc::StatusCode answer = ask();
  if (answer == grpc::StatusCode::UNAVAILABLE) answer = ask();
  switch (answer) {
    case grpc::StatusCode::OK:
      return "the connection to " + options_.endpoint + " broke; " + seen + ", is still there: `latentctl watch " +
             job + "` follows it again";
    case grpc::StatusCode::NOT_FOUND:
      return "the daemon at " + options_.endpoint + " was restarted, and " + seen +
             ", is lost with it: submit it again";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "the daemon at " + options_.endpoint + " stopped answering; " + seen +
             ", may go on: see the daemon's log, and `latentctl watch " + job + "` once it answers";
    default:
      return "the daemon at " + options_.endpoint + " stopped; " + seen +
             ", is lost with it: see the daemon's log, start it again and submit the job again";
  }
}

ExitCode Client::fail(const grpc::Status& status, ExitCode code) const {
  std::string message = status.error_message();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    message = "the daemon at " + options_.endpoint + " did not answer within " +
              config::formatDuration(options_.timeout) +
              ": see its log and /healthz on its HTTP port; --timeout waits longer";
  } else if (code == ExitCode::kUnreachable) {
    message = "no daemon answers at " + options_.endpoint + " (" + message +
              "): start one with `latentd --config FILE`, or name another with --endpoint or LATENTD_ENDPOINT";
  } else if (code == ExitCode::kInternal && status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    message =
        "the server at " + options_.endpoint + " does not speak latentd.v1: is it a latentd, and of this version?";
  }
  printError(options_.json, nameOf(status.error_code()), message);
  return code;
}

ExitCode Client::fail(ExitCode code, const std::string& message) const {
  const char* name = code == ExitCode::kUsage      ? "INVALID_ARGUMENT"
                     : code == ExitCode::kTimedOut ? "DEADLINE_EXCEEDED"
                                                   : "LOCAL";
  printError(options_.json, name, message);
  return code;
}

}  // namespace latentd::ctl
