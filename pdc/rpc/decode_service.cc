#include "pdc/rpc/decode_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "pdc/rpc/internal/event_writer.h"
#include "pdc/rpc/internal/grpc_server.h"
#include "pdc/rpc/internal/wire.h"
#include "proto/pdc.grpc.pb.h"

namespace ems::pdc {
namespace {

// One task: what its sink hears goes to its caller.
class GenerateCall final : public rpc::EventWriter<v1::GenerateEvent>, public DecodeSink {
 public:
  using EventWriter::EventWriter;

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
};

class DecodeService final : public InstanceService, public v1::Decode::CallbackService {
 public:
  DecodeService(DecodeServiceOptions options, DecodePeer* decode)
      : options_(std::move(options)), decode_(decode) {}

  Status Listen() {
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

  grpc::ServerUnaryReactor* Pulse(grpc::CallbackServerContext* context, const v1::PulseRequest*,
                                  v1::DecodePulseReply* reply) override {
    const DecodeHealth health = decode_->health();
    reply->set_incarnation(options_.instance.incarnation);
    rpc::ToProto(health.status, reply->mutable_status());
    rpc::ToProto(health.admits, reply->mutable_admits());
    reply->set_ticks(health.ticks);
    reply->set_busy(health.busy);
    reply->set_running(health.running);
    reply->set_waiting(health.waiting);
    reply->set_kv_tokens(health.kv_tokens);
    reply->set_kv_tokens_max(health.kv_tokens_max);
    return rpc::Answered(context);
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto call =
        std::make_shared<GenerateCall>(rpc::CallPermit::Take(streams_, options_.streams_max));
    return call->Begin(*context, [&] { return Start(*request, call); });
  }

 private:
  Status Start(const v1::GenerateRequest& request, const std::shared_ptr<GenerateCall>& call) {
    EMS_ASSIGN_OR_RETURN(DecodeTask task, rpc::TaskOf(request, options_.instance));
    const uint64_t id = task.id = next_task_.fetch_add(1, std::memory_order_relaxed);
    EMS_RETURN_IF_ERROR(decode_->Submit(std::move(task), call));
    call->CancelWith([decode = decode_, id] { decode->Cancel(id); });
    return OkStatus();
  }

  const DecodeServiceOptions options_;
  DecodePeer* const decode_;
  const rpc::PermitsTaken streams_ = std::make_shared<std::atomic<size_t>>(0);
  std::atomic<uint64_t> next_task_{kFirstServedTask};
  std::unique_ptr<rpc::GrpcServer> server_;  // last: calls use all the others
};

}  // namespace

Result<std::unique_ptr<InstanceService>> ServeDecode(DecodeServiceOptions options,
                                                     DecodePeer* decode) {
  if (options.instance.incarnation == 0) options.instance.incarnation = NewIncarnation();
  EMS_RETURN_IF_ERROR(CheckInstance(options.instance));
  auto service = std::make_unique<DecodeService>(std::move(options), decode);
  EMS_RETURN_IF_ERROR(service->Listen());
  return service;
}

}  // namespace ems::pdc
