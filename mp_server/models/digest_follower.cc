#include "mp_server/models/digest_follower.h"

#include <cstring>
#include <vector>

#include "proto/model.pb.h"

namespace ems::server {
namespace {

constexpr Duration kCallPatience = std::chrono::seconds(2);
constexpr Duration kIdle = std::chrono::seconds(60);
constexpr Duration kWait = std::chrono::milliseconds(500);   // of the only version
constexpr Duration kPause = std::chrono::milliseconds(20);   // gathers what comes together
constexpr Duration kTurn = std::chrono::milliseconds(100);   // of several versions
constexpr Duration kRetry = std::chrono::milliseconds(200);  // without an answer

}  // namespace

bool DigestFollower::LearnSince(uint32_t id, uint64_t log, uint32_t since) {
  v1::GetDigestsRequest request;
  request.mutable_ref()->set_id(id);
  while (true) {
    request.set_since(since);
    v1::GetDigestsReply reply;
    const Status got = table_.models.GetDigests(request, &reply, Deadline::After(kCallPatience));
    if (got.code() == StatusCode::kNotFound) return true;
    const auto count = static_cast<size_t>(reply.blocks_size());
    calls_.fetch_add(1, std::memory_order_relaxed);
    digests_.fetch_add(count, std::memory_order_relaxed);
    if (!got.ok() || reply.digests().size() != count * sizeof(model::BlockDigest)) return false;
    if (reply.known() < since) {  // an older copy of the controller's store: another order
      since = 0;
      continue;
    }
    since += static_cast<uint32_t>(count);
    table_.With(id, [&](ModelPull& pull) {
      for (size_t i = 0; i < count; ++i) {
        model::BlockDigest digest;
        std::memcpy(digest.data(), reply.digests().data() + i * digest.size(), digest.size());
        pull.Learn(reply.blocks(static_cast<int>(i)), digest);
      }
      pull.LearnedUpTo(log, since);
    });
    if (count > 0) table_.Wake();
    if (count == 0 || since >= reply.known()) return true;
  }
}

bool DigestFollower::LearnNews(uint32_t id) {
  v1::FollowUnverifiedRequest heard;
  if (!table_.With(id, [&](ModelPull& pull) { pull.FillFollow(&heard); })) return true;
  return LearnSince(id, heard.log(), heard.known());
}

bool DigestFollower::Follow(uint32_t id, Duration wait) {
  while (!table_.stop.IsSet()) {
    v1::FollowUnverifiedRequest request;
    if (!table_.With(id, [&](ModelPull& pull) { pull.FillFollow(&request); })) return true;
    request.set_wait_ms(
        static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()));
    v1::FollowUnverifiedReply reply;
    const Status got =
        table_.models.FollowUnverified(request, &reply, Deadline::After(wait + kCallPatience));
    if (got.code() == StatusCode::kNotFound) return true;
    const auto count = static_cast<size_t>(reply.blocks_size());
    if (!got.ok() || reply.digests().size() != count * sizeof(model::BlockDigest)) return false;
    std::vector<ObjectPin> lost;
    bool more = false;
    v1::FollowUnverifiedRequest heard;
    table_.With(id, [&](ModelPull& pull) {
      more = pull.Hear(reply, &lost);
      pull.FillFollow(&heard);
    });
    lost.clear();  // without the lock
    if (more && !LearnSince(id, heard.log(), heard.known())) return false;
    if (count > 0) table_.Wake();
    const bool end = reply.log() == request.log() && reply.next() == request.since();
    if (end || wait > Duration::zero()) return true;
  }
  return false;
}

void DigestFollower::Run() {
  while (true) {
    std::vector<uint32_t> ids;
    {
      auto locked = table_.state.Lock();
      locked.WaitFor(table_.unverified, kIdle, [&](const PullTable::State& s) {
        ids.clear();
        for (const auto& [id, pull] : s.pulls) {
          if (pull->unverified()) ids.push_back(id);
        }
        return s.stopping || !ids.empty();
      });
      if (locked->stopping) return;
    }
    bool answered = true;
    for (const uint32_t id : ids)
      answered = Follow(id, ids.size() == 1 ? kWait : Duration(0)) && answered;
    const Duration pause = !answered ? kRetry : ids.size() == 1 ? kPause : kTurn;
    if (table_.stop.WaitFor(pause)) return;
  }
}

}  // namespace ems::server
