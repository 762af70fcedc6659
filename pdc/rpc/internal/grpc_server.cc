#include "pdc/rpc/internal/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <chrono>
#include <utility>

#include "fabric/net/socket.h"
#include "pdc/rpc/internal/wire.h"

namespace ems::pdc::rpc {
namespace {

constexpr auto kCallTimeMax = kTaskTimeMax + std::chrono::minutes(1);

}  // namespace

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, std::string address)
    : server_(std::move(server)), address_(std::move(address)) {}

GrpcServer::~GrpcServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& listen,
                                                      grpc::Service* service) {
  EMS_ASSIGN_OR_RETURN(const fabric::Address address, fabric::ParseAddress(listen));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("ems-pdc").Resize(kMemoryBytesMax));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Peers ping each 5 s; one that stands still with streams open is dropped within 8 s.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 5);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  auto server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Error(StatusCode::kUnavailable,
                 "cannot listen on {}: is the address right and the port free?", listen);
  }
  const std::string bound = address.is_unix()
                                ? listen
                                : fabric::FormatHostPort(address.host, static_cast<uint16_t>(port));
  return std::unique_ptr<GrpcServer>(
      new GrpcServer(std::move(server), bound));  // NOLINT: the constructor is private
}

grpc::ServerUnaryReactor* Answered(grpc::CallbackServerContext* context) {
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

Status CheckDeadline(const grpc::ServerContextBase& context) {
  if (context.deadline() <= std::chrono::system_clock::now() + kCallTimeMax) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "a call needs a deadline, of {} minutes at most",
               std::chrono::duration_cast<std::chrono::minutes>(kCallTimeMax).count());
}

}  // namespace ems::pdc::rpc
