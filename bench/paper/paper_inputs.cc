#include "bench/paper/paper_inputs.h"

#include <fmt/core.h>

#include <array>

#include "bench/model/model_cost.h"

namespace ems::bench {
namespace {

using pdc::CostConstants;
using pdc::Operators;

struct GemmRow {
  double groups, rows, columns, depth, tops;
};

}  // namespace

PaperSection Table2() {
  const ModelCostInput input;
  const ModelCost none = CostWithoutCache(input), local = CostWithLocalDram(input),
                  ems = CostWithEms(input);
  PaperSection section{.title =
                           "Table 2 (CM §4.4.3): a 671 GB model, 8 instances, OBS at 2.5 GB/s"};
  const auto add = [&section](const char* id, const char* name, const char* unit, double paper,
                              double ours, RowKind kind = RowKind::kPrediction) {
    section.Add(id, name, unit, paper, ours, kind, 5);
  };
  add("table2_cold_none", "cold start, no cache", "s", 2560, none.cold_seconds);
  add("table2_cold_local", "cold start, local DRAM", "s", 2560, local.cold_seconds);
  add("table2_cold_ems", "cold start, EMS", "s", 320, ems.cold_seconds, RowKind::kFit);
  add("table2_warm_local", "warm start, local DRAM", "s", 5, local.warm_seconds, RowKind::kInput);
  add("table2_warm_ems", "warm start, EMS", "s", 5, ems.warm_seconds, RowKind::kInput);
  add("table2_dram_none", "DRAM, no cache", "models", 0, none.dram_models);
  add("table2_dram_local", "DRAM, local", "models", 8, local.dram_models);
  add("table2_dram_ems", "DRAM, EMS", "models", 1, ems.dram_models);
  add("table2_hits_local", "hit rate of switches, local DRAM", "%", 12.5, 100 * local.hit_rate);
  add("table2_hits_ems", "hit rate of switches, EMS", "%", 100, 100 * ems.hit_rate);
  add("table2_switch_none", "mean switch, no cache", "s", 320, none.switch_seconds);
  add("table2_switch_local", "mean switch, local DRAM", "s", 281, local.switch_seconds);
  add("table2_switch_ems", "mean switch, EMS", "s", 5, ems.switch_seconds);
  return section;
}

PaperSection OperatorTables(const CostConstants& c) {
  constexpr std::array<std::array<double, 3>, 6> kTable7 = {{{8, 116, 118},
                                                             {16, 131, 132},
                                                             {32, 133, 146},
                                                             {64, 141, 150},
                                                             {128, 152, 150},
                                                             {256, 152, 149}}};
  constexpr std::array<GemmRow, 6> kTable10 = {{{4, 7168, 4096, 4096, 597},
                                                {4, 2048, 7168, 4096, 582},
                                                {4, 7168, 4096, 8192, 622},
                                                {4, 2048, 7168, 8192, 610},
                                                {8, 7168, 4096, 4096, 599},
                                                {8, 2048, 7168, 4096, 586}}};
  constexpr auto kInput = RowKind::kInput;
  PaperSection section{.title = "Tables 7 to 10 (CM §5.5): operators that the model is made of"};
  const Operators op(c);
  for (const auto& [ranks, dispatch, combine] : kTable7) {
    const int ep = static_cast<int>(ranks);
    section.Add(fmt::format("table7_dispatch_{}", ep), fmt::format("dispatch, EP{}, batch 128", ep),
                "us", dispatch, op.DispatchUs(128, ep), kInput);
    section.Add(fmt::format("table7_combine_{}", ep), fmt::format("combine, EP{}, batch 128", ep),
                "us", combine, op.CombineUs(128, ep), kInput);
  }
  section.Add("table8_mla", "MLA, compute-bound", "TFLOPS", 246,
              c.hardware.bf16_tflops * c.hardware.mla_efficiency, kInput);
  section.Add("table9_mla", "MLA, memory-bound", "GB/s", 1346,
              c.hardware.hbm_gb_per_s * c.hardware.hbm_efficiency, kInput);
  int number = 0;
  for (const GemmRow& row : kTable10) {
    const double us = op.Int8GemmUs(row.rows, row.columns * row.depth);
    section.Add(fmt::format("table10_gemm_{}", ++number),
                fmt::format("INT8 GEMM {:.0f} × {:.0f} × {:.0f}, {:.0f} groups", row.rows,
                            row.columns, row.depth, row.groups),
                "TOPS", row.tops, 2e-6 * row.rows * row.columns * row.depth / us, kInput);
  }
  return section;
}

PaperSection ModelShapes(const CostConstants& c) {
  const pdc::ModelShape& m = c.model;
  const double mla = m.layers * (m.kv_rank + m.rope_dim) * 2;
  // Layers, KV heads, head size; keys and values in BF16.
  const double qwen = 80.0 * 8 * 128 * 2 * 2, llama = 126.0 * 8 * 128 * 2 * 2;
  const double block = 128 * m.kv_bytes_per_token;
  constexpr auto kInput = RowKind::kInput;
  PaperSection section{.title = "DSV3 Table 1: KV of a token, BF16"};
  section.Add("kv_deepseek", "DeepSeek-V3 (MLA)", "KB", 70.272, mla * 1e-3, kInput);
  section.Add("kv_qwen", "Qwen-2.5 72B (GQA)", "KB", 327.680, qwen * 1e-3, kInput);
  section.Add("kv_llama", "LLaMA-3.1 405B (GQA)", "KB", 516.096, llama * 1e-3, kInput);
  section.Add("block_mb", "block of 128 tokens, all layers", "MB", 9.0, block * 1e-6, kInput);
  section.Add("block_layer_kb", "block of 128 tokens, one layer", "KB", 147,
              block / m.layers * 1e-3, kInput);
  return section;
}

PaperSection OtherArithmetic(const CostConstants& c) {
  // DSV3 §2.3.2: 32 tokens to 9 experts, 1 byte there and 2 back of about 7K each, two
  // microbatches.
  const auto floor_ms = [&c](double gb_per_s) {
    return 2 * (3 * 32 * 9 * 7.0 / gb_per_s) * c.model.layers * 1e-3;
  };
  constexpr auto kInput = RowKind::kInput;
  PaperSection section{.title = "Other figures that are arithmetic"};
  section.Add("dsv3_floor_ib", "TPOT floor, 400 Gbps InfiniBand (DSV3 §2.3.2)", "ms", 14.76,
              floor_ms(50), kInput);
  section.Add("dsv3_floor_scale_up", "TPOT floor, 900 GB/s scale-up fabric", "ms", 0.82,
              floor_ms(900), kInput);
  section.Add("deepseek_hits", "DeepSeek prefill on an H800, 56.3 % hits", "tokens/s", 9213,
              4026 / (1 - 0.563), kInput);
  return section;
}

}  // namespace ems::bench
