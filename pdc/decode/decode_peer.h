#pragma once
// A decode instance as the router sees it: in this process (DecodeWorker) or in another
// (rpc/remote_decode_peer.h).
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "pdc/engine/generation.h"
#include "pdc/engine/sampler.h"
#include "pdc/engine/tokenizer.h"

namespace ems::pdc {

struct DecodeTask {
  uint64_t id = 0;  // unique among those that are there
  // With what has been generated of the answer, when it goes on after a failure: what a token is
  // depends on those before it and on the seed, not on who computes it.
  std::vector<TokenId> prompt{};
  uint32_t tokens_max = 128;  // further ones
  bool stop_at_end = true;
  SamplerOptions sampler{};
  std::string cache_salt{};
  Deadline deadline = Deadline::After(std::chrono::minutes(1));
};

// The receiver of one task's events: at most one OnPrompt, before the first OnTokens; exactly one
// OnEnd, at last. Threading: one call at a time, on threads of the peer's, without a lock; within
// Submit, too. The calls do not block, and may call Cancel.
class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  // The prompt has been computed; KV of `cached_tokens` of it came from the pool.
  virtual void OnPrompt(uint32_t prompt_tokens, uint32_t cached_tokens) = 0;
  // At least one further token. A stop token is among them.
  virtual void OnTokens(std::span<const TokenId> tokens) = 0;
  // kStop or kLength; or why not: kUnavailable  nobody could compute it, or the peer is gone: what
  // is missing may be asked of another one    kResourceExhausted  its queue is full, which Submit
  // could not know: it may be asked again later, or another one    kDeadlineExceeded    kCancelled
  // kInvalidArgument
  virtual void OnEnd(Result<FinishReason> how) = 0;
};

// As last heard; asking costs no message.
struct DecodeHealth {
  // Not OK: nothing is sent there; it is dead, or stands still. kDeadlineExceeded: it is late to
  // answer; what it has may still come.
  Status status;
  uint32_t running = 0, waiting = 0;
  uint64_t kv_tokens = 0, kv_tokens_max = 0;  // of its arena: held, and all there is
  // Of an instance of this process: steps that were done since the start, and whether there is
  // something to do: a busy worker that does not count on stands still.
  uint64_t ticks = 0;
  bool busy = false;
  // Not OK: it goes on with what it has begun, and could begin nothing new: nobody prefills for it.
  Status admits{};
};

// Threading: thread-safe.
class DecodePeer {
 public:
  virtual ~DecodePeer() = default;
  virtual const std::string& name() const = 0;
  virtual DecodeHealth health() = 0;
  // Does not block. Errors, without an event: kInvalidArgument  no prompt, unknown tokens, more
  // tokens than ever fit    kAlreadyExists    kResourceExhausted  the queue is full    kUnavailable
  virtual Status Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) = 0;
  // Ends it as soon as possible, with OnEnd(kCancelled) unless it has ended. Unknown ids are
  // ignored. Does not block.
  virtual void Cancel(uint64_t id) = 0;
};

}  // namespace ems::pdc
