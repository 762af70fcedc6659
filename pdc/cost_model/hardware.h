#pragma once
// The machine, the model and the fitted constants of the cost model: one set for every figure.
// Sources are CM (CloudMatrix384) and XDS (xDeepServe); docs/COST_MODEL.md explains each. Links are
// those that the emulated fabric paces by, at full speed (fabric/emulated/link_model.h).
// Units: µs, GB/s (1e9 bytes a second), TFLOPS (1e12 a second). Threading: plain data.
#include "fabric/emulated/link_model.h"

namespace ems::pdc {

// A link to another node, alone.
inline fabric::LinkFigures FarLink(fabric::Plane plane, fabric::LinkEnds ends,
                                   fabric::Access access) {
  return fabric::EmulatedLinkModel().Link(plane, ends, access, fabric::Reach::kInterNode);
}

// The plane over which KV is loaded from the pool: the supernode's own network, or the cloud's.
enum class CachePlane { kUb, kVpc };

// Ascend 910C in a CloudMatrix384 (CM §3, Tables 1 and 7 to 10). All per die.
struct Hardware {
  int dies_per_npu = 2;
  int npus_per_node = 8;
  int cube_cores = 24;  // AICs

  double bf16_tflops = 376;
  double int8_tops = 752;
  double hbm_gb_per_s =
      static_cast<double>(fabric::EmulatedLinkModel().Cap(fabric::LinkCap::kDieHbm)) / 1e9;
  double hbm_efficiency = 0.841;  // Table 9
  double mla_efficiency = 0.654;  // Table 8
  // Table 10: 77.4–79.4 % at K = 4096 and 81.1–82.7 % at K = 8192 for 2048 and 7168 rows, that is
  // gemm_efficiency · rows / (rows + gemm_ramp_rows).
  double gemm_efficiency = 0.82;
  double gemm_ramp_rows = 65;

  fabric::LinkFigures npu_npu_write =
      FarLink(fabric::Plane::kUb, fabric::LinkEnds::kNpuNpu, fabric::Access::kWrite);
  fabric::LinkFigures npu_cpu_read =
      FarLink(fabric::Plane::kUb, fabric::LinkEnds::kNpuCpu, fabric::Access::kRead);
  fabric::LinkFigures rdma =
      FarLink(fabric::Plane::kRdma, fabric::LinkEnds::kNpuNpu, fabric::Access::kWrite);
  // Of a node, shared by its dies.
  fabric::LinkFigures vpc_node =
      FarLink(fabric::Plane::kVpc, fabric::LinkEnds::kNpuCpu, fabric::Access::kRead);
  // XDS §3.1: below 1 MB a message takes less than this.
  double small_collective_us = 20;
};

// DeepSeek-R1 (671B): INT8 weights, BF16 KV.
struct ModelShape {
  int layers = 61;
  int dense_layers = 3;
  double hidden = 7168;
  double heads = 128;
  double q_rank = 1536;
  double kv_rank = 512;
  double rope_dim = 64;
  double nope_dim = 128;
  double value_dim = 128;
  int routed_experts = 256;
  int experts_per_token = 8;
  double expert_hidden = 2048;
  double dense_hidden = 18432;
  double vocabulary = 129280;
  double kv_bytes_per_token = 70272;       // all layers
  double dispatch_bytes_per_token = 7680;  // to each expert (CM §4.2.1)
  double combine_bytes_per_token = 14336;
};

// Everything that is neither in the papers nor follows from the shape. Fitted together, decode's to
// the rows of Table 5 with batches 8, 24 and 128, Fig. 22b's layer without MTP and XDS's share of
// communication; prefill's to Table 3 and four figures of Fig. 23. docs/COST_MODEL.md has the
// table of record.
struct FittedConstants {
  // Vector cores: norms, rope, quantisation, gating, activation. A token and layer; both phases.
  double vector_us_per_token = 0.75;
  // Decode: launches of a layer's kernels, half of them of the attention's.
  double decode_launch_us = 50;
  // Decode: a dispatch or combine among ranks that wait for each other, over Table 7's.
  double decode_barrier_factor = 2.3;
  // Decode: each of two streams, over having its cores and the memory to itself.
  double stream_interference = 1.125;
  // Decode: sampling, a token of the batch.
  double sampling_us_per_token = 7.8;
  // Prefill: a token of context, cached or new, a layer and die; beside the arithmetic.
  double context_us_per_token = 1.22;
  // Prefill: the same, but running beside the arithmetic; the slower of the two counts.
  double context_stream_us_per_token = 2.32;
  // Prefill: routed tokens of the busiest rank over the mean, with the default EPLB.
  double prefill_expert_imbalance = 1.6;
};

// Given, not fitted.
struct SchedulingConstants {
  double step_gap_ms = 2;  // XDS §7.1, between iterations
};

struct CostConstants {
  Hardware hardware;
  ModelShape model;
  FittedConstants fitted;
  SchedulingConstants scheduling;
};

}  // namespace ems::pdc
