#pragma once
// A gRPC server as all services of the serving loop have it: bounds, pings, one way to end.
//
// Bound: messages of kMessageBytesMax, kMemoryBytesMax of them together.
#include <memory>
#include <string>

#include "common/bytes.h"
#include "common/status.h"

namespace grpc {
class Server;
class Service;
class CallbackServerContext;
class ServerContextBase;
class ServerUnaryReactor;
}  // namespace grpc

namespace ems::pdc::rpc {

inline constexpr size_t kMemoryBytesMax = 256 * kMiB;

// Threading: thread-safe.
class GrpcServer final {
 public:
  // Serves on `listen` (host:port, port 0: any; unix:/path) at once. `service` must outlive this.
  // Errors: kInvalidArgument  bad address    kUnavailable  cannot bind
  static Result<std::unique_ptr<GrpcServer>> Start(const std::string& listen,
                                                   grpc::Service* service);
  // Cancels calls under way; waits until their reactors are done.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;
  // As bound: what peers dial.
  const std::string& address() const { return address_; }

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, std::string address);
  const std::unique_ptr<grpc::Server> server_;
  const std::string address_;
};

// The end of a call whose reply is filled in: what gRPC is to be given.
grpc::ServerUnaryReactor* Answered(grpc::CallbackServerContext* context);

// A stream without an end in time would be kept for ever by a peer that does not read.
// Errors: kInvalidArgument
Status CheckDeadline(const grpc::ServerContextBase& context);

}  // namespace ems::pdc::rpc
