#include "pdc/rpc/prefill_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "common/guarded.h"
#include "common/logging.h"
#include "pdc/rpc/internal/event_writer.h"
#include "pdc/rpc/internal/grpc_server.h"
#include "pdc/rpc/internal/wire.h"
#include "pdc/rpc/ring_acceptor.h"
#include "proto/pdc.grpc.pb.h"

namespace ems::pdc {
namespace {

// Links that are here, by session.
class RingSessions final {
 public:
  RingSessions(const PrefillServiceOptions& options, PrefillHost* host)
      : max_(options.sessions_max), lease_(options.session_lease), host_(host) {}

  // Attach and Tick: of one thread (the acceptor's).
  // Errors: kAlreadyExists    kResourceExhausted    those of PrefillHost::Attach
  Status Attach(uint64_t session, std::unique_ptr<fabric::RingSender> ring) {
    {
      auto state = state_.Lock();
      if (state->contains(session))
        return Error(StatusCode::kAlreadyExists, "the session has a ring");
      if (state->size() >= max_)
        return Error(StatusCode::kResourceExhausted, "{} rings are here", state->size());
    }
    EMS_ASSIGN_OR_RETURN(auto link, host_->Attach(std::move(ring)));
    auto state = state_.Lock();
    state->emplace(session, RingSession{std::move(link), Deadline::After(lease_)});
    const size_t rings = state->size();
    state.Unlock();
    EMS_LOG(kInfo, "pdc", "ring attached rings={}", rings);
    return OkStatus();
  }
  // Releases links that are dead, or whose lease has expired.
  void Tick() {
    auto state = state_.Lock();
    const std::map<uint64_t, RingSession> all = *state;  // they go after the lock
    state.Unlock();
    for (const auto& [session, known] : all) {
      if (!known.lease.Passed() && known.link->link().ok()) continue;
      auto here = state_.Lock();
      here->erase(session);
      const size_t rings = here->size();
      here.Unlock();
      EMS_LOG(kInfo, "pdc", "ring detached rings={}", rings);
    }
  }
  // Null: none.
  std::shared_ptr<PrefillLink> Find(uint64_t session) {
    auto state = state_.Lock();
    const auto found = state->find(session);
    return found == state->end() ? nullptr : found->second.link;
  }
  void Renew(uint64_t session) {
    auto state = state_.Lock();
    const auto found = state->find(session);
    if (found != state->end()) found->second.lease = Deadline::After(lease_);
  }

 private:
  struct RingSession {
    std::shared_ptr<PrefillLink> link;
    Deadline lease;
  };
  const size_t max_;
  const Duration lease_;
  PrefillHost* const host_;
  Guarded<std::map<uint64_t, RingSession>> state_;
};

using RunCall = rpc::EventWriter<v1::RunEvent>;

// What the events of a task say goes to its caller.
PrefillEvents EventsTo(const std::shared_ptr<RunCall>& call) {
  PrefillEvents events;
  events.on_done = [call](const Result<PrefillOutcome>& outcome) {
    call->Add([&](v1::RunEvent* event) {
      if (outcome.ok()) {
        rpc::ToProto(*outcome, event->mutable_done());
      } else {
        rpc::ToProto(outcome.status(), event->mutable_failed());
      }
    });
    if (!outcome.ok()) call->Close(OkStatus());
  };
  events.on_sent = [call](const Status& status) {
    call->Add([&](v1::RunEvent* event) { rpc::ToProto(status, event->mutable_sent()); });
    call->Close(OkStatus());
  };
  return events;
}

class PrefillService final : public InstanceService, public v1::Prefill::CallbackService {
 public:
  PrefillService(PrefillServiceOptions options, PrefillHost* host)
      : options_(std::move(options)), host_(host), sessions_(options_, host) {}

  Status Listen() {
    EMS_ASSIGN_OR_RETURN(
        acceptor_,
        RingAcceptor::Start(
            {.path = options_.instance.ring_socket_path,
             .incarnation = options_.instance.incarnation,
             .tick_every = std::min<Duration>(std::chrono::seconds(1), options_.session_lease / 4)},
            {.attach = [this](uint64_t session,
                              auto ring) { return sessions_.Attach(session, std::move(ring)); },
             .tick = [this] { sessions_.Tick(); }}));
    EMS_ASSIGN_OR_RETURN(server_, rpc::GrpcServer::Start(options_.listen, this));
    return OkStatus();
  }
  const std::string& address() const override { return server_->address(); }
  const InstanceInfo& instance() const override { return options_.instance; }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest*, v1::Instance* reply) override {
    rpc::ToProto(options_.instance, reply);
    return rpc::Answered(context);
  }

  grpc::ServerUnaryReactor* Pulse(grpc::CallbackServerContext* context,
                                  const v1::PulseRequest* request,
                                  v1::PrefillPulseReply* reply) override {
    const PrefillPulse pulse = host_->Pulse();
    sessions_.Renew(request->session());
    const auto link = sessions_.Find(request->session());
    reply->set_incarnation(options_.instance.incarnation);
    reply->set_linked(link != nullptr && link->link().ok());
    rpc::ToProto(pulse.status, reply->mutable_status());
    reply->set_ticks(pulse.ticks);
    reply->set_busy(pulse.busy);
    reply->set_queued_cost(pulse.queued_cost);
    reply->set_kv_tokens_free(pulse.kv_tokens_free);
    reply->set_tasks(pulse.tasks);
    return rpc::Answered(context);
  }

  grpc::ServerWriteReactor<v1::RunEvent>* Run(grpc::CallbackServerContext* context,
                                              const v1::RunRequest* request) override {
    auto call = std::make_shared<RunCall>(rpc::CallPermit::Take(streams_, options_.streams_max));
    return call->Begin(*context, [&] { return Start(*request, call); });
  }

 private:
  Status Start(const v1::RunRequest& request, const std::shared_ptr<RunCall>& call) {
    EMS_ASSIGN_OR_RETURN(PrefillTask task, rpc::TaskOf(request, options_.instance));
    const auto link = sessions_.Find(request.session());
    if (link == nullptr)
      return Error(StatusCode::kUnavailable, "no ring has come for this session");
    const uint64_t id = task.id;
    EMS_RETURN_IF_ERROR(link->Start(std::move(task), EventsTo(call)));
    // Weak: the end of the link is the end of its tasks, also while a call still listens.
    call->CancelWith([weak = std::weak_ptr(link), id] {
      if (const auto here = weak.lock()) here->Cancel(id);
    });
    return OkStatus();
  }

  const PrefillServiceOptions options_;
  PrefillHost* const host_;
  RingSessions sessions_;
  const rpc::PermitsTaken streams_ = std::make_shared<std::atomic<size_t>>(0);
  // They go first, in reverse: calls, then the thread that takes rings, then these.
  std::unique_ptr<RingAcceptor> acceptor_;
  std::unique_ptr<rpc::GrpcServer> server_;
};

}  // namespace

Result<std::unique_ptr<InstanceService>> ServePrefill(PrefillServiceOptions options,
                                                      PrefillHost* host) {
  if (options.instance.incarnation == 0) options.instance.incarnation = NewIncarnation();
  EMS_RETURN_IF_ERROR(CheckInstance(options.instance));
  if (options.instance.ring_socket_path.empty())
    return Error(StatusCode::kInvalidArgument, "a prefill service needs a socket for rings");
  auto service = std::make_unique<PrefillService>(std::move(options), host);
  EMS_RETURN_IF_ERROR(service->Listen());
  return service;
}

}  // namespace ems::pdc
