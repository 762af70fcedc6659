#include "pdc/kv/kv_handoff.h"

#include <algorithm>

namespace ems::pdc {
namespace {

constexpr int kBlockBits = 15;

// How many blocks hold so many tokens. Errors: kInvalidArgument
Result<uint32_t> BlocksOf(HandoffId id, const KvArena& arena, uint32_t tokens) {
  if (tokens == 0) return Error(StatusCode::kInvalidArgument, "a hand-off of no tokens");
  if (id >> 48 != 0) return Error(StatusCode::kInvalidArgument, "hand-off {}: at most 2^48", id);
  const uint32_t blocks = (tokens - 1) / arena.block_tokens() + 1;
  if (blocks <= kHandoffBlocksMax) return blocks;
  return Error(StatusCode::kInvalidArgument, "a hand-off of {} blocks, at most {}", blocks,
               kHandoffBlocksMax);
}

uint64_t EventOf(HandoffId id, uint32_t block) { return id << kBlockBits | block; }

}  // namespace

Result<std::unique_ptr<KvArrival>> KvArrival::Post(fabric::RingReceiver* ring, HandoffId id,
                                                   KvSequence* kv, uint32_t tokens) {
  EMS_ASSIGN_OR_RETURN(const uint32_t blocks, BlocksOf(id, *kv->arena(), tokens));
  EMS_RETURN_IF_ERROR(kv->Reserve(tokens));
  std::unique_ptr<KvArrival> arrival(new KvArrival(kv, tokens));
  for (uint32_t i = 0; i < blocks; ++i) {
    EMS_ASSIGN_OR_RETURN(auto posted,
                         ring->Post(EventOf(id, i), kv->arena()->block(kv->blocks()[i])));
    arrival->posted_.push_back(std::move(posted));
  }
  return arrival;
}

Result<bool> KvArrival::Poll(Duration wait) {
  const Deadline deadline = Deadline::After(wait);
  for (; arrived_ < posted_.size(); ++arrived_) {
    fabric::RingReceiver::Posted& block = *posted_[arrived_];
    auto received = block.Wait(deadline.Remaining());
    if (received.status().code() == StatusCode::kDeadlineExceeded) {
      if (!block.done()) return false;
      received = block.Wait(Duration(0));  // it may have come just now
    }
    EMS_ASSIGN_OR_RETURN(const uint64_t bytes, received);
    if (bytes != kv_->arena()->block_bytes()) {
      return Error(StatusCode::kDataLoss, "a KV block of {} bytes, of {} here: another model?",
                   bytes, kv_->arena()->block_bytes());
    }
  }
  EMS_RETURN_IF_ERROR(kv_->SetTokens(tokens_));
  return true;
}

Status SendKv(fabric::RingSender* ring, HandoffId id, const KvSequence& kv, Deadline deadline,
              const fabric::RingSendOptions& how) {
  EMS_ASSIGN_OR_RETURN(const uint32_t blocks, BlocksOf(id, *kv.arena(), kv.tokens()));
  for (uint32_t i = 0; i < blocks; ++i) {
    if (how.stop != nullptr && how.stop->load(std::memory_order_acquire))
      return Error(StatusCode::kCancelled, "hand-off {} was stopped", id);
    EMS_RETURN_IF_ERROR(
        ring->Send(EventOf(id, i), kv.arena()->block(kv.blocks()[i]), deadline.Remaining(), how));
  }
  return OkStatus();
}

}  // namespace ems::pdc
