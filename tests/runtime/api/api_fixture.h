#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "proto/api.grpc.pb.h"
#include "runtime/api/server.h"
#include "tests/support/catch.h"
#include "tests/support/fake_job_service.h"

namespace latentd::testing {

// A server over a FakeJobService, and a client of it.
struct ApiFixture {
  FakeJobService jobs;
  metrics::Registry registry;
  metrics::ApiMetrics metrics{registry};
  std::unique_ptr<api::Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Jobs::Stub> stub;
  std::unique_ptr<v1::Admin::Stub> admin;

  explicit ApiFixture(FakeJobService::Options options = {}) : jobs(options) {
    api::ServerOptions server_options;
    server_options.drain_deadline = std::chrono::minutes(7);
    auto started = api::Server::start(server_options, jobs, metrics);
    REQUIRE(started.ok());
    server = std::move(started).value();
    channel = connect();
    stub = v1::Jobs::NewStub(channel);
    admin = v1::Admin::NewStub(channel);
  }

  // A connection of its own.
  std::shared_ptr<grpc::Channel> connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server->address(), grpc::InsecureChannelCredentials(), arguments);
  }

  v1::Job submit(const std::string& prompt) {
    v1::SubmitRequest request;
    request.mutable_parameters()->set_prompt(prompt);
    v1::Job job;
    const grpc::Status status = call(&v1::Jobs::Stub::Submit, request, &job);
    REQUIRE(status.ok());
    return job;
  }

  template <class Request, class Response>
  grpc::Status call(grpc::Status (v1::Jobs::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    const auto context = newContext();
    return (stub.get()->*method)(context.get(), request, response);
  }

  template <class Request, class Response>
  grpc::Status callAdmin(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                         const Request& request, Response* response) {
    const auto context = newContext();
    return (admin.get()->*method)(context.get(), request, response);
  }

  // No test waits for ever.
  static std::unique_ptr<grpc::ClientContext> newContext() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    return context;
  }
};

template <class Request>
Request withId(const std::string& id) {
  Request request;
  request.set_id(id);
  return request;
}

}  // namespace latentd::testing
