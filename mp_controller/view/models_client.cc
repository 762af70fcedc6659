#include "mp_controller/view/models_client.h"

#include <grpcpp/grpcpp.h>

#include <set>
#include <utility>

#include "common/guarded.h"
#include "mp_controller/view/control_channel.h"
#include "proto/model.grpc.pb.h"
#include "proto/status_codec.h"

namespace ems {
namespace {

// A manifest is the largest message (ems_model/format/manifest.h).
constexpr int kMessageBytesMax = 24 << 20;

}  // namespace

struct ModelsClient::Impl {
  struct Calls {
    bool closed = false;
    std::set<grpc::ClientContext*> contexts;
  };

  explicit Impl(std::string address_in)
      : address(std::move(address_in)),
        address_fault(CheckControllerAddress(address)),
        channel(MakeControlChannel(address, kMessageBytesMax)),
        stub(v1::Models::NewStub(channel)) {}

  template <typename Request, typename Reply, typename Method>
  Status Call(Method method, const Request& request, Reply* reply, Deadline deadline) {
    EMS_RETURN_IF_ERROR(address_fault);
    if (deadline.Passed()) {
      return Error(StatusCode::kDeadlineExceeded, "controller {}: no time left", address);
    }
    DriveChannel(channel.get(), deadline);
    grpc::ClientContext context;
    SetDeadline(deadline, &context);
    {
      auto locked = calls.Lock();
      if (locked->closed) return Error(StatusCode::kCancelled, "stopping");
      locked->contexts.insert(&context);
    }
    const Status status = FromGrpc((stub.get()->*method)(&context, request, reply));
    auto locked = calls.Lock();
    locked->contexts.erase(&context);
    locked.Unlock();
    return Prefixed(status, fmt::format("controller {}", address));
  }

  const std::string address;
  const Status address_fault;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Models::Stub> stub;
  Guarded<Calls> calls;
};

ModelsClient::ModelsClient(std::string address)
    : impl_(std::make_unique<Impl>(std::move(address))) {}

ModelsClient::~ModelsClient() = default;

void ModelsClient::Close() {
  auto locked = impl_->calls.Lock();
  locked->closed = true;
  // Under the lock: a context goes as soon as its call has left the set.
  for (grpc::ClientContext* context : locked->contexts) context->TryCancel();
}

Status ModelsClient::Add(const v1::ModelManifest& manifest, v1::ModelStatus* reply,
                         Deadline deadline, bool may_lower_first_read) {
  v1::AddModelRequest request;
  *request.mutable_manifest() = manifest;
  request.set_may_lower_first_read(may_lower_first_read);
  return impl_->Call(&v1::Models::Stub::AddModel, request, reply, deadline);
}

Status ModelsClient::Get(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::GetModel, ref, reply, deadline);
}

Status ModelsClient::List(uint64_t since, Duration wait, v1::ListModelsReply* reply,
                          Deadline deadline) {
  v1::ListModelsRequest request;
  request.set_since(since);
  request.set_wait_ms(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()));
  return impl_->Call(&v1::Models::Stub::ListModels, request, reply, deadline);
}

Status ModelsClient::GetManifest(const v1::ModelRef& ref, v1::ModelManifest* reply,
                                 Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::GetManifest, ref, reply, deadline);
}

Status ModelsClient::GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply,
                                Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::GetDigests, request, reply, deadline);
}

Status ModelsClient::Prefetch(const v1::ModelRef& ref, uint32_t priority, v1::ModelStatus* reply,
                              Deadline deadline) {
  v1::PrefetchRequest request;
  *request.mutable_ref() = ref;
  request.set_priority(priority);
  return impl_->Call(&v1::Models::Stub::Prefetch, request, reply, deadline);
}

Status ModelsClient::CancelPrefetch(const v1::ModelRef& ref, v1::ModelStatus* reply,
                                    Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::CancelPrefetch, ref, reply, deadline);
}

Status ModelsClient::Pin(const v1::ModelRef& ref, bool pinned, v1::ModelStatus* reply,
                         Deadline deadline) {
  v1::PinModelRequest request;
  *request.mutable_ref() = ref;
  request.set_pinned(pinned);
  return impl_->Call(&v1::Models::Stub::PinModel, request, reply, deadline);
}

Status ModelsClient::Use(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::UseModel, ref, reply, deadline);
}

Status ModelsClient::Remove(const v1::ModelRef& ref, Deadline deadline) {
  v1::RemoveModelReply reply;
  return impl_->Call(&v1::Models::Stub::RemoveModel, ref, &reply, deadline);
}

Status ModelsClient::ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply,
                                Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::ReportPull, request, reply, deadline);
}

Status ModelsClient::FollowChecks(const v1::FollowChecksRequest& request,
                                  v1::FollowChecksReply* reply, Deadline deadline) {
  EMS_RETURN_IF_ERROR(impl_->Call(&v1::Models::Stub::FollowChecks, request, reply, deadline));
  v1::FollowChecksRequest rest = request;
  while (reply->next_model() != 0) {
    rest.set_from_model(reply->next_model());
    rest.set_from_file(reply->next_file());
    v1::FollowChecksReply more;
    EMS_RETURN_IF_ERROR(impl_->Call(&v1::Models::Stub::FollowChecks, rest, &more, deadline));
    for (v1::FileCheck& file : *more.mutable_files()) reply->add_files()->Swap(&file);
    reply->set_next_model(more.next_model());
    reply->set_next_file(more.next_file());
  }
  return OkStatus();
}

Status ModelsClient::ReportCheck(const v1::ReportCheckRequest& request, v1::FileCheck* reply,
                                 Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::ReportCheck, request, reply, deadline);
}

}  // namespace ems
