#include "pdc/cost_model/operators.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/check.h"

namespace ems::pdc {
namespace {

constexpr double kTableBatch = 128;
constexpr std::array<double, 6> kTableRanks = {8, 16, 32, 64, 128, 256};
constexpr std::array<double, 6> kDispatchUs = {116, 131, 133, 141, 152, 152};
constexpr std::array<double, 6> kCombineUs = {118, 132, 146, 150, 150, 149};

double Interpolated(const std::array<double, 6>& us, int ranks) {
  EMS_CHECK(ranks >= 1, "{} ranks", ranks);
  if (ranks <= kTableRanks.front()) return us.front();
  for (size_t i = 1; i < us.size(); ++i) {
    if (ranks > kTableRanks[i]) continue;
    const double share = std::log2(ranks / kTableRanks[i - 1]);  // columns double
    return us[i - 1] + share * (us[i] - us[i - 1]);
  }
  return us.back();
}

}  // namespace

ExpertPlacement PlaceExperts(const ModelShape& model, int ranks) {
  EMS_CHECK(ranks >= 1, "{} ranks", ranks);
  const double top_k = model.experts_per_token;
  constexpr int kSharedRanks = 32;
  if (ranks < model.routed_experts + kSharedRanks) {
    return {.ranks = ranks,
            .routed_ranks = ranks,
            .shared_ranks = 0,
            .experts_per_rank = static_cast<double>(model.routed_experts) / ranks + 1,
            .tokens_per_rank_token = top_k + 1};
  }
  const int routed = ranks - kSharedRanks;
  const double routed_tokens = top_k * ranks / routed;
  const double shared_tokens = static_cast<double>(ranks) / kSharedRanks;
  return {.ranks = ranks,
          .routed_ranks = routed,
          .shared_ranks = kSharedRanks,
          .experts_per_rank = 1,
          .tokens_per_rank_token = std::max(routed_tokens, shared_tokens)};
}

double Operators::MemoryUs(double bytes) const {
  return bytes / (c_.hardware.hbm_gb_per_s * c_.hardware.hbm_efficiency) * 1e-3;
}

double Operators::GemmUs(double rows, double weights, double tops, double memory_bytes) const {
  const double flops = 2 * (rows + c_.hardware.gemm_ramp_rows) * weights;
  return std::max(flops / (tops * c_.hardware.gemm_efficiency) * 1e-6, MemoryUs(memory_bytes));
}

double Operators::Int8GemmUs(double rows, double weights, double core_share) const {
  return rows <= 0 ? 0 : GemmUs(rows, weights, c_.hardware.int8_tops * core_share, weights);
}

double Operators::Bf16GemmUs(double rows, double weights, double core_share) const {
  return rows <= 0 ? 0 : GemmUs(rows, weights, c_.hardware.bf16_tflops * core_share, 2 * weights);
}

double Operators::attention_weights() const {
  const ModelShape& m = c_.model;
  return m.hidden * m.q_rank + m.q_rank * m.heads * (m.nope_dim + m.rope_dim) +
         m.hidden * (m.kv_rank + m.rope_dim) + m.heads * m.value_dim * m.hidden;
}

double Operators::DecodeProjectionsUs(double tokens, double core_share) const {
  return Int8GemmUs(tokens, attention_weights(), core_share) +
         Bf16GemmUs(tokens, latent_weights(), core_share);
}

double Operators::DecodeAttentionUs(double tokens, double requests, double kv_tokens,
                                    double core_share) const {
  const ModelShape& m = c_.model;
  const double flops = 2 * tokens * kv_tokens * m.heads * (2 * m.kv_rank + m.rope_dim);
  const double compute =
      flops / (c_.hardware.bf16_tflops * c_.hardware.mla_efficiency * core_share) * 1e-6;
  return std::max(compute, MemoryUs(requests * kv_tokens * m.kv_bytes_per_token / m.layers));
}

double Operators::ExpertsUs(double tokens, const ExpertPlacement& placement, double imbalance,
                            double core_share) const {
  if (tokens <= 0) return 0;
  const double routed = c_.model.experts_per_token * imbalance;
  const double rows_per_token =
      placement.shared_ranks == 0 ? routed + 1 : placement.tokens_per_rank_token * imbalance;
  // Each expert is a GEMM of its own: its ramp is paid, and its weights are read.
  const double rows =
      tokens * rows_per_token + c_.hardware.gemm_ramp_rows * (placement.experts_per_rank - 1);
  return GemmUs(rows, expert_weights(), c_.hardware.int8_tops * core_share,
                placement.experts_per_rank * expert_weights());
}

double Operators::DenseFfnUs(double tokens) const {
  return Int8GemmUs(tokens, 3 * c_.model.hidden * c_.model.dense_hidden);
}

double Operators::HeadUs(double tokens) const {
  return Bf16GemmUs(tokens, c_.model.hidden * c_.model.vocabulary);
}

double Operators::DispatchTableUs(int ranks) { return Interpolated(kDispatchUs, ranks); }
double Operators::CombineTableUs(int ranks) { return Interpolated(kCombineUs, ranks); }

double Operators::ScaledUs(double table_us, double tokens, double barrier_factor) const {
  if (tokens <= 0) return 0;
  const double base = c_.hardware.small_collective_us;
  return base + barrier_factor * (table_us - base) * tokens / kTableBatch;
}

double Operators::DispatchUs(double tokens, int ranks, double barrier_factor) const {
  return ScaledUs(DispatchTableUs(ranks), tokens, barrier_factor);
}
double Operators::CombineUs(double tokens, int ranks, double barrier_factor) const {
  return ScaledUs(CombineTableUs(ranks), tokens, barrier_factor);
}

}  // namespace ems::pdc
