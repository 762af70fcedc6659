#pragma once
// Time of one prefill step of an instance: attention in groups of dies (TP), experts over all dies
// (EP), communication hidden behind the computation of the other microbatch (CM §4.3).
// Pure. Cost: O(groups). Threading: immutable.
#include <span>

#include "pdc/cost_model/kv_transfer.h"
#include "pdc/cost_model/operators.h"

namespace ems::pdc {

struct PrefillInstance {
  int dies = 32;       // all of them hold experts
  int group_dies = 4;  // attention groups (XDS §5.1: TP 4)
  bool perfect_eplb = false;
  bool microbatching = true;
  CachePlane plane = CachePlane::kUb;
  int block_tokens = 128;
  int groups() const { return dies / group_dies; }
};

// The work of one attention group in a step. Sums over its prompts.
struct PrefillWork {
  double new_tokens = 0;
  double cached_tokens = 0;
  double pairs = 0;  // (query, key) pairs under the causal mask
  void Add(double input_tokens, double cached_tokens);
  PrefillWork& operator+=(const PrefillWork& other);
};

struct PrefillStep {
  double load_ms = 0;     // KV from the pool, before the computation
  double compute_ms = 0;  // layers and head
  double layer_us = 0;    // an MoE layer
  double total_ms() const { return load_ms + compute_ms; }
};

class PrefillCost final {
 public:
  explicit PrefillCost(const CostConstants& constants) : op_(constants), kv_(constants) {}
  // Aborts unless `groups` has instance.groups() entries. Nothing to compute: 0.
  PrefillStep Step(const PrefillInstance& instance, std::span<const PrefillWork> groups) const;
  // The same with `work` in each group.
  PrefillStep UniformStep(const PrefillInstance& instance, const PrefillWork& work) const;
  // What a scheduler compares: time of a prompt that has a group to itself, ms.
  double PromptMs(const PrefillInstance& instance, double input_tokens, double cached_tokens) const;
  const KvTransfer& kv() const { return kv_; }

 private:
  struct PerDie;
  double AttentionUs(const PerDie& die, const PrefillInstance& instance) const;
  double LayerUs(const PerDie& die, const PrefillInstance& instance, bool moe) const;
  const Operators op_;
  const KvTransfer kv_;
};

}  // namespace ems::pdc
