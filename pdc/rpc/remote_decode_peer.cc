#include "pdc/rpc/remote_decode_peer.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "cluster/control_channel.h"
#include "cluster/unary_calls.h"
#include "common/guarded.h"
#include "pdc/rpc/internal/event_stream.h"
#include "pdc/rpc/internal/peer_watch.h"
#include "pdc/rpc/internal/wire.h"
#include "proto/pdc.grpc.pb.h"

namespace ems::pdc {
namespace {

// One task.
class GenerateStream final : public rpc::EventStream<v1::GenerateEvent> {
 public:
  GenerateStream(const std::string& peer, std::shared_ptr<rpc::StreamTable> table,
                 const DecodeTask& task, uint32_t vocab, std::shared_ptr<DecodeSink> sink)
      : EventStream(peer, std::move(table), task.deadline),
        id_(task.id),
        prompt_tokens_(task.prompt.size()),
        tokens_max_(task.tokens_max),
        vocab_(vocab) {
    rpc::ToProto(task, &request_);
    auto state = state_.Lock();
    state->sink = std::move(sink);
  }
  const v1::GenerateRequest* request() const { return &request_; }

 private:
  struct State {
    std::shared_ptr<DecodeSink> sink;  // until its end
    bool prompted = false;
    size_t tokens = 0;  // that have come
  };

  // What comes with an event makes sense; none of it has been passed on.
  Status Check(const v1::GenerateEvent& event) {
    const auto wrong = [](std::string_view what) { return Error(StatusCode::kDataLoss, what); };
    auto state = state_.Lock();
    if (state->sink == nullptr) return wrong("events after the end");
    if (event.has_prompt()) {
      if (state->prompted || state->tokens > 0) return wrong("a prompt twice, or after tokens");
      if (event.prompt().tokens() != prompt_tokens_ ||
          event.prompt().cached_tokens() > prompt_tokens_)
        return wrong("another prompt");
      state->prompted = true;
    }
    state->tokens += static_cast<size_t>(event.tokens_size());
    if (state->tokens > tokens_max_) return wrong("more tokens than were asked for");
    if (std::any_of(event.tokens().begin(), event.tokens().end(),
                    [&](TokenId token) { return token >= vocab_; }))
      return wrong("unknown tokens");
    if (event.has_end() && event.end().reason() == v1::GenerateEvent::End::REASON_FAILED &&
        event.end().failed().code() == 0)
      return wrong("a failure that is none");
    return OkStatus();
  }
  Status Take(const v1::GenerateEvent& event) override {
    EMS_RETURN_IF_ERROR(Check(event));
    const std::shared_ptr<DecodeSink> sink = Sink();
    if (event.has_prompt()) sink->OnPrompt(event.prompt().tokens(), event.prompt().cached_tokens());
    if (event.tokens_size() > 0)
      sink->OnTokens({event.tokens().data(), static_cast<size_t>(event.tokens_size())});
    if (!event.has_end()) return OkStatus();
    switch (event.end().reason()) {
      case v1::GenerateEvent::End::REASON_STOP:
        End(FinishReason::kStop);
        break;
      case v1::GenerateEvent::End::REASON_LENGTH:
        End(FinishReason::kLength);
        break;
      default:
        End(rpc::StatusOf(event.end().failed()));
    }
    return OkStatus();
  }
  void OnLost(const Status& why) override { End(why); }

  std::shared_ptr<DecodeSink> Sink() {
    auto state = state_.Lock();
    return state->sink;
  }
  // The first one counts.
  void End(Result<FinishReason> how) {
    std::shared_ptr<DecodeSink> sink;
    {
      auto state = state_.Lock();
      sink.swap(state->sink);
    }
    if (sink == nullptr) return;
    table().Forget(id_);
    sink->OnEnd(std::move(how));
  }

  const uint64_t id_;
  const size_t prompt_tokens_, tokens_max_;
  const uint32_t vocab_;
  v1::GenerateRequest request_;
  Guarded<State> state_;
};

}  // namespace

struct RemoteDecodePeer::Impl {
  struct State {
    std::shared_ptr<const InstanceInfo> instance;  // the last one
    DecodeHealth health;                           // but for its status
  };

