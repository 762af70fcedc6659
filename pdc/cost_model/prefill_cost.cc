#include "pdc/cost_model/prefill_cost.h"

#include <algorithm>
#include <vector>

#include "common/check.h"

namespace ems::pdc {

void PrefillWork::Add(double input_tokens, double cached) {
  const double fresh = input_tokens - cached;
  new_tokens += fresh;
  cached_tokens += cached;
  pairs += fresh * (cached + fresh / 2);
}

PrefillWork& PrefillWork::operator+=(const PrefillWork& other) {
  new_tokens += other.new_tokens;
  cached_tokens += other.cached_tokens;
  pairs += other.pairs;
  return *this;
}

// Tokens of a die of the busiest group, and of the mean die: attention waits for the one, experts
// share out the other.
struct PrefillCost::PerDie {
  double new_tokens = 0, cached_tokens = 0, pairs = 0;
  double mean_new_tokens = 0;
};

// Down- and up-projections, core and output projection; the exchanges between sequence- and
// tensor-parallel stages are not overlapped (CM §4.3.1).
double PrefillCost::AttentionUs(const PerDie& die, const PrefillInstance& instance) const {
  const CostConstants& c = op_.constants();
  const ModelShape& m = c.model;
  const double microbatches = instance.microbatching ? 2 : 1;
  const double rows = die.new_tokens / microbatches;
  const double context = (die.new_tokens + die.cached_tokens) / microbatches;
  const double gemms = microbatches * (op_.Int8GemmUs(rows, op_.attention_weights()) +
                                       op_.Bf16GemmUs(context, op_.latent_weights()));
  const double core_flops = 2 * die.pairs * m.heads * (m.nope_dim + m.rope_dim + m.value_dim);
  const double core = core_flops / (c.hardware.bf16_tflops * c.hardware.mla_efficiency) * 1e-6;
  const double others = instance.group_dies - 1;
  const double gather_bytes = die.new_tokens * others * (m.q_rank + m.kv_rank + m.rope_dim) * 2;
  const double exchange_bytes =
      die.new_tokens * others / instance.group_dies * m.heads * m.value_dim * 2;
  return gemms + core +
         (gather_bytes + exchange_bytes) / c.hardware.npu_npu_write.gb_per_s() * 1e-3;
}

double PrefillCost::LayerUs(const PerDie& die, const PrefillInstance& instance, bool moe) const {
  const CostConstants& c = op_.constants();
  const ModelShape& m = c.model;
  const double context = die.new_tokens + die.cached_tokens;
  double compute = AttentionUs(die, instance) + context * c.fitted.context_us_per_token +
                   die.mean_new_tokens * c.fitted.vector_us_per_token;
  double communication = 0;
  if (!moe) {
    compute += op_.DenseFfnUs(die.mean_new_tokens);
  } else {
    const double microbatches = instance.microbatching ? 2 : 1;
    const double rows = die.mean_new_tokens / microbatches;
    const double imbalance = instance.perfect_eplb ? 1 : c.fitted.prefill_expert_imbalance;
    compute += microbatches * (op_.ExpertsUs(rows, PlaceExperts(m, instance.dies), imbalance) +
                               op_.Bf16GemmUs(rows, m.hidden * m.routed_experts));
    const double bytes = die.mean_new_tokens * m.experts_per_token *
                         (m.dispatch_bytes_per_token + m.combine_bytes_per_token) *
                         (instance.dies - 1) / instance.dies;
    communication = bytes / c.hardware.npu_npu_write.gb_per_s() * 1e-3;
  }
  const double busy =
      instance.microbatching ? std::max(compute, communication) : compute + communication;
  return std::max(busy, context * c.fitted.context_stream_us_per_token);
}

PrefillStep PrefillCost::Step(const PrefillInstance& instance,
                              std::span<const PrefillWork> groups) const {
  EMS_CHECK(instance.group_dies >= 1 && instance.dies % instance.group_dies == 0 &&
                groups.size() == static_cast<size_t>(instance.groups()),
            "{} groups of work for {} dies in groups of {}", groups.size(), instance.dies,
            instance.group_dies);
  PerDie die;
  PrefillWork sum;
  const double dies = instance.group_dies;
  for (const PrefillWork& work : groups) {
    die.new_tokens = std::max(die.new_tokens, work.new_tokens / dies);
    die.cached_tokens = std::max(die.cached_tokens, work.cached_tokens / dies);
    die.pairs = std::max(die.pairs, work.pairs / dies);
    sum += work;
  }
  die.mean_new_tokens = sum.new_tokens / instance.dies;
  PrefillStep step;
  if (sum.new_tokens <= 0) return step;
  const CostConstants& c = op_.constants();
  step.layer_us = LayerUs(die, instance, true);
  const double layers_us = (c.model.layers - c.model.dense_layers) * step.layer_us +
                           c.model.dense_layers * LayerUs(die, instance, false);
  step.compute_ms = (layers_us + op_.HeadUs(1)) * 1e-3;
  if (die.cached_tokens > 0) {
    step.load_ms = 1e3 * kv_.LoadSeconds({.tokens_per_die = die.cached_tokens,
                                          .copies = instance.group_dies,
                                          .block_tokens = instance.block_tokens},
                                         instance.plane);
  }
  return step;
}

PrefillStep PrefillCost::UniformStep(const PrefillInstance& instance,
                                     const PrefillWork& work) const {
  const std::vector<PrefillWork> groups(static_cast<size_t>(instance.groups()), work);
  return Step(instance, groups);
}

double PrefillCost::PromptMs(const PrefillInstance& instance, double input_tokens,
                             double cached_tokens) const {
  PrefillWork work;
  work.Add(input_tokens, cached_tokens);
  return UniformStep(instance, work).total_ms();
}

}  // namespace ems::pdc
