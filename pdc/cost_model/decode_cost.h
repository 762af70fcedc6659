#pragma once
// Time of one decode iteration of an instance in which all dies run the same batch: MLA on each die
// (DP), experts over all of them (EP), two microbatches overlapped on two streams where that pays,
// and one speculative token (MTP). Pure. Cost: O(cube cores). Threading: immutable.
#include "pdc/cost_model/operators.h"

namespace ems::pdc {

enum class Microbatching { kOff, kOn, kFaster };  // kFaster: on where it pays

struct DecodeBatch {
  int expert_ranks = 320;        // dies of the instance
  double requests_per_die = 48;  // above 0
  double kv_tokens = 4096;       // a request, mean
  bool mtp = true;
  double mtp_acceptance = 0.70;
  Microbatching microbatching = Microbatching::kFaster;
};

// One MoE layer, µs. With microbatching `total_us` is that of both microbatches overlapped, and the
// parts are those of one microbatch with the die to itself.
struct DecodeLayer {
  double projections_us = 0, attention_us = 0, experts_us = 0, dispatch_us = 0, combine_us = 0;
  double vector_us = 0, launch_us = 0;
  double total_us = 0;
  bool microbatched = false;
  int attention_cores = 0;  // cube cores of the attention stream, where microbatched
};

struct DecodeIteration {
  DecodeLayer layer;
  double iteration_ms = 0;  // with the gap to the next one
  double mtp_ms = 0;        // of it, the MTP pass
  double tokens_per_request = 1;
  double tpot_ms = 0;
  double tokens_per_s_per_npu = 0;
  double attention_share = 0;      // of the iteration: attention core
  double communication_share = 0;  // dispatch and combine
};

class DecodeCost final {
 public:
  explicit DecodeCost(const CostConstants& constants) : op_(constants) {}
  DecodeIteration Iteration(const DecodeBatch& batch) const;
  DecodeLayer Layer(const DecodeBatch& batch) const;
  // Attention stream of a die that leaves the experts to others (XDS §5.2), one microbatch of
  // `requests`, a layer, µs.
  double AttentionStageUs(double requests, double kv_tokens, bool mtp) const;
  // The MTP module: one layer of `layer_us`, its projection, head and sampling. ms.
  double MtpPassMs(double tokens, double layer_us) const;

 private:
  DecodeLayer Serial(const DecodeBatch& batch) const;
  DecodeLayer Overlapped(const DecodeBatch& batch) const;
  double DenseLayerUs(const DecodeBatch& batch) const;
  const Operators op_;
};

}  // namespace ems::pdc
