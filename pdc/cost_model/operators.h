#pragma once
// Time of single operators on one die: the roofline of each, with the efficiencies that the papers
// measured. All times in µs for one layer. Pure functions. Cost: O(1). Threading: immutable.
#include "pdc/cost_model/hardware.h"

namespace ems::pdc {

// The placement of a layer's experts on `ranks` dies. With fewer than 256 ranks each has its share
// of the routed experts and the shared one (CM §5.1 prefill, XDS §7.2); with more, 32 ranks hold
// the shared expert and the others one routed expert each (CM §5.1 decode, XDS §7.1).
struct ExpertPlacement {
  int ranks = 1;
  int routed_ranks = 1;
  int shared_ranks = 0;              // 0: each rank has the shared expert
  double experts_per_rank = 1;       // whose weights a rank reads
  double tokens_per_rank_token = 1;  // expert inputs at the busiest rank, for each token of a rank
};
ExpertPlacement PlaceExperts(const ModelShape& model, int ranks);

class Operators final {
 public:
  explicit Operators(const CostConstants& constants) : c_(constants) {}

  // `rows` × … GEMM with `weights` elements. `core_share`: of the die's cube cores, above 0.
  double Int8GemmUs(double rows, double weights, double core_share = 1) const;
  double Bf16GemmUs(double rows, double weights, double core_share = 1) const;

  // Decode: projections around attention with the latent absorbed into the query, for `tokens`.
  double DecodeProjectionsUs(double tokens, double core_share = 1) const;
  // Decode: attention core of `tokens` queries, of `requests` with `kv_tokens` of KV each.
  double DecodeAttentionUs(double tokens, double requests, double kv_tokens,
                           double core_share = 1) const;
  // Experts at the busiest rank, `tokens` a rank. `imbalance` multiplies the routed tokens.
  double ExpertsUs(double tokens, const ExpertPlacement& placement, double imbalance = 1,
                   double core_share = 1) const;
  double DenseFfnUs(double tokens) const;
  // Output head of the whole vocabulary on each die.
  double HeadUs(double tokens) const;

  // Table 7, batch 128, between and beyond its columns by the logarithm of the ranks; µs.
  static double DispatchTableUs(int ranks);
  static double CombineTableUs(int ranks);
  // Table 7 scaled to `tokens` a rank: a small message's time, and the rest in proportion,
  // multiplied by `barrier_factor`.
  double DispatchUs(double tokens, int ranks, double barrier_factor = 1) const;
  double CombineUs(double tokens, int ranks, double barrier_factor = 1) const;

  // Weights of one layer, elements.
  double attention_weights() const;
  double expert_weights() const { return 3 * c_.model.hidden * c_.model.expert_hidden; }
  // Up-projection of the latent to keys and values of all heads.
  double latent_weights() const {
    return c_.model.kv_rank * c_.model.heads * (c_.model.nope_dim + c_.model.value_dim);
  }
  const CostConstants& constants() const { return c_; }

 private:
  double MemoryUs(double bytes) const;
  // Above 0 rows, at `tops` 1e12 operations a second, with so many bytes of weights to read.
  double GemmUs(double rows, double weights, double tops, double memory_bytes) const;
  double ScaledUs(double table_us, double tokens, double barrier_factor) const;
  const CostConstants c_;
};

}  // namespace ems::pdc
