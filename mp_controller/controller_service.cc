#include "mp_controller/controller_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <chrono>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/logging.h"
#include "model_files/format/manifest.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/model_service.h"
#include "mp_controller/publish/view_fanout.h"
#include "mp_controller/request_check.h"
#include "proto/controller.grpc.pb.h"
#include "proto/status_codec.h"

namespace ems::controller {
namespace {

constexpr size_t kMemoryBytesMax = 256 * kMiB;  // of all connections together
constexpr auto kDrainMax = std::chrono::seconds(5);

// Without a copy: each stream's buffer refers to the one encoding.
void AddSlice(const EncodedUpdate::Bytes& bytes, std::vector<grpc::Slice>* slices) {
  if (bytes == nullptr) return;
  auto owner = std::make_unique<EncodedUpdate::Bytes>(bytes);
  const auto drop = [](void* released) {
    const std::unique_ptr<EncodedUpdate::Bytes> again(static_cast<EncodedUpdate::Bytes*>(released));
  };
  // gRPC reads it only; its type says otherwise.
  slices->emplace_back(const_cast<char*>(bytes->data()), bytes->size(), drop, owner.release());
}

grpc::ByteBuffer ToBuffer(const PublishedUpdate& update) {
  std::vector<grpc::Slice> slices;
  AddSlice(update.view, &slices);
  AddSlice(update.namespaces, &slices);
  return {slices.data(), slices.size()};
}

// Errors: kInvalidArgument
template <typename Request>
Status Parse(grpc::ByteBuffer buffer, Request* request) {
  if (grpc::SerializationTraits<Request>::Deserialize(&buffer, request).ok()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "not a request of this call");
}

// One watch stream. Whoever sets `busy` owns the stream until it clears it: at most one write or
// the end is under way. Threading: thread-safe. It keeps itself alive until gRPC is done with it.
class WatchStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public Subscriber,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  explicit WatchStream(ViewPublisher* publisher) : publisher_(publisher) {}

  // `request`: what became of reading it.
  void Start(const Status& request) {
    {
      auto state = state_.Lock();
      state->self = shared_from_this();
    }
    if (!request.ok()) return End(request);
    const Status status = publisher_->Subscribe(shared_from_this());
    if (status.ok()) return Pump();
    End(status);
  }

  void OnPublished() override { Pump(); }
  void OnClosed() override { End(Error(StatusCode::kUnavailable, "the controller is stopping")); }
  void OnCancel() override { End(Error(StatusCode::kCancelled, "the watcher is gone")); }
  void OnWriteDone(bool ok) override {
    {
      auto state = state_.Lock();
      state->busy = false;
      if (!ok && state->end.ok()) state->end = Error(StatusCode::kCancelled, "the stream broke");
    }
    Pump();
  }
  void OnDone() override {
    publisher_->Unsubscribe(shared_from_this());
    std::shared_ptr<WatchStream> self;
    auto state = state_.Lock();
    self.swap(state->self);
    state.Unlock();
  }

 private:
  struct State {
    bool busy = false;      // a write is under way or being prepared
    bool dirty = true;      // something was published since the last look
    bool finished = false;  // Finish has been called
    Status end;             // not OK: finish as soon as nothing is under way
    std::shared_ptr<WatchStream> self;
  };
  enum class Step { kNothing, kLook, kFinish };

  void End(const Status& why) {
    {
      auto state = state_.Lock();
      if (state->end.ok()) state->end = why;
    }
    Pump();
  }

  // What the caller has to do now; kLook makes it the owner of the stream.
  Step NextStep(bool published, Status* end) {
    auto state = state_.Lock();
    if (published) state->dirty = true;
    if (state->busy || state->finished) return Step::kNothing;
    if (!state->end.ok()) {
      state->finished = true;
      *end = state->end;
      return Step::kFinish;
    }
    if (!state->dirty) return Step::kNothing;
    state->dirty = false;
    state->busy = true;
    return Step::kLook;
  }

  void Pump() {
    const std::shared_ptr<WatchStream> alive = shared_from_this();
    bool published = true;
    while (true) {
      Status end;
      const Step step = NextStep(published, &end);
      if (step == Step::kNothing) return;
      if (step == Step::kFinish) return Finish(ToGrpc(end));
      const PublishedUpdate update = publisher_->Next(&cursor_);
      if (!update.empty()) {
        buffer_ = ToBuffer(update);
        return StartWrite(&buffer_);
      }
      published = false;
      auto state = state_.Lock();
      state->busy = false;
    }
  }

