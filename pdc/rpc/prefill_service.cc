#include "pdc/rpc/prefill_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/logging.h"
#include "pdc/rpc/internal/event_writer.h"
#include "pdc/rpc/internal/grpc_server.h"
#include "pdc/rpc/internal/place.h"
#include "pdc/rpc/internal/wire.h"
#include "pdc/rpc/ring_acceptor.h"
#include "proto/pdc.grpc.pb.h"

namespace ems::pdc {
namespace {

// Rings that are here, by session.
class Sessions final {
 public:
  explicit Sessions(const PrefillServiceOptions& options)
      : max_(options.sessions_max), lease_(options.session_lease) {}

  // Errors: kAlreadyExists    kResourceExhausted
  Status Reserve(uint64_t session) {
    auto state = state_.Lock();
    if (state->contains(session))
      return Error(StatusCode::kAlreadyExists, "the session has a ring");
    if (state->size() >= max_)
      return Error(StatusCode::kResourceExhausted, "{} rings are here", state->size());
    state->emplace(session, Session{std::nullopt, Deadline::After(lease_)});
    return OkStatus();
  }
  void Settle(uint64_t session, PrefillLinkId link) {
    auto state = state_.Lock();
    (*state)[session].link = link;
  }
  void Drop(uint64_t session) {
    auto state = state_.Lock();
    state->erase(session);
  }
  std::optional<PrefillLinkId> Find(uint64_t session) {
    auto state = state_.Lock();
    const auto found = state->find(session);
    return found == state->end() ? std::nullopt : found->second.link;
  }
  void Renew(uint64_t session) {
    auto state = state_.Lock();
    const auto found = state->find(session);
    if (found != state->end()) found->second.lease = Deadline::After(lease_);
  }
  // Takes out those for whom `is_over(link, lease_passed)`, which is asked without the lock.
  template <typename IsOver>
  std::vector<PrefillLinkId> TakeOut(IsOver is_over) {
    std::map<uint64_t, Session> all;
    {
      auto state = state_.Lock();
      all = *state;
    }
    std::vector<PrefillLinkId> out;
    for (const auto& [session, known] : all) {
      if (!known.link || !is_over(*known.link, known.lease.Passed())) continue;
      out.push_back(*known.link);
      Drop(session);
    }
    return out;
  }
  size_t size() {
    auto state = state_.Lock();
    return state->size();
  }

 private:
  struct Session {
    std::optional<PrefillLinkId> link;  // none while it is being attached
    Deadline lease = Deadline::After(Duration::zero());
  };
  const size_t max_;
  const Duration lease_;
  Guarded<std::map<uint64_t, Session>> state_;
};

// One task: what its events say goes to its caller.
class RunCall final : public rpc::EventWriter<v1::RunEvent> {
 public:
  RunCall(PrefillHost* host, std::unique_ptr<rpc::Place> place)
      : host_(host), place_(std::move(place)) {}

  Status Start(PrefillLinkId link, PrefillTask task) {
    const std::shared_ptr<EventWriter> self = shared_from_this();
    PrefillEvents events;
    events.on_done = [self](const Result<PrefillOutcome>& outcome) {
      self->Add([&](v1::RunEvent* event) {
        if (outcome.ok()) {
          rpc::ToProto(*outcome, event->mutable_done());
        } else {
          rpc::ToProto(outcome.status(), event->mutable_failed());
        }
      });
      if (!outcome.ok()) self->Close(OkStatus());
    };
    events.on_sent = [self](const Status& status) {
      self->Add([&](v1::RunEvent* event) { rpc::ToProto(status, event->mutable_sent()); });
      self->Close(OkStatus());
    };
    const uint64_t id = task.id;
    EMS_RETURN_IF_ERROR(host_->Start(link, std::move(task), std::move(events)));
    bool gone = false;
    {
      auto started = started_.Lock();
      started->task = {link, id};
      gone = started->gone;
    }
    if (gone) host_->Cancel(link, id);
    return OkStatus();
  }

 private:
  struct Started {
    std::optional<std::pair<PrefillLinkId, uint64_t>> task;
    bool gone = false;
  };
  void OnGone() override {
    std::optional<std::pair<PrefillLinkId, uint64_t>> task;
    {
      auto started = started_.Lock();
      started->gone = true;
      task = started->task;
    }
    if (task) host_->Cancel(task->first, task->second);
  }

