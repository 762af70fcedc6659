#pragma once
// Moves the KV of a finished prefill to the decode worker that goes on with it: from blocks of one
// arena straight into blocks of another, over a ring (fabric/emulated/ring_sender.h), block by
// block.
//
// EMULATED: the ring is shared memory in the place of the RDMA plane; a path gives it that plane's
// pace. The receiver comes first (CM §4.3.3: the buffer is allocated before the prefill is asked
// for), so what is sent has a place, and a sender that finds none waits: back-pressure.
// Invariant: tokens are valid in the receiving sequence when all blocks have arrived whole, and not
// before. Bound: blocks_max blocks a hand-off.
#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/emulated/ring_receiver.h"
#include "fabric/emulated/ring_sender.h"
#include "pdc/engine/kv_sequence.h"

namespace ems::pdc {

// Names one hand-off among those under way on a ring. Below 2^48.
using HandoffId = uint64_t;
inline constexpr uint32_t kHandoffBlocksMax = 1 << 15;

// A hand-off that is awaited. Threading: one thread.
class KvArrival final {
 public:
  // For `tokens` tokens into `kv`, which is reserved here as far as it is not. `ring` and `kv` must
  // stay until this has gone; the blocks are the ring's to write until then.
  // Errors: kResourceExhausted  no KV blocks, or too many receives    kInvalidArgument  no tokens,
  // too many blocks, an id too large    kAlreadyExists  that id is awaited    kDataLoss  the ring
  // is of no use any more
  static Result<std::unique_ptr<KvArrival>> Post(fabric::RingReceiver* ring, HandoffId id,
                                                 KvSequence* kv, uint32_t tokens);
  KvArrival(const KvArrival&) = delete;
  KvArrival& operator=(const KvArrival&) = delete;

  // Waits up to `wait` until all is there; `kv` has its tokens then. False: it may still come, and
  // may be asked for again. Errors: kDeadlineExceeded  the sender gave it up    kUnavailable  the
  // sender is gone    kDataLoss  another model's blocks, or damaged
  Result<bool> Poll(Duration wait);

 private:
  KvArrival(KvSequence* kv, uint32_t tokens) : kv_(kv), tokens_(tokens) {}
  KvSequence* const kv_;
  const uint32_t tokens_;
  size_t arrived_ = 0;  // of posted_, from its front
  std::vector<std::unique_ptr<fabric::RingReceiver::Posted>> posted_;
};

// Sends all tokens of `kv`, and waits until the receiver has them. Of `how`: a receiver that does
// not receive loses it after the stall limit, counted from the last chunk that it took.
// Errors: those of RingSender::Send    kInvalidArgument  no tokens, too many blocks, an id too
// large
Status SendKv(fabric::RingSender* ring, HandoffId id, const KvSequence& kv, Deadline deadline,
              const fabric::RingSendOptions& how = {});

}  // namespace ems::pdc
