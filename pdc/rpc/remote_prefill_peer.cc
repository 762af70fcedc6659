#include "pdc/rpc/remote_prefill_peer.h"

#include <grpcpp/grpcpp.h>

#include <array>
#include <utility>
#include <variant>

#include "cluster/control_channel.h"
#include "cluster/unary_calls.h"
#include "common/guarded.h"
#include "fabric/net/fd_message.h"
#include "fabric/net/socket.h"
#include "pdc/rpc/internal/event_stream.h"
#include "pdc/rpc/internal/peer_watch.h"
#include "pdc/rpc/internal/wire.h"
#include "pdc/rpc/ring_greeting.h"
#include "proto/pdc.grpc.pb.h"

namespace ems::pdc {
namespace {

constexpr Duration kAttachLook = std::chrono::milliseconds(10);

// One prompt.
class RunStream final : public rpc::EventStream<v1::RunEvent> {
 public:
  RunStream(const std::string& peer, std::shared_ptr<rpc::StreamTable> table,
            const PrefillTask& task, uint64_t session, uint32_t vocab, PrefillEvents events)
      : EventStream(peer, std::move(table), task.deadline),
        id_(task.id),
        prompt_tokens_(task.prompt.size()),
        vocab_(vocab) {
    rpc::ToProto(task, session, &request_);
    auto state = state_.Lock();
    state->events = std::move(events);
  }
  const v1::RunRequest* request() const { return &request_; }

 private:
  enum class Stage : uint8_t { kWaiting, kDone, kOver };
  struct State {
    Stage stage = Stage::kWaiting;
    PrefillEvents events;  // those that are to come
  };

  Status Take(const v1::RunEvent& event) override {
    if (event.has_failed()) {
      const Status why = rpc::StatusOf(event.failed());
      if (why.ok() || event.has_done() || event.has_sent())
        return Error(StatusCode::kDataLoss, "a failure that is none");
      return Advance(Stage::kWaiting, Stage::kOver, why);
    }
    if (event.has_done()) {
      EMS_ASSIGN_OR_RETURN(const PrefillOutcome outcome,
                           rpc::OutcomeOf(event.done(), prompt_tokens_, vocab_));
      EMS_RETURN_IF_ERROR(Advance(Stage::kWaiting, Stage::kDone, outcome));
    }
    if (event.has_sent())
      EMS_RETURN_IF_ERROR(Advance(Stage::kDone, Stage::kOver, rpc::StatusOf(event.sent())));
    return OkStatus();
  }
  void OnLost(const Status& why) override {
    // Whichever is to come; none, if it was over.
    const Status waiting = Advance(Stage::kWaiting, Stage::kOver, why);
    if (!waiting.ok()) (void)Advance(Stage::kDone, Stage::kOver, why);
  }

  // From one stage to the next, with the event of it. Errors: kDataLoss  it is at another stage
  Status Advance(Stage from, Stage to, const std::variant<Status, PrefillOutcome>& what) {
    PrefillEvents events;
    {
      auto state = state_.Lock();
      if (state->stage != from)
        return Error(StatusCode::kDataLoss, "events of a task out of order");
      state->stage = to;
      if (from == Stage::kWaiting) events.on_done = std::exchange(state->events.on_done, nullptr);
      if (to == Stage::kOver) events.on_sent = std::exchange(state->events.on_sent, nullptr);
    }
    if (to == Stage::kOver) table().Forget(id_);
    if (from == Stage::kDone) {
      events.on_sent(std::get<Status>(what));
    } else if (to == Stage::kOver) {
      events.on_done(std::get<Status>(what));
    } else {
      events.on_done(std::get<PrefillOutcome>(what));
    }
    return OkStatus();
  }

  const uint64_t id_;
  const size_t prompt_tokens_;
  const uint32_t vocab_;
  v1::RunRequest request_;
  Guarded<State> state_;
};

}  // namespace

struct RemotePrefillPeer::Impl {
  // The parts of the connection that calls use, while there is one.
  struct Link {
    uint64_t session = 0;
    std::shared_ptr<const InstanceInfo> instance;
    std::shared_ptr<fabric::RingReceiver> ring;
  };
  struct State {
    Link link;
    std::shared_ptr<const InstanceInfo> last_instance;
    double queued_cost = 0;
  };

