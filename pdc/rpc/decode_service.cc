#include "pdc/rpc/decode_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "common/guarded.h"
#include "pdc/rpc/internal/event_writer.h"
#include "pdc/rpc/internal/grpc_server.h"
#include "pdc/rpc/internal/place.h"
#include "pdc/rpc/internal/wire.h"
#include "proto/pdc.grpc.pb.h"

namespace ems::pdc {
namespace {

// One task: what its sink hears goes to its caller.
class GenerateCall final : public rpc::EventWriter<v1::GenerateEvent>, public DecodeSink {
 public:
  GenerateCall(DecodePeer* decode, uint64_t id, std::unique_ptr<rpc::Place> place)
      : decode_(decode), id_(id), place_(std::move(place)) {}

  Status Start(DecodeTask task) {
    task.id = id_;
    const std::shared_ptr<EventWriter> self = shared_from_this();
    EMS_RETURN_IF_ERROR(
        decode_->Submit(std::move(task), std::static_pointer_cast<GenerateCall>(self)));
    bool gone = false;
    {
      auto started = started_.Lock();
      started->submitted = true;
      gone = started->gone;
    }
    if (gone) decode_->Cancel(id_);
    return OkStatus();
  }

  void OnPrompt(uint32_t prompt_tokens, uint32_t cached_tokens) override {
    Add([=](v1::GenerateEvent* event) {
      event->mutable_prompt()->set_tokens(prompt_tokens);
      event->mutable_prompt()->set_cached_tokens(cached_tokens);
    });
  }
  void OnTokens(std::span<const TokenId> tokens) override {
    Add([=](v1::GenerateEvent* event) {
      event->mutable_tokens()->Add(tokens.begin(), tokens.end());
    });
  }
  void OnEnd(Result<FinishReason> how) override {
    Add([&](v1::GenerateEvent* event) {
      v1::GenerateEvent::End* end = event->mutable_end();
      if (how.ok()) {
        end->set_reason(*how == FinishReason::kStop ? v1::GenerateEvent::End::REASON_STOP
                                                    : v1::GenerateEvent::End::REASON_LENGTH);
      } else {
        rpc::ToProto(how.status(), end->mutable_failed());
      }
    });
    Close(OkStatus());
  }

 private:
  struct Started {
    bool submitted = false;
    bool gone = false;
  };
  void OnGone() override {
    bool submitted = false;
    {
      auto started = started_.Lock();
      started->gone = true;
      submitted = started->submitted;
    }
    if (submitted) decode_->Cancel(id_);
  }

  DecodePeer* const decode_;
  const uint64_t id_;
  const std::unique_ptr<rpc::Place> place_;  // null: it was refused
  Guarded<Started> started_;
};

// Threading: thread-safe.
class Handlers final : public v1::Decode::CallbackService {
 public:
  Handlers(const DecodeServiceOptions* options, DecodePeer* decode)
      : options_(*options), decode_(decode) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest*, v1::Instance* reply) override {
    rpc::ToProto(options_.instance, reply);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Pulse(grpc::CallbackServerContext* context, const v1::PulseRequest*,
                                  v1::DecodePulseReply* reply) override {
    const DecodeHealth health = decode_->health();
    const DecodeTicks ticks = options_.ticks ? options_.ticks() : DecodeTicks{};
    reply->set_incarnation(options_.instance.incarnation);
    rpc::ToProto(health.status, reply->mutable_status());
    rpc::ToProto(health.admits, reply->mutable_admits());
    reply->set_ticks(ticks.ticks);
    reply->set_busy(ticks.busy);
    reply->set_running(health.running);
    reply->set_waiting(health.waiting);
    reply->set_kv_tokens(health.kv_tokens);
    reply->set_kv_tokens_max(health.kv_tokens_max);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto place = rpc::Place::Take(streams_, options_.streams_max);
    const bool full = place == nullptr;
    const uint64_t id = next_task_.fetch_add(1, std::memory_order_relaxed);
    auto call = std::make_shared<GenerateCall>(decode_, id, std::move(place));
    call->Begin();
    const Status started =
        full ? Error(StatusCode::kResourceExhausted, "{} tasks are under way", options_.streams_max)
             : Start(*context, *request, call.get());
    if (!started.ok()) call->Close(started);
    return call.get();  // OnDone comes after this returns
  }

 private:
  Status Start(const grpc::CallbackServerContext& context, const v1::GenerateRequest& request,
               GenerateCall* call) {
    EMS_RETURN_IF_ERROR(rpc::CheckDeadline(context));
    EMS_ASSIGN_OR_RETURN(DecodeTask task, rpc::TaskOf(request, options_.instance));
    return call->Start(std::move(task));
  }

  const DecodeServiceOptions& options_;
  DecodePeer* const decode_;
  const rpc::PlacesTaken streams_ = std::make_shared<std::atomic<size_t>>(0);
  std::atomic<uint64_t> next_task_{DecodeService::kFirstTask};
};

}  // namespace

struct DecodeService::Impl {
  Impl(DecodeServiceOptions options_in, DecodePeer* decode)
      : options(std::move(options_in)), handlers(&options, decode) {}

  const DecodeServiceOptions options;
  Handlers handlers;
  std::unique_ptr<rpc::GrpcServer> server;
};

DecodeService::DecodeService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeService::~DecodeService() = default;

const std::string& DecodeService::address() const { return impl_->server->address(); }
const InstanceInfo& DecodeService::instance() const { return impl_->options.instance; }

Result<std::unique_ptr<DecodeService>> DecodeService::Start(DecodeServiceOptions options,
                                                            DecodePeer* decode) {
  if (options.instance.incarnation == 0) options.instance.incarnation = NewIncarnation();
  EMS_RETURN_IF_ERROR(CheckInstance(options.instance));
  auto impl = std::make_unique<Impl>(std::move(options), decode);
  EMS_ASSIGN_OR_RETURN(impl->server, rpc::GrpcServer::Start(impl->options.listen, &impl->handlers));
  return std::unique_ptr<DecodeService>(
      new DecodeService(std::move(impl)));  // NOLINT: the constructor is private
}

}  // namespace ems::pdc
