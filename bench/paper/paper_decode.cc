#include "bench/paper/paper_decode.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace ems::bench {
namespace {

using pdc::CostConstants;
using pdc::DecodeCost;
using pdc::DecodeIteration;
using pdc::Microbatching;

constexpr double kCmContext = 4096;

// CM's decode instance: 160 NPUs, EP320; batches are those of an NPU.
DecodeIteration Cm(const CostConstants& c, double batch, double kv_tokens, bool mtp = true,
                   Microbatching microbatching = Microbatching::kFaster) {
  return DecodeCost(c).Iteration({.expert_ranks = 320,
                                  .requests_per_die = batch / c.hardware.dies_per_npu,
                                  .kv_tokens = kv_tokens,
                                  .mtp = mtp,
                                  .mtp_acceptance = 0.70,
                                  .microbatching = microbatching});
}

struct Table5Row {
  double prompt, output, batch, tpot_ms, tokens_per_s;
  RowKind kind;
};

}  // namespace

PaperSection Tables4And5(const CostConstants& c) {
  constexpr std::array<Table5Row, 5> kRows = {{{1024, 1024, 128, 46.8, 2733, RowKind::kFit},
                                               {2048, 256, 112, 47.4, 2360, RowKind::kPrediction},
                                               {4096, 256, 96, 49.4, 1943, RowKind::kPrediction},
                                               {4096, 256, 24, 24.6, 974, RowKind::kFit},
                                               {4096, 256, 8, 14.9, 538, RowKind::kFit}}};
  PaperSection section{
      .title = "Tables 4 and 5 (CM §5.2): decode, EP320, MTP acceptance 0.70",
      .note = "KV of a request: its prompt and half of its output. Table 4 is batch 96."};
  for (const Table5Row& row : kRows) {
    const DecodeIteration ours = Cm(c, row.batch, row.prompt + row.output / 2);
    const std::string id = fmt::format("table5_batch{:.0f}_", row.batch);
    const std::string name =
        fmt::format("{:.0f} + {:.0f}, batch {:.0f}: ", row.prompt, row.output, row.batch);
    section.Add(id + "tpot", name + "TPOT", "ms", row.tpot_ms, ours.tpot_ms, row.kind);
    section.Add(id + "throughput", name + "throughput", "tokens/s/NPU", row.tokens_per_s,
                ours.tokens_per_s_per_npu, row.kind);
  }
  return section;
}

PaperSection DecodeMicrobatching(const CostConstants& c) {
  constexpr std::array<std::array<double, 2>, 3> kGains = {
      {{64, 1.058}, {96, 1.094}, {128, 1.069}}};
  PaperSection section{.title = "Fig. 20 (CM §5.4.1): decode with over without microbatches, 4K KV",
                       .note = "The paper's gains are 5.8, 9.4 and 6.9 %; as factors here."};
  for (const auto& [batch, gain] : kGains) {
    section.Add(fmt::format("decode_microbatch_{:.0f}", batch),
                fmt::format("throughput, batch {:.0f}", batch), "×", gain,
                Cm(c, batch, kCmContext, true, Microbatching::kOn).tokens_per_s_per_npu /
                    Cm(c, batch, kCmContext, true, Microbatching::kOff).tokens_per_s_per_npu);
  }
  return section;
}