  explicit Impl(RemoteDecodePeerOptions options_in)
      : options(std::move(options_in)),
        channel(MakeControlChannel(options.address, rpc::kMessageBytesMax)),
        stub(v1::Decode::NewStub(channel)),
        caller(channel),
        streams(
            std::make_shared<rpc::StreamTable>([this](const Status& why) { watch.Suspect(why); })),
        watch(fmt::format("decode {}", options.name), options.watch,
              {.connect = [this] { return Connect(); },
               .pulse = [this] { return Pulse(); },
               .up = [this] { streams->Open(); },
               .down = [this](const Status& why, bool) { streams->Close(why); }}) {}

  std::shared_ptr<const InstanceInfo> instance() {
    auto now = state.Lock();
    return now->instance;
  }
  Status Connect();
  Result<rpc::PulseNews> Pulse();

  const RemoteDecodePeerOptions options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Decode::Stub> stub;
  UnaryCalls caller;
  const std::shared_ptr<rpc::StreamTable> streams;
  Guarded<State> state;
  rpc::PeerWatch watch;  // last: its thread uses all the others
};

Status RemoteDecodePeer::Impl::Connect() {
  v1::Instance reply;
  EMS_RETURN_IF_ERROR(caller.Call(
      Deadline::After(options.watch.call_timeout),
      [&](grpc::ClientContext* context) { return stub->Describe(context, {}, &reply); }));
  EMS_ASSIGN_OR_RETURN(InstanceInfo described, rpc::InstanceOf(reply));
  if (options.expected) EMS_RETURN_IF_ERROR(CheckFits(described, *options.expected));
  {
    auto now = state.Lock();
    now->instance = std::make_shared<const InstanceInfo>(std::move(described));
  }
  return Pulse().status();  // its figures, before it is used
}

Result<rpc::PulseNews> RemoteDecodePeer::Impl::Pulse() {
  v1::DecodePulseReply reply;
  EMS_RETURN_IF_ERROR(
      caller.Call(Deadline::After(options.watch.call_timeout),
                  [&](grpc::ClientContext* context) { return stub->Pulse(context, {}, &reply); }));
  auto now = state.Lock();
  if (reply.incarnation() != now->instance->incarnation)
    return Error(StatusCode::kUnavailable, "another process has taken its place");
  now->health = {.status = OkStatus(),
                 .running = reply.running(),
                 .waiting = reply.waiting(),
                 .kv_tokens = reply.kv_tokens(),
                 .kv_tokens_max = reply.kv_tokens_max(),
                 .admits = rpc::StatusOf(reply.admits())};
  return rpc::PulseNews{rpc::StatusOf(reply.status()), reply.ticks(), reply.busy()};
}

RemoteDecodePeer::RemoteDecodePeer(RemoteDecodePeerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

RemoteDecodePeer::~RemoteDecodePeer() {
  impl_->caller.Close();
  impl_->watch.Stop();
  impl_->streams->Close(
      Error(StatusCode::kUnavailable, "decode {}: this side is stopping", impl_->options.name));
  impl_->streams->WaitUntilEmpty();
}

const std::string& RemoteDecodePeer::name() const { return impl_->options.name; }

DecodeHealth RemoteDecodePeer::health() {
  const Status status = impl_->watch.status();
  auto now = impl_->state.Lock();
  DecodeHealth health = now->health;
  health.status = status;
  return health;
}

std::optional<InstanceInfo> RemoteDecodePeer::instance() const {
  const auto instance = impl_->instance();
  if (instance == nullptr) return std::nullopt;
  return *instance;
}

Status RemoteDecodePeer::Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) {
  const Status status = impl_->watch.status();
  if (!status.ok()) return Error(StatusCode::kUnavailable, Message(status));
  const auto instance = impl_->instance();
  EMS_RETURN_IF_ERROR(rpc::CheckPrompt(task.prompt, task.sampler, task.cache_salt, *instance));
  if (task.tokens_max == 0) return Error(StatusCode::kInvalidArgument, "no tokens are wanted");
  const auto stream = std::make_shared<GenerateStream>(
      fmt::format("decode {}", name()), impl_->streams, task, instance->vocab, std::move(sink));
  EMS_RETURN_IF_ERROR(impl_->streams->Add(task.id, stream));
  stream->Begin([&](grpc::ClientContext* context, auto* reactor) {
    impl_->stub->async()->Generate(context, stream->request(), reactor);
  });
  return OkStatus();
}

void RemoteDecodePeer::Cancel(uint64_t id) {
  impl_->streams->Interrupt(id, Error(StatusCode::kCancelled, "cancelled"));
}

}  // namespace ems::pdc
