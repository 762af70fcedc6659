#pragma once
// A decode instance: prompts come in, tokens come out, one step after the other for all that are
// there (continuous batching).
//
// A task waits for KV blocks and a place in the batch; its room is taken first, and only then a
// prefill peer is asked (CM §4.3.3), the one with the least to do, by a thread that is not the
// decode loop's. Its first token goes out while its KV still comes. When blocks run out, the
// youngest gives its own back and is computed again later; when a peer is lost, what it had is
// asked of another one. Either way prompt and answer so far are the new prompt: tokens are the same
// ones, on any worker. Invariant: every task that was taken ends in exactly one OnEnd. Bound:
// queue_max tasks, batch_max of them admitted; KV in the memory given; attempts_max tries that
// bring no token; a task ends with its deadline at the latest.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "ems_context/block_store.h"
#include "pdc/decode/decode_peer.h"
#include "pdc/engine/engine.h"
#include "pdc/engine/kv_arena.h"
#include "pdc/kv/prefix_cache.h"
#include "pdc/prefill/prefill_peer.h"

namespace ems::pdc {

struct DecodeWorkerOptions {
  std::string name = "decode";
  KvOptions kv{};
  EngineOptions engine{};
  // Of what is decoded the policy says what goes to the pool.
  PrefixCacheOptions cache{};
  uint32_t batch_max = 32;   // tasks admitted: at prefill, arriving, decoding
  uint32_t queue_max = 256;  // all tasks
  uint32_t attempts_max = 3;
  Duration peer_patience = std::chrono::seconds(5);  // with no prefill peer that is well
  Duration stall_limit = std::chrono::seconds(10);   // for health()
};

struct DecodeWorkerStats {
  uint64_t tasks = 0, finished = 0, failed = 0, cancelled = 0;
  uint64_t tokens = 0, steps = 0;  // steps of the loop; tokens out, first ones included
  uint64_t preempted = 0;          // times that a task gave its blocks back
  uint64_t lost = 0;               // prefills and hand-overs that failed and were asked again
  uint64_t drafts = 0, drafts_right = 0;
  uint32_t waiting = 0, admitted = 0, running = 0;
  uint32_t free_blocks = 0;
};

// Threading: thread-safe.
class DecodeWorker final : public DecodePeer {
 public:
  // `memory` is for KV (HBM); it, `store` and the peers must outlive this. The peers' links are
  // this worker's own. Without a store nothing is saved.
  // Errors: kInvalidArgument  options out of range, no peer, no room for a block
  static Result<std::unique_ptr<DecodeWorker>> Create(std::shared_ptr<const Model> model,
                                                      MutableBytes memory,
                                                      context::BlockStore* store,
                                                      std::vector<PrefillPeer*> peers,
                                                      const DecodeWorkerOptions& options);
  // Ends all tasks (kUnavailable); waits for saves, which have their time.
  ~DecodeWorker() override;
  DecodeWorker(const DecodeWorker&) = delete;
  DecodeWorker& operator=(const DecodeWorker&) = delete;

  const std::string& name() const override;
  DecodeHealth health() override;
  Status Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) override;
  void Cancel(uint64_t id) override;

  DecodeWorkerStats stats();
  PrefixCacheStats cache_stats();
  const Model& model() const;

 private:
  struct Impl;
  explicit DecodeWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
