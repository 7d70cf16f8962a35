#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "proto/api.grpc.pb.h"
#include "tools/ctl/exit_code.h"

namespace latentd::ctl {

// What every command takes.
struct GlobalOptions {
  std::string endpoint;
  bool json = false;
  // For an answer; a stream may be silent, but its connection must answer so often.
  std::chrono::milliseconds timeout{10'000};
};

// A connection to the daemon, made at the first call.
// Owner: the command. Thread: any. Failure: every call has a deadline, and a stream whose peer stops answering pings
// ends, so that nothing waits for a dead or stopped daemon.
class Client {
 public:
  explicit Client(const GlobalOptions& options);

  v1::Jobs::Stub& jobs() const { return *jobs_; }
  v1::Admin::Stub& admin() const { return *admin_; }

  // For an answer from now.
  std::chrono::system_clock::time_point deadline() const { return std::chrono::system_clock::now() + options_.timeout; }

  // One unary call with its deadline: call(client.jobs(), &v1::Jobs::Stub::Get, request, &job).
  template <class Stub, class Request, class Response>
  grpc::Status call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) const {
    grpc::ClientContext context;
    context.set_deadline(deadline());
    return (stub.*method)(&context, request, response);
  }

  // Says on standard error what went wrong and what to do, and returns the exit code of it.
  ExitCode fail(const grpc::Status& status) const { return fail(status, exitCodeOf(status)); }
  // The same for a stream about a job, last seen in this state: the daemon itself ends one early only with its own end.
  ExitCode failStream(const grpc::Status& status, const std::string& job, const std::string& state) const;
  // Returns early when the connection breaks.
  void waitConnected(std::chrono::system_clock::time_point deadline) const;
  // A call ended with this because nobody listens any more.
  bool isGone(const grpc::Status& status) const {
    return status.error_code() == grpc::StatusCode::UNAVAILABLE && !connected();
  }
  // The same for an error of our own.
  ExitCode fail(ExitCode code, const std::string& message) const;
  const GlobalOptions& options() const { return options_; }

 private:
  ExitCode fail(const grpc::Status& status, ExitCode code) const;
  std::string explainLost(const std::string& job, const std::string& state) const;
  bool connected() const;
  ExitCode exitCodeOf(const grpc::Status& status) const;

  const GlobalOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Jobs::Stub> jobs_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
};

// An error for people, or for programs with --json, on standard error.
void printError(bool json, const std::string& code, const std::string& message);

}  // namespace latentd::ctl
