#pragma once
// Which rank of a prefill instance a rank of the decode instance pulls KV from (CM §4.3.3). All
// ranks of a tensor-parallel prefill group hold the same latent KV, so the pulls may be spread over
// them; this formula spreads them evenly and without talking to anyone.
//
//   ratio = prefill_tp / decode_tp        group_size = decode_dp / ratio
//   source = floor(decode_dp_rank / group_size) · decode_tp + decode_tp_rank
//
// Invariant: each prefill rank serves the same number of decode ranks, group_size.
// Threading: immutable.
#include "common/status.h"

namespace ems::pdc {

struct PdShape {
  int prefill_tp = 1;
  int decode_tp = 1;
  int decode_dp = 1;
};

struct DecodeRank {
  int dp = 0;  // 0 .. decode_dp - 1
  int tp = 0;  // 0 .. decode_tp - 1
};

class PdMapping final {
 public:
  // Errors: kInvalidArgument  a size is below 1, prefill_tp is no multiple of decode_tp, or
  // decode_dp no multiple of their ratio: the formula would favour some ranks
  static Result<PdMapping> Make(PdShape shape);
  // The rank, 0 .. prefill_tp - 1, to pull from. Aborts on a rank outside of the shape. Cost: O(1).
  int PrefillRank(DecodeRank rank) const;
  // How many decode ranks each prefill rank serves.
  int decode_ranks_per_prefill_rank() const { return group_size_; }
  const PdShape& shape() const { return shape_; }

 private:
  PdMapping(PdShape shape, int group_size) : shape_(shape), group_size_(group_size) {}
  PdShape shape_;
  int group_size_;
};

}  // namespace ems::pdc
