// Invariant: what waits is touched on the loop's thread only.
#include "mp_controller/model_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/model_state.h"
#include "proto/model.grpc.pb.h"
#include "proto/status_codec.h"

namespace ems::controller {
namespace {

constexpr Duration kWaitMax = std::chrono::seconds(30);
constexpr Duration kTick = std::chrono::milliseconds(100);

struct Waiting {
  TimePoint until;
  // Looks again; true: answered. `last`: answer, whatever there is.
  std::function<bool(bool last)> look;
};

}  // namespace

struct ModelService::Impl final : public v1::Models::CallbackService {
  Impl(ModelState* state_in, const Clock* clock_in, ClusterId cluster_in, FindOtherLeader other_in)
      : state(state_in),
        clock(clock_in),
        cluster(cluster_in),
        other(std::move(other_in)),
        loop("ems-models", kTick, [this] {
          state->Tick();
          LookAgain();  // also when there was no room for AskForLook
        }) {}

#define EMS_MODELS_METHOD(name, request_type, reply_type)                                \
  grpc::ServerUnaryReactor* name(grpc::CallbackServerContext* context,                   \
                                 const v1::request_type* request, v1::reply_type* reply) \
      override {                                                                         \
    return Run(context, request, reply, &ModelState::name);                              \
  }
  EMS_MODELS_METHOD(AddModel, AddModelRequest, ModelStatus)
  EMS_MODELS_METHOD(GetModel, ModelRef, ModelStatus)
  EMS_MODELS_METHOD(GetManifest, ModelRef, ModelManifest)
  EMS_MODELS_METHOD(Prefetch, PrefetchRequest, ModelStatus)
  EMS_MODELS_METHOD(CancelPrefetch, ModelRef, ModelStatus)
  EMS_MODELS_METHOD(PinModel, PinModelRequest, ModelStatus)
  EMS_MODELS_METHOD(UseModel, ModelRef, ModelStatus)
  EMS_MODELS_METHOD(RemoveModel, ModelRef, RemoveModelReply)
  EMS_MODELS_METHOD(ReportPull, ReportPullRequest, ReportPullReply)
  EMS_MODELS_METHOD(ReportSum, ReportSumRequest, ReportSumReply)
#undef EMS_MODELS_METHOD

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsReply* reply) override {
    return RunOrWait(context, request, reply, &ModelState::ListModels);
  }
  grpc::ServerUnaryReactor* GetDigests(grpc::CallbackServerContext* context,
                                       const v1::GetDigestsRequest* request,
                                       v1::GetDigestsReply* reply) override {
    return RunOrWait(context, request, reply, &ModelState::GetDigests);
  }

  grpc::ServerUnaryReactor* FollowUnverified(grpc::CallbackServerContext* context,
                                             const v1::FollowUnverifiedRequest* request,
                                             v1::FollowUnverifiedReply* reply) override {
    return RunOrWait(context, request, reply, &ModelState::FollowUnverified);
  }

  void Post(grpc::ServerUnaryReactor* reactor, std::function<void()>&& task) {
    if (loop.TryPost(std::move(task))) return;
    reactor->Finish(
        ToGrpc(Error(StatusCode::kResourceExhausted, "too many calls wait: try again")));
  }

  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const Request* request,
                                Reply* reply,
                                Status (ModelState::*method)(const Request&, Reply*)) {
    auto* reactor = context->DefaultReactor();
    if (!IsAdmitted(context, cluster, reactor)) return reactor;
    Post(reactor, [this, request, reply, method, reactor, context] {
      Answer((state->*method)(*request, reply), other, context, reactor);
      AskForLook();
    });
    return reactor;
  }

  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* RunOrWait(grpc::CallbackServerContext* context, const Request* request,
                                      Reply* reply,
                                      Status (ModelState::*method)(const Request&, Reply*, bool*)) {
    auto* reactor = context->DefaultReactor();
    if (!IsAdmitted(context, cluster, reactor)) return reactor;
    Post(reactor, [this, request, reply, method, reactor, context] {
      const auto look = [this, request, reply, method, reactor, context](bool last) {
        bool news = last;
        const Status status = (state->*method)(*request, reply, &news);
        if (status.ok() && !news && !last && !context->IsCancelled()) return false;
        Answer(status, other, context, reactor);
        return true;
      };
      const Duration wait =
          std::min<Duration>(std::chrono::milliseconds(request->wait_ms()), kWaitMax);
      const bool may_wait = wait > Duration::zero() && !closed.load(std::memory_order_acquire) &&
                            waiting.size() < kWaitingMax;
      if (!look(!may_wait)) waiting.push_back({clock->Now() + wait, look});
    });
    return reactor;
  }

  // After a call that may have changed something: behind all those that are queued by now, so that
  // many calls cost one look.
  void AskForLook() {
    if (look_asked || waiting.empty()) return;
    look_asked = loop.TryPost([this] {
      look_asked = false;
      LookAgain();
    });
  }

  // Cost: a look for each that waits.
  void LookAgain() {
    const TimePoint now = clock->Now();
    const bool all = closed.load(std::memory_order_acquire);
    std::erase_if(waiting, [&](Waiting& one) { return one.look(all || now >= one.until); });
  }

  ModelState* const state;
  const Clock* const clock;
  const ClusterId cluster;
  const FindOtherLeader other;
  std::atomic<bool> closed{false};
  std::vector<Waiting> waiting;
  bool look_asked = false;  // touched on the loop's thread only
  EventLoop loop;           // last: its thread uses the others
};

ModelService::ModelService(ModelState* state, const Clock* clock, ClusterId cluster,
                           FindOtherLeader other)
    : impl_(std::make_unique<Impl>(state, clock, cluster, std::move(other))) {}

ModelService::~ModelService() = default;

grpc::Service* ModelService::service() { return impl_.get(); }

bool ModelService::TryList(std::function<void(v1::ListModelsReply&& models)> take) {
  return impl_->loop.TryPost([state = impl_->state, take = std::move(take)] {
    v1::ListModelsReply models;
    bool news = true;
    (void)state->ListModels({}, &models, &news);  // of all, it has no errors
    take(std::move(models));
  });
}

void ModelService::Close() {
  impl_->closed.store(true, std::memory_order_release);
  // A full queue does not matter: the tick answers them.
  (void)impl_->loop.TryPost([impl = impl_.get()] { impl->LookAgain(); });
}

}  // namespace ems::controller
