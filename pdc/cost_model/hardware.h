#pragma once
// The machine, the model and the fitted constants of the cost model: one set for every figure.
// Sources are CM (CloudMatrix384) and XDS (xDeepServe); docs/COST_MODEL.md explains each.
// Units: µs, GB/s (1e9 bytes a second), TFLOPS (1e12 a second). Threading: plain data.

namespace ems::pdc {

struct LinkFigures {
  double gb_per_s = 0;    // one direction
  double latency_us = 0;  // of 512 bytes
};

// Where KV is loaded from: the pool over the supernode's own network, or over the cloud's.
enum class CachePlane { kUb, kVpc };

// Ascend 910C in a CloudMatrix384 (CM §3, Tables 1 and 7 to 10). All per die.
struct Hardware {
  int dies_per_npu = 2;
  int npus_per_node = 8;
  int cube_cores = 24;  // AICs

  double bf16_tflops = 376;
  double int8_tops = 752;
  double hbm_gb_per_s = 1600;
  double hbm_gb = 64;
  double hbm_efficiency = 0.841;  // Table 9
  double mla_efficiency = 0.654;  // Table 8
  // Table 10: 77.4–79.4 % at K = 4096 and 81.1–82.7 % at K = 8192 for 2048 and 7168 rows, that is
  // gemm_efficiency · rows / (rows + gemm_ramp_rows).
  double gemm_efficiency = 0.82;
  double gemm_ramp_rows = 65;

  LinkFigures npu_npu_write = {135, 2.1};  // UB, other node
  LinkFigures npu_cpu_read = {147, 1.7};   // UB, other node
  LinkFigures npu_cpu_write = {107, 1.9};
  LinkFigures rdma = {25, 5};       // 200 Gbps; latency assumed
  LinkFigures vpc_node = {50, 50};  // 400 Gbps a node, shared by its dies; latency assumed
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

// Everything that is neither in the papers nor follows from the shape. Each was fitted to the row
// beside it and to nothing else; docs/COST_MODEL.md is the table of record.
struct FittedConstants {
  // Decode and prefill: work of the vector cores, a token and layer (norms, rope, quantisation,
  // gating, activation).
  double vector_us_per_token = 1.0;  // Table 5, batch 128
  // Decode: kernels of a layer, those of the attention and of the experts half each.
  double decode_launch_us = 46;  // Table 5, batch 8
  // Decode: what a dispatch or combine takes among ranks that wait for each other, over Table 7.
  double decode_barrier_factor = 2.4;  // Table 5, batch 24
  // Decode: each of two streams, beside having the die to itself with the same cores.
  double stream_interference = 1.15;  // Fig. 22b, layer without MTP
  // Decode: sampling, a token of the batch.
  double sampling_us_per_token = 12;  // XDS §7.1: an MTP pass of 5 ms
  // Prefill: per token of context, cached or new, a layer and die; beside the arithmetic.
  double context_us_per_token = 1.27;  // Fig. 23b, 50 % reuse
  // Prefill: the same, but running beside the arithmetic; the slower of the two counts.
  double context_stream_us_per_token = 2.26;  // Fig. 23b, 90 % reuse
  // Prefill: tokens of the busiest rank's experts over the mean, with the default EPLB.
  double prefill_expert_imbalance = 1.4;  // Table 3, default
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
