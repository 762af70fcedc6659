#include "cluster/models_client.h"

#include <grpcpp/grpcpp.h>

#include <string_view>
#include <vector>

#include "cluster/leader_calls.h"
#include "proto/model.grpc.pb.h"

namespace ems {
namespace {

// A manifest is the largest message (model_files/format/manifest.h).
constexpr int kMessageBytesMax = 24 << 20;

}  // namespace

struct ModelsClient::Impl {
  Impl(std::string_view addresses, ViewCache* joined) : calls(addresses, kMessageBytesMax, joined) {
    for (size_t i = 0; i < calls.channels().size(); ++i)
      stubs.push_back(v1::Models::NewStub(calls.channels().channel(i)));
  }

  template <typename Request, typename Reply, typename Method>
  Status Call(Method method, const Request& request, Reply* reply, Deadline deadline) {
    return calls.Call(deadline, [&](size_t controller, grpc::ClientContext* context) {
      return (stubs[controller].get()->*method)(context, request, reply);
    });
  }

  LeaderCalls calls;
  std::vector<std::unique_ptr<v1::Models::Stub>> stubs;  // one for each controller
};

ModelsClient::ModelsClient(const std::string& address, ViewCache* joined)
    : impl_(std::make_unique<Impl>(address, joined)) {}

ModelsClient::~ModelsClient() = default;

void ModelsClient::Close() { impl_->calls.Close(); }

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

Status ModelsClient::List(uint64_t since, Duration wait, bool by_change, v1::ListModelsReply* reply,
                          Deadline deadline) {
  v1::ListModelsRequest request;
  request.set_since(since);
  request.set_by_change(by_change);
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
                              Deadline deadline, Duration job_timeout) {
  v1::PrefetchRequest request;
  *request.mutable_ref() = ref;
  request.set_priority(priority);
  request.set_timeout_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(job_timeout).count()));
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

Status ModelsClient::FollowUnverified(const v1::FollowUnverifiedRequest& request,
                                      v1::FollowUnverifiedReply* reply, Deadline deadline) {
  return impl_->Call(&v1::Models::Stub::FollowUnverified, request, reply, deadline);
}

Status ModelsClient::ReportSum(const v1::ReportSumRequest& request, Deadline deadline) {
  v1::ReportSumReply reply;
  return impl_->Call(&v1::Models::Stub::ReportSum, request, &reply, deadline);
}

}  // namespace ems
