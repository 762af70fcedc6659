#include "pdc/cost_model/decode_cost.h"

#include <algorithm>

#include "common/check.h"

namespace ems::pdc {
namespace {

double TokensOf(const DecodeBatch& batch) {
  return batch.requests_per_die * (batch.mtp ? 2 : 1);  // the last token and the speculative one
}

}  // namespace

DecodeLayer DecodeCost::Serial(const DecodeBatch& batch) const {
  const FittedConstants& fitted = op_.constants().fitted;
  const double tokens = TokensOf(batch);
  const ExpertPlacement placement = PlaceExperts(op_.constants().model, batch.expert_ranks);
  DecodeLayer layer;
  layer.projections_us = op_.DecodeProjectionsUs(tokens);
  layer.attention_us = op_.DecodeAttentionUs(tokens, batch.requests_per_die, batch.kv_tokens);
  layer.experts_us = op_.ExpertsUs(tokens, placement);
  layer.dispatch_us = op_.DispatchUs(tokens, batch.expert_ranks, fitted.decode_barrier_factor);
  layer.combine_us = op_.CombineUs(tokens, batch.expert_ranks, fitted.decode_barrier_factor);
  layer.vector_us = tokens * fitted.vector_us_per_token;
  layer.launch_us = fitted.decode_launch_us;
  layer.total_us = layer.projections_us + layer.attention_us + layer.experts_us +
                   layer.dispatch_us + layer.combine_us + layer.vector_us + layer.launch_us;
  return layer;
}

// Two streams on disjoint cores (CM §4.2.3): attention of one microbatch beside the experts of the
// other. Cores are split as suits the batch, "adjusted adaptively".
DecodeLayer DecodeCost::Overlapped(const DecodeBatch& batch) const {
  DecodeBatch half = batch;
  half.requests_per_die /= 2;
  DecodeLayer layer = Serial(half);
  const FittedConstants& fitted = op_.constants().fitted;
  const ExpertPlacement placement = PlaceExperts(op_.constants().model, batch.expert_ranks);
  const double tokens = TokensOf(half);
  const int cores = op_.constants().hardware.cube_cores;
  layer.microbatched = true;
  layer.total_us = -1;
  for (int attention_cores = 1; attention_cores < cores; ++attention_cores) {
    const double a = static_cast<double>(attention_cores) / cores, e = 1 - a;
    const double vector_us = layer.vector_us / 2, launch_us = layer.launch_us / 2;
    const double attention =
        op_.DecodeProjectionsUs(tokens, a) +
        op_.DecodeAttentionUs(tokens, half.requests_per_die, half.kv_tokens, a) + vector_us / a +
        launch_us;
    const double experts = op_.ExpertsUs(tokens, placement, 1, e) + layer.dispatch_us +
                           layer.combine_us + vector_us / e + launch_us;
    const double total = 2 * std::max(attention, experts) * fitted.stream_interference;
    if (layer.total_us >= 0 && layer.total_us <= total) continue;
    layer.total_us = total;
    layer.attention_cores = attention_cores;
  }
  return layer;
}

DecodeLayer DecodeCost::Layer(const DecodeBatch& batch) const {
  EMS_CHECK(batch.requests_per_die > 0 && batch.kv_tokens >= 0, "{} requests with {} tokens",
            batch.requests_per_die, batch.kv_tokens);
  if (batch.microbatching == Microbatching::kOff) return Serial(batch);
  const DecodeLayer overlapped = Overlapped(batch);
  if (batch.microbatching == Microbatching::kOn) return overlapped;
  const DecodeLayer serial = Serial(batch);
  return serial.total_us <= overlapped.total_us ? serial : overlapped;
}

double DecodeCost::DenseLayerUs(const DecodeBatch& batch) const {
  const double tokens = TokensOf(batch);
  return op_.DecodeProjectionsUs(tokens) +
         op_.DecodeAttentionUs(tokens, batch.requests_per_die, batch.kv_tokens) +
         op_.DenseFfnUs(tokens) + tokens * op_.constants().fitted.vector_us_per_token +
         op_.constants().fitted.decode_launch_us;
}

double DecodeCost::MtpPassMs(double tokens, double layer_us) const {
  const double hidden = op_.constants().model.hidden;
  return (layer_us + op_.Int8GemmUs(tokens, 2 * hidden * hidden) + op_.HeadUs(tokens) +
          tokens * op_.constants().fitted.sampling_us_per_token) *
         1e-3;
}

double DecodeCost::AttentionStageUs(double requests, double kv_tokens, bool mtp) const {
  const double tokens = requests * (mtp ? 2 : 1);
  const FittedConstants& fitted = op_.constants().fitted;
  return op_.DecodeProjectionsUs(tokens) + op_.DecodeAttentionUs(tokens, requests, kv_tokens) +
         tokens * fitted.vector_us_per_token / 2 + fitted.decode_launch_us / 2;
}

DecodeIteration DecodeCost::Iteration(const DecodeBatch& batch) const {
  const CostConstants& c = op_.constants();
  const double tokens = TokensOf(batch);
  DecodeIteration r;
  r.layer = Layer(batch);
  const int moe_layers = c.model.layers - c.model.dense_layers;
  const double main_ms =
      (moe_layers * r.layer.total_us + c.model.dense_layers * DenseLayerUs(batch) +
       op_.HeadUs(tokens) + tokens * c.fitted.sampling_us_per_token) *
      1e-3;
  r.mtp_ms = batch.mtp ? MtpPassMs(tokens, r.layer.total_us) : 0;
  r.iteration_ms = main_ms + r.mtp_ms + c.scheduling.step_gap_ms;
  r.tokens_per_request = batch.mtp ? 1 + batch.mtp_acceptance : 1;
  r.tpot_ms = r.iteration_ms / r.tokens_per_request;
  r.tokens_per_s_per_npu = batch.requests_per_die * c.hardware.dies_per_npu / r.tpot_ms * 1e3;
  const double layers = c.model.layers + (batch.mtp ? 1 : 0);
  const double parts = r.layer.microbatched ? 2 : 1;
  r.attention_share = parts * layers * r.layer.attention_us * 1e-3 / r.iteration_ms;
  r.communication_share = parts * (layers - c.model.dense_layers) *
                          (r.layer.dispatch_us + r.layer.combine_us) * 1e-3 / r.iteration_ms;
  return r;
}

}  // namespace ems::pdc