  explicit Impl(RemotePrefillPeerOptions options_in)
      : options(std::move(options_in)),
        channel(MakeControlChannel(options.address, rpc::kMessageBytesMax)),
        stub(v1::Prefill::NewStub(channel)),
        caller(channel),
        streams(
            std::make_shared<rpc::StreamTable>([this](const Status& why) { watch.Suspect(why); })),
        watch(fmt::format("prefill {}", options.name), options.watch,
              {.connect = [this] { return Connect(); },
               .pulse = [this] { return Pulse(); },
               .up = [this] { streams->Open(); },
               .down = [this](const Status& why, bool gone) { Down(why, gone); }}) {}

  Status Connect();
  Result<std::shared_ptr<const InstanceInfo>> Describe();
  Result<std::shared_ptr<fabric::RingReceiver>> OfferRing(const InstanceInfo& instance,
                                                          uint64_t session) const;
  Result<v1::PrefillPulseReply> AskPulse(uint64_t session, uint64_t incarnation);
  Status WaitUntilAttached(const Link& link);
  Result<rpc::PulseNews> Pulse();
  void Down(const Status& why, bool gone);

  const RemotePrefillPeerOptions options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Prefill::Stub> stub;
  UnaryCalls caller;
  const std::shared_ptr<rpc::StreamTable> streams;
  Guarded<State> state;
  StopFlag stop;
  rpc::PeerWatch watch;  // last: its thread uses all the others
};

Result<std::shared_ptr<const InstanceInfo>> RemotePrefillPeer::Impl::Describe() {
  v1::Instance reply;
  EMS_RETURN_IF_ERROR(caller.Call(
      Deadline::After(options.watch.call_timeout),
      [&](grpc::ClientContext* context) { return stub->Describe(context, {}, &reply); }));
  EMS_ASSIGN_OR_RETURN(InstanceInfo instance, rpc::InstanceOf(reply));
  EMS_RETURN_IF_ERROR(CheckFits(instance, options.expected));
  if (instance.ring_socket_path.empty())
    return Error(StatusCode::kFailedPrecondition, "it takes no rings");
  return std::make_shared<const InstanceInfo>(std::move(instance));
}

Result<std::shared_ptr<fabric::RingReceiver>> RemotePrefillPeer::Impl::OfferRing(
    const InstanceInfo& instance, uint64_t session) const {
  EMS_ASSIGN_OR_RETURN(
      fabric::Fd socket,
      fabric::Connect({.host = {}, .port = 0, .unix_path = instance.ring_socket_path},
                      options.watch.call_timeout));
  const RingGreeting greeting{.incarnation = instance.incarnation, .session = session};
  EMS_RETURN_IF_ERROR(
      fabric::SendMessageTo(socket.get(), std::as_bytes(std::span(&greeting, 1)), {}));
  EMS_ASSIGN_OR_RETURN(auto ring, fabric::RingReceiver::Offer(std::move(socket), options.ring));
  return std::shared_ptr<fabric::RingReceiver>(std::move(ring));
}

// Errors: kUnavailable also for another incarnation: what was there is gone.
Result<v1::PrefillPulseReply> RemotePrefillPeer::Impl::AskPulse(uint64_t session,
                                                                uint64_t incarnation) {
  v1::PulseRequest request;
  request.set_session(session);
  v1::PrefillPulseReply reply;
  EMS_RETURN_IF_ERROR(caller.Call(
      Deadline::After(options.watch.call_timeout),
      [&](grpc::ClientContext* context) { return stub->Pulse(context, request, &reply); }));
  if (reply.incarnation() != incarnation)
    return Error(StatusCode::kUnavailable, "another process has taken its place");
  return reply;
}

Status RemotePrefillPeer::Impl::WaitUntilAttached(const Link& link) {
  const Deadline deadline = Deadline::After(options.watch.call_timeout);
  while (true) {
    EMS_ASSIGN_OR_RETURN(const v1::PrefillPulseReply reply,
                         AskPulse(link.session, link.instance->incarnation));
    if (reply.linked()) return OkStatus();
    if (link.ring->peer_is_gone()) return Error(StatusCode::kUnavailable, "it refused the ring");
    if (deadline.Passed())
      return Error(StatusCode::kDeadlineExceeded, "it did not take the ring in time");
    if (stop.WaitFor(kAttachLook)) return Error(StatusCode::kCancelled, "stopping");
  }
}

Status RemotePrefillPeer::Impl::Connect() {
  Link link;
  link.session = NewIncarnation();
  EMS_ASSIGN_OR_RETURN(link.instance, Describe());
  EMS_ASSIGN_OR_RETURN(link.ring, OfferRing(*link.instance, link.session));
  EMS_RETURN_IF_ERROR(WaitUntilAttached(link));
  auto now = state.Lock();
  now->last_instance = link.instance;
  now->link = std::move(link);
  return OkStatus();
}

Result<rpc::PulseNews> RemotePrefillPeer::Impl::Pulse() {
  Link link;
  {
    auto now = state.Lock();
    link = now->link;
  }
  if (link.ring->peer_is_gone())
    return Error(StatusCode::kUnavailable, "its end of the ring is gone");
  EMS_ASSIGN_OR_RETURN(const v1::PrefillPulseReply reply,
                       AskPulse(link.session, link.instance->incarnation));
  if (!reply.linked()) return Error(StatusCode::kUnavailable, "it has dropped the ring");
  auto now = state.Lock();
  now->queued_cost = reply.queued_cost() >= 0 ? reply.queued_cost() : 0;  // NaN, too
  return rpc::PulseNews{rpc::StatusOf(reply.status()), reply.ticks(), reply.busy()};
}

void RemotePrefillPeer::Impl::Down(const Status& why, bool gone) {
  Link link;  // goes after the lock
  if (gone) {
    auto now = state.Lock();
    std::swap(link, now->link);
    now->queued_cost = 0;
  }
  streams->Close(why);
}

RemotePrefillPeer::RemotePrefillPeer(RemotePrefillPeerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

RemotePrefillPeer::~RemotePrefillPeer() {
  impl_->stop.Set();
  impl_->caller.Close();
  impl_->watch.Stop();
  impl_->streams->Close(
      Error(StatusCode::kUnavailable, "prefill {}: this side is stopping", impl_->options.name));
  impl_->streams->WaitUntilEmpty();
}

const std::string& RemotePrefillPeer::name() const { return impl_->options.name; }

PrefillHealth RemotePrefillPeer::health() {
  const Status status = impl_->watch.status();
  auto now = impl_->state.Lock();
  return {status, now->queued_cost};
}

std::shared_ptr<fabric::RingReceiver> RemotePrefillPeer::ring() {
  auto now = impl_->state.Lock();
  return now->link.ring;
}

std::optional<InstanceInfo> RemotePrefillPeer::instance() const {
  auto now = impl_->state.Lock();
  if (now->last_instance == nullptr) return std::nullopt;
  return *now->last_instance;
}

Status RemotePrefillPeer::Start(PrefillTask task, PrefillEvents events) {
  const Status status = impl_->watch.status();
  if (!status.ok()) return Error(StatusCode::kUnavailable, Message(status));
  Impl::Link link;
  {
    auto now = impl_->state.Lock();
    link = now->link;
  }
  if (link.ring == nullptr)
    return Error(StatusCode::kUnavailable, "prefill {}: no link", impl_->options.name);
  if (task.id >> 48 != 0)
    return Error(StatusCode::kInvalidArgument, "no hand-off can have the id {}", task.id);
  EMS_RETURN_IF_ERROR(rpc::CheckPrompt(task.prompt, task.sampler, task.cache_salt, *link.instance));
  const auto stream =
      std::make_shared<RunStream>(fmt::format("prefill {}", name()), impl_->streams, task,
                                  link.session, link.instance->vocab, std::move(events));
  EMS_RETURN_IF_ERROR(impl_->streams->Add(task.id, stream));
  stream->Begin([&](grpc::ClientContext* context, auto* reactor) {
    impl_->stub->async()->Run(context, stream->request(), reactor);
  });
  return OkStatus();
}

void RemotePrefillPeer::Cancel(uint64_t id) {
  impl_->streams->Interrupt(id, Error(StatusCode::kCancelled, "cancelled"));
}

}  // namespace ems::pdc
