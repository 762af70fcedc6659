#pragma once
// A prefill instance: prompts come in, their KV and first tokens come out, to be handed over to
// decode workers.
//
// A prompt waits for KV blocks, is filled from the pool, waits for its turn by the scheduler, is
// computed, and then keeps its KV until it is handed over or released. New blocks go to the pool
// behind its back. Stateless: any instance computes any prompt, to the same bits.
// Invariant: each task that was taken ends in exactly one call of its OnDone. Bound: queue_max
// tasks; KV in the memory given; a task's KV goes with its deadline at the latest, but for a
// hand-over under way.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "ems_context/block_store.h"
#include "pdc/engine/engine.h"
#include "pdc/engine/kv_arena.h"
#include "pdc/engine/sampler.h"
#include "pdc/kv/kv_handoff.h"
#include "pdc/kv/prefix_cache.h"

namespace ems::pdc {

struct PrefillWorkerOptions {
  KvOptions kv{};
  EngineOptions engine{};
  PrefixCacheOptions cache{};
  uint32_t groups = 1;   // engines, each with a thread of its own; 1 to 64
  uint32_t loaders = 1;  // threads that fill prompts from the pool; 1 to 64
  uint32_t queue_max = 256;
  uint64_t step_tokens_max = 8192;  // that a group computes in a step
};

struct PrefillTask {
  uint64_t id = 0;  // unique among those that are here
  // With what has been generated of the answer, when a request goes on after a failure.
  std::vector<TokenId> prompt{};
  SamplerOptions sampler{};
  std::string cache_salt{};
  bool draft = true;  // a guess of the second token, if the model has an MTP head
  Deadline deadline = Deadline::After(std::chrono::minutes(1));
};

struct PrefillOutcome {
  TokenId first = 0;
  std::optional<TokenId> draft{};
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // whose KV came from the pool
  Duration waiting{0}, loading{0}, computing{0};
};

struct PrefillWorkerStats {
  uint64_t tasks = 0, failed = 0, cancelled = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0;  // of tasks that were computed
  uint32_t here = 0;                              // tasks, finished ones that keep KV included
  uint32_t free_blocks = 0;
  bool busy = false;       // something is being computed, or waits for it
  double queued_cost = 0;  // what waits to be computed, in tokens: a router compares it
  uint64_t steps = 0;      // of all groups
  // Of all engines, EngineOptions::rows_max tokens each, however long the prompts and however many
  // of them a group's step has: a worker that stands still does not count on.
  uint64_t ticks = 0;
};

// Threading: thread-safe. OnDone runs on a thread of this, without a lock; it must not block.
class PrefillWorker final {
 public:
  using OnDone = std::function<void(Result<PrefillOutcome>)>;

  // `memory` is for KV (HBM); it and `store` must outlive this. Without a store nothing is cached.
  // Errors: kInvalidArgument  options out of range, no room for a block
  static Result<std::unique_ptr<PrefillWorker>> Create(std::shared_ptr<const Model> model,
                                                       MutableBytes memory,
                                                       context::BlockStore* store,
                                                       const PrefillWorkerOptions& options);
  // Ends all tasks (kCancelled); waits for hand-overs and saves, which have their deadlines.
  ~PrefillWorker();
  PrefillWorker(const PrefillWorker&) = delete;
  PrefillWorker& operator=(const PrefillWorker&) = delete;

  // An id that no other task here has, when all ask for theirs.
  uint64_t NewId();
  // Takes a task. Errors, at once: kInvalidArgument  no prompt, unknown tokens, a prompt that can
  // never fit, options of the sampler    kAlreadyExists  that id is here    kResourceExhausted  the
  // queue is full. Of OnDone: kDeadlineExceeded    kCancelled    kInvalidArgument  the salt
  Status Submit(PrefillTask task, OnDone done);
  // Ends a task, or lets its KV go. False: it is not here, or it is being handed over.
  bool Cancel(uint64_t id);

  // Sends the KV of a finished task, which goes then, whatever came of it. Blocks.
  // Errors: those of SendKv    kNotFound  no such finished task
  Status HandOver(uint64_t id, fabric::RingSender* ring, HandoffId handoff, Deadline deadline,
                  const fabric::RingSendOptions& how = {});

  PrefillWorkerStats stats();
  PrefixCacheStats cache_stats();
  const Model& model() const;
  uint32_t block_tokens() const;

 private:
  struct Impl;
  explicit PrefillWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
