#include "mp_controller/etcd/follower_service.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "common/guarded.h"
#include "proto/cluster_metadata.h"
#include "proto/status_codec.h"

namespace ems::controller {
namespace {

constexpr auto kDrainMax = std::chrono::seconds(1);

// Threading: thread-safe. It keeps itself alive until gRPC is done with it.
class Refusal final : public grpc::ServerGenericBidiReactor,
                      public std::enable_shared_from_this<Refusal> {
 public:
  void Start(const Status& status) {
    {
      auto self = self_.Lock();
      *self = shared_from_this();
    }
    Finish(ToGrpc(status));
  }
  void OnDone() override {
    std::shared_ptr<Refusal> last;
    auto self = self_.Lock();
    self->swap(last);
    self.Unlock();
  }

 private:
  Guarded<std::shared_ptr<Refusal>> self_;
};

// Threading: thread-safe.
class Refuser final : public grpc::CallbackGenericService {
 public:
  explicit Refuser(std::function<std::string()> leader) : leader_(std::move(leader)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const auto refusal = std::make_shared<Refusal>();
    refusal->Start(RefuseAsFollower(leader_(), context));
    return refusal.get();  // OnDone comes after this returns
  }

 private:
  const std::function<std::string()> leader_;
};

}  // namespace

struct FollowerService::Impl {
  explicit Impl(std::function<std::string()> leader) : refuser(std::move(leader)) {}
  Refuser refuser;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

FollowerService::FollowerService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FollowerService::~FollowerService() {
  impl_->server->Shutdown(std::chrono::system_clock::now() + kDrainMax);
  impl_->server->Wait();
}

int FollowerService::port() const { return impl_->port; }

Result<std::unique_ptr<FollowerService>> FollowerService::Start(
    const std::string& listen, std::function<std::string()> leader) {
  auto impl = std::make_unique<Impl>(std::move(leader));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &impl->port);
  builder.RegisterCallbackGenericService(&impl->refuser);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // As those of the leader (controller_service.cc): clients ping alike.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 5);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return Error(StatusCode::kUnavailable,
                 "cannot listen on {}: is the address right and the port free?", listen);
  }
  return std::unique_ptr<FollowerService>(
      new FollowerService(std::move(impl)));  // NOLINT: the constructor is private
}

}  // namespace ems::controller