  ViewPublisher* const publisher_;
  Guarded<State> state_;
  WatchCursor cursor_;       // of the owner of the stream
  grpc::ByteBuffer buffer_;  // likewise; what is under way
};

// What is published goes out as bytes that were encoded once, so its calls are raw ones.
using RawService = v1::Controller::WithRawCallbackMethod_Watch<
    v1::Controller::WithRawCallbackMethod_GetCluster<v1::Controller::CallbackService>>;

// Threading: thread-safe.
class Handlers final : public RawService {
 public:
  explicit Handlers(const ControllerService::Parts& parts) : parts_(parts) {}

#define EMS_CONTROLLER_METHOD(name, request_type, reply_type)                            \
  grpc::ServerUnaryReactor* name(grpc::CallbackServerContext* context,                   \
                                 const v1::request_type* request, v1::reply_type* reply) \
      override {                                                                         \
    return Run(context, request, reply, &ClusterState::name);                            \
  }
  EMS_CONTROLLER_METHOD(Register, RegisterRequest, RegisterReply)
  EMS_CONTROLLER_METHOD(Heartbeat, HeartbeatRequest, HeartbeatReply)
  EMS_CONTROLLER_METHOD(Leave, LeaveRequest, LeaveReply)
  EMS_CONTROLLER_METHOD(ListNodes, ListNodesRequest, ListNodesReply)
  EMS_CONTROLLER_METHOD(SetNode, SetNodeRequest, SetNodeReply)
  EMS_CONTROLLER_METHOD(DrainNode, DrainNodeRequest, DrainNodeReply)
  EMS_CONTROLLER_METHOD(RemoveNode, RemoveNodeRequest, RemoveNodeReply)
  EMS_CONTROLLER_METHOD(AcceptLoss, AcceptLossRequest, AcceptLossReply)
  EMS_CONTROLLER_METHOD(AcceptAhead, AcceptAheadRequest, AcceptAheadReply)
  EMS_CONTROLLER_METHOD(CreateNamespace, CreateNamespaceRequest, Namespace)
  EMS_CONTROLLER_METHOD(GetNamespace, GetNamespaceRequest, Namespace)
  EMS_CONTROLLER_METHOD(ListNamespaces, ListNamespacesRequest, ListNamespacesReply)
  EMS_CONTROLLER_METHOD(UpdateNamespace, UpdateNamespaceRequest, Namespace)
  EMS_CONTROLLER_METHOD(DeleteNamespace, DeleteNamespaceRequest, DeleteNamespaceReply)
#undef EMS_CONTROLLER_METHOD

  // What is published needs no turn on the loop.
  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer*, grpc::ByteBuffer* reply) override {
    auto* reactor = context->DefaultReactor();
    if (!IsAdmitted(context, parts_.state->cluster(), reactor)) return reactor;
    WatchCursor from_nothing;
    *reply = ToBuffer(parts_.publisher->Next(&from_nothing));
    Answer(OkStatus(), parts_.other, context, reactor);
    return reactor;
  }

  // Nor do events.
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context,
                                       const v1::ListEventsRequest* request,
                                       v1::ListEventsReply* reply) override {
    auto* reactor = context->DefaultReactor();
    if (!IsAdmitted(context, parts_.state->cluster(), reactor)) return reactor;
    if (parts_.events != nullptr) parts_.events->List(*request, reply);
    Answer(OkStatus(), parts_.other, context, reactor);
    return reactor;
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes) override {
    v1::WatchRequest request;
    Status parsed = Parse(*bytes, &request);
    if (const auto leader = parts_.other ? parts_.other() : std::nullopt)
      parsed = RefuseAsFollower(*leader, context);
    EMS_LOG(kDebug, "mp_controller", "watch watcher={}", Printable(request.watcher()));
    auto stream = std::make_shared<WatchStream>(parts_.publisher);
    stream->Start(parsed);
    return stream.get();  // OnDone comes after this returns
  }

 private:
  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const Request* request,
                                Reply* reply,
                                Status (ClusterState::*method)(const Request&, Reply*)) {
    auto* reactor = context->DefaultReactor();
    if (!IsAdmitted(context, parts_.state->cluster(), reactor)) return reactor;
    const auto answer = [this, context, reactor](const Status& status) {
      if (status.code() == StatusCode::kInvalidArgument ||
          status.code() == StatusCode::kResourceExhausted) {
        parts_.metrics->requests_refused.Add();
      }
      Answer(status, parts_.other, context, reactor);
    };
    const bool posted = parts_.loop->TryPost([this, request, reply, method, answer] {
      answer((parts_.state->*method)(*request, reply));
    });
    if (!posted) answer(Error(StatusCode::kResourceExhausted, "too many calls wait: try again"));
    return reactor;
  }

  const ControllerService::Parts parts_;
};

}  // namespace

struct ControllerService::Impl {
  explicit Impl(const Parts& parts)
      : publisher(parts.publisher), models(parts.models), handlers(parts), fanout(publisher) {}
  ~Impl() { publisher->Close(); }

  ViewPublisher* const publisher;
  ModelService* const models;
  Handlers handlers;
  ViewFanout fanout;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

ControllerService::ControllerService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControllerService::~ControllerService() {
  impl_->publisher->Close();
  if (impl_->models != nullptr) impl_->models->Close();
  impl_->server->Shutdown(std::chrono::system_clock::now() + kDrainMax);
  impl_->server->Wait();
}

int ControllerService::port() const { return impl_->port; }

Result<std::unique_ptr<ControllerService>> ControllerService::Start(const std::string& listen,
                                                                    const Parts& parts) {
  auto impl = std::make_unique<Impl>(parts);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &impl->port);
  builder.RegisterService(&impl->handlers);
  if (parts.models != nullptr) builder.RegisterService(parts.models->service());
  builder.SetMaxReceiveMessageSize(model::kManifestMessageBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("ems-controller").Resize(kMemoryBytesMax));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients ping each 5 s on open streams; a peer that vanished is noticed within half a minute.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 5);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return Error(StatusCode::kUnavailable,
                 "cannot listen on {}: is the address right and the port free?", listen);
  }
  return std::unique_ptr<ControllerService>(
      new ControllerService(std::move(impl)));  // NOLINT: the constructor is private
}

}  // namespace ems::controller