  PrefillHost* const host_;
  const std::unique_ptr<rpc::Place> place_;  // null: it was refused
  Guarded<Started> started_;
};

// Threading: thread-safe.
class Handlers final : public v1::Prefill::CallbackService {
 public:
  Handlers(const PrefillServiceOptions* options, PrefillHost* host, Sessions* sessions)
      : options_(*options), host_(host), sessions_(sessions) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest*, v1::Instance* reply) override {
    rpc::ToProto(options_.instance, reply);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Pulse(grpc::CallbackServerContext* context,
                                  const v1::PulseRequest* request,
                                  v1::PrefillPulseReply* reply) override {
    const PrefillPulse pulse = host_->Pulse();
    sessions_->Renew(request->session());
    const auto link = sessions_->Find(request->session());
    reply->set_incarnation(options_.instance.incarnation);
    reply->set_linked(link.has_value() && host_->LinkStatus(*link).ok());
    rpc::ToProto(pulse.status, reply->mutable_status());
    reply->set_ticks(pulse.ticks);
    reply->set_busy(pulse.busy);
    reply->set_queued_cost(pulse.queued_cost);
    reply->set_kv_tokens_free(pulse.kv_tokens_free);
    reply->set_tasks(pulse.tasks);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::RunEvent>* Run(grpc::CallbackServerContext* context,
                                              const v1::RunRequest* request) override {
    auto place = rpc::Place::Take(streams_, options_.streams_max);
    const bool full = place == nullptr;
    auto call = std::make_shared<RunCall>(host_, std::move(place));
    call->Begin();
    const Status started =
        full ? Error(StatusCode::kResourceExhausted, "{} tasks are under way", options_.streams_max)
             : Start(*context, *request, call.get());
    if (!started.ok()) call->Close(started);
    return call.get();  // OnDone comes after this returns
  }

 private:
  Status Start(const grpc::CallbackServerContext& context, const v1::RunRequest& request,
               RunCall* call) {
    EMS_RETURN_IF_ERROR(rpc::CheckDeadline(context));
    EMS_ASSIGN_OR_RETURN(PrefillTask task, rpc::TaskOf(request, options_.instance));
    const auto link = sessions_->Find(request.session());
    if (!link) return Error(StatusCode::kUnavailable, "no ring has come for this session");
    return call->Start(*link, std::move(task));
  }

  const PrefillServiceOptions& options_;
  PrefillHost* const host_;
  Sessions* const sessions_;
  const rpc::PlacesTaken streams_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace

struct PrefillService::Impl {
  Impl(PrefillServiceOptions options_in, PrefillHost* host_in)
      : options(std::move(options_in)),
        host(host_in),
        sessions(options),
        handlers(&options, host, &sessions) {}

  Status Attach(uint64_t session, std::unique_ptr<fabric::RingSender> ring) {
    EMS_RETURN_IF_ERROR(sessions.Reserve(session));
    const Result<PrefillLinkId> link = host->AttachRing(std::move(ring));
    if (!link.ok()) {
      sessions.Drop(session);
      return link.status();
    }
    sessions.Settle(session, *link);
    EMS_LOG(kInfo, "pdc", "ring attached link={}", *link);
    return OkStatus();
  }
  void Detach(const std::vector<PrefillLinkId>& links) const {
    for (const PrefillLinkId link : links) {
      EMS_LOG(kInfo, "pdc", "ring detached link={}", link);
      host->DetachRing(link);
    }
  }
  void Tick() {
    Detach(sessions.TakeOut([this](PrefillLinkId link, bool lease_passed) {
      return lease_passed || !host->LinkStatus(link).ok();
    }));
  }

  const PrefillServiceOptions options;
  PrefillHost* const host;
  Sessions sessions;
  Handlers handlers;
  std::unique_ptr<RingAcceptor> acceptor;
  std::unique_ptr<rpc::GrpcServer> server;
};

PrefillService::PrefillService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PrefillService::~PrefillService() {
  impl_->server.reset();
  impl_->acceptor.reset();
  impl_->Detach(impl_->sessions.TakeOut([](PrefillLinkId, bool) { return true; }));
}

const std::string& PrefillService::address() const { return impl_->server->address(); }
const InstanceInfo& PrefillService::instance() const { return impl_->options.instance; }
size_t PrefillService::sessions() const { return impl_->sessions.size(); }

Result<std::unique_ptr<PrefillService>> PrefillService::Start(PrefillServiceOptions options,
                                                              PrefillHost* host) {
  if (options.instance.incarnation == 0) options.instance.incarnation = NewIncarnation();
  EMS_RETURN_IF_ERROR(CheckInstance(options.instance));
  if (options.instance.ring_socket_path.empty())
    return Error(StatusCode::kInvalidArgument, "a prefill service needs a socket for rings");
  auto impl = std::make_unique<Impl>(std::move(options), host);
  EMS_ASSIGN_OR_RETURN(
      impl->acceptor,
      RingAcceptor::Start({.path = impl->options.instance.ring_socket_path,
                           .incarnation = impl->options.instance.incarnation,
                           .tick_every = std::min<Duration>(std::chrono::seconds(1),
                                                            impl->options.session_lease / 4)},
                          {.attach =
                               [here = impl.get()](uint64_t session, auto ring) {
                                 return here->Attach(session, std::move(ring));
                               },
                           .tick = [here = impl.get()] { here->Tick(); }}));
  EMS_ASSIGN_OR_RETURN(impl->server, rpc::GrpcServer::Start(impl->options.listen, &impl->handlers));
  return std::unique_ptr<PrefillService>(
      new PrefillService(std::move(impl)));  // NOLINT: the constructor is private
}

}  // namespace ems::pdc
