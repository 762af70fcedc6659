#include "pdc/pd_mapping.h"

#include "common/check.h"

namespace ems::pdc {

Result<PdMapping> PdMapping::Make(PdShape shape) {
  if (shape.prefill_tp < 1 || shape.decode_tp < 1 || shape.decode_dp < 1) {
    return Error(StatusCode::kInvalidArgument,
                 "prefill_tp {}, decode_tp {} and decode_dp {} have to be at least 1",
                 shape.prefill_tp, shape.decode_tp, shape.decode_dp);
  }
  if (shape.prefill_tp % shape.decode_tp != 0) {
    return Error(StatusCode::kInvalidArgument, "prefill_tp {} is no multiple of decode_tp {}",
                 shape.prefill_tp, shape.decode_tp);
  }
  const int ratio = shape.prefill_tp / shape.decode_tp;
  if (shape.decode_dp % ratio != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "decode_dp {} is no multiple of prefill_tp / decode_tp = {}: some prefill ranks "
                 "would serve more than others",
                 shape.decode_dp, ratio);
  }
  return PdMapping(shape, shape.decode_dp / ratio);
}

int PdMapping::PrefillRank(DecodeRank rank) const {
  EMS_CHECK(rank.dp >= 0 && rank.dp < shape_.decode_dp, "decode dp rank {} of {}", rank.dp,
            shape_.decode_dp);
  EMS_CHECK(rank.tp >= 0 && rank.tp < shape_.decode_tp, "decode tp rank {} of {}", rank.tp,
            shape_.decode_tp);
  return rank.dp / group_size_ * shape_.decode_tp + rank.tp;
}

}  // namespace ems::pdc