PaperSection MtpAblation(const CostConstants& c) {
  const DecodeIteration with = Cm(c, 96, kCmContext), without = Cm(c, 96, kCmContext, false);
  PaperSection section{.title = "Fig. 22 (CM §5.4.2): MTP with one speculative token, 4K KV",
                       .note =
                           "Gains are 6 to 49 % over batch sizes, most at the smallest; the "
                           "paper's text does not say which: 8 and 128 here."};
  section.Add("mtp_layer_without_us", "layer without MTP, batch 96", "us", 874,
              without.layer.total_us, RowKind::kFit);
  section.Add("mtp_layer_with_us", "layer with MTP, batch 96", "us", 1260, with.layer.total_us);
  section.Add("mtp_layer_ratio", "layer, with over without", "×", 1.44,
              with.layer.total_us / without.layer.total_us);
  section.Add("mtp_tokens", "tokens an iteration", "", 1.7, with.tokens_per_request,
              RowKind::kInput);
  const auto gain = [&c](double batch) {
    return Cm(c, batch, kCmContext).tokens_per_s_per_npu /
           Cm(c, batch, kCmContext, false).tokens_per_s_per_npu;
  };
  section.Add("mtp_gain_small_batch", "throughput, the most (batch 8)", "×", 1.49, gain(8));
  section.Add("mtp_gain_large_batch", "throughput, the least (batch 128)", "×", 1.06, gain(128));
  return section;
}

PaperSection XdsPeak(const CostConstants& c) {
  // Prompts and outputs of 2K; the paper's breakdown is at about 3K. Its kernels run one after
  // another: no microbatches.
  const DecodeIteration ours = DecodeCost(c).Iteration({.expert_ranks = 288,
                                                        .requests_per_die = 60,
                                                        .kv_tokens = 3072,
                                                        .mtp = true,
                                                        .mtp_acceptance = 0.90,
                                                        .microbatching = Microbatching::kOff});
  PaperSection section{.title = "XDS §7.1, Fig. 20: 288 dies, batch 60 a die, acceptance 0.90"};
  section.Add("xds_peak_iteration_ms", "iteration, without the gap", "ms", 93,
              ours.iteration_ms - c.scheduling.step_gap_ms);
  section.Add("xds_peak_tpot", "TPOT", "ms", 50, ours.tpot_ms);
  section.Add("xds_peak_throughput", "throughput", "tokens/s/NPU", 2400, ours.tokens_per_s_per_npu);
  section.Add("xds_peak_communication_share", "dispatch and combine, of an iteration", "%", 36,
              100 * ours.communication_share, RowKind::kFit);
  PaperRow& attention = section.Add("xds_peak_attention_share", "attention core, of an iteration",
                                    "%", 21.8, 100 * ours.attention_share);
  attention.known_percent = 25;
  attention.why =
      "ours computes all layers in BF16; XDS §4.7 runs the less sensitive ones, and part of the "
      "KV, in INT8, but not how many";
  return section;
}

PaperSection XdsDisaggregated(const CostConstants& c) {
  // 480 attention dies of 96 requests in two microbatches; 2K + 2K tokens. A2E, MoE and E2A are the
  // paper's own measurements, and only the last layer shows them.
  constexpr double kA2eUs = 172, kMoeUs = 120, kE2aUs = 193;
  const DecodeCost cost(c);
  const double stage_us = cost.AttentionStageUs(48, 3072, true) + kA2eUs;
  const double mtp_ms = cost.MtpPassMs(192, 2 * stage_us + kA2eUs + kMoeUs + kE2aUs);
  const double forward_ms = c.scheduling.step_gap_ms + mtp_ms +
                            1e-3 * (2 * c.model.layers * stage_us + kA2eUs + kMoeUs + kE2aUs);
  PaperSection section{
      .title = "XDS §7.1: attention and experts apart, 480 + 288 dies, batch 96 a die",
      .note = "A2E 172, MoE 120 and E2A 193 us are inputs."};
  section.Add("xds_apart_stage_us", "attention stage of a microbatch, a layer", "us", 700,
              stage_us);
  section.Add("xds_apart_mtp_ms", "MTP pass", "ms", 5, mtp_ms, RowKind::kFit);
  section.Add("xds_apart_forward_ms", "forward", "ms", 93, forward_ms);
  section.Add("xds_apart_tpot", "TPOT at acceptance 0.90", "ms", 49, forward_ms / 1.9);
  section.Add("xds_apart_throughput", "throughput of 768 dies", "tokens/s/NPU", 2400,
              96.0 * 480 / 384 / (forward_ms / 1.9) * 1e3);
  return section;
}

}  // namespace ems::bench
