#include "ems_model/internal/client_pool.h"

#include <cstring>

#include "proto/model.pb.h"

namespace ems::model::internal {

v1::ModelRef RefOf(uint32_t id) {
  v1::ModelRef ref;
  ref.set_id(id);
  return ref;
}

Result<DigestNews> AskDigests(ModelsClient* models, uint32_t id, uint32_t since, Duration wait,
                              Deadline deadline) {
  v1::GetDigestsRequest request;
  request.mutable_ref()->set_id(id);
  request.set_since(since);
  request.set_wait_ms(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()));
  v1::GetDigestsReply reply;
  EMS_RETURN_IF_ERROR(models->GetDigests(request, &reply, deadline));
  const auto count = static_cast<size_t>(reply.blocks_size());
  if (reply.digests().size() != count * sizeof(BlockDigest)) {
    return Error(StatusCode::kDataLoss, "{} blocks with {} bytes of digests", count,
                 reply.digests().size());
  }
  DigestNews news;
  news.known = reply.known();
  news.job = FromProto(reply.job());
  for (size_t i = 0; i < count; ++i) {
    BlockDigest digest;
    std::memcpy(digest.data(), reply.digests().data() + i * sizeof(digest), sizeof(digest));
    news.digests.emplace_back(reply.blocks(static_cast<int>(i)), digest);
  }
  return news;
}

std::vector<Result<uint64_t>> ClientPool::Read(std::span<const GetItem> items, Duration timeout) {
  if (client_.ok()) return (*client_)->MultiGet(items, {.timeout = timeout});
  return std::vector<Result<uint64_t>>(items.size(), Outage());
}

std::vector<Status> ClientPool::ReadRanges(std::span<const RangeItem> items, Duration timeout) {
  if (client_.ok()) return (*client_)->MultiGetRange(items, {.timeout = timeout});
  return std::vector<Status>(items.size(), Outage());
}

Status ClientPool::Probe(std::span<const BlockRoute> routes, Duration timeout) {
  if (!client_.ok()) return Outage();
  std::vector<KeyItem> items;
  for (const BlockRoute& route : routes)
    items.push_back({.key = "probe", .route_key = RouteKey(route)});
  for (const auto& one : (*client_)->MultiStat(items, {.touch = false, .timeout = timeout})) {
    if (!one.ok() && one.status().code() != StatusCode::kNotFound) return one.status();
  }
  return OkStatus();
}

uint64_t ClientPool::view() {
  const ViewCache::View view = client_.ok() ? (*client_)->views().view() : nullptr;
  return view != nullptr ? view->version().packed() : 0;
}

Status ClientPool::Outage() const {
  return Error(StatusCode::kUnavailable, "no pool: {}", Message(client_.status()));
}

Result<JobInfo> ControllerCatalog::StartJob(uint32_t priority, Deadline deadline) {
  v1::ModelStatus status;
  EMS_RETURN_IF_ERROR(models_->Prefetch(RefOf(id_), priority, &status, deadline));
  return FromProto(status.job());
}

}  // namespace ems::model::internal
