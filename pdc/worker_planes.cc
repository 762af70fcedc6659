#include "pdc/worker_planes.h"

#include <tuple>

#include "common/check.h"

namespace ems::pdc {

using fabric::Access;
using fabric::EmulatedPath;
using fabric::Endpoint;
using fabric::Plane;

Result<WorkerPlanes> WorkerPlanes::Make(fabric::EmulatedFabric* fabric,
                                        const WorkerPlacement& placement) {
  EMS_ASSIGN_OR_RETURN(const PdMapping mapping, PdMapping::Make(placement.shape));
  const auto prefill_dies = static_cast<uint64_t>(placement.shape.prefill_tp);
  const uint64_t decode_dies = static_cast<uint64_t>(placement.shape.decode_dp) *
                               static_cast<uint64_t>(placement.shape.decode_tp);
  const uint64_t dies = fabric->topology().dies();
  for (const auto& [first, count, what] :
       {std::tuple(placement.prefill_die, prefill_dies, "prefill"),
        std::tuple(placement.decode_die, decode_dies, "decode")}) {
    if (first < dies && count <= dies - first) continue;
    return Error(StatusCode::kInvalidArgument,
                 "{} {} ranks from die {} on, the machine has {} dies", count, what, first, dies);
  }
  if (placement.prefill_die < placement.decode_die + decode_dies &&
      placement.decode_die < placement.prefill_die + prefill_dies) {
    return Error(StatusCode::kInvalidArgument,
                 "{} prefill ranks from die {} on and {} decode ranks from die {} on share dies",
                 prefill_dies, placement.prefill_die, decode_dies, placement.decode_die);
  }
  if (placement.pool.kind != Endpoint::Kind::kCpu) {
    return Error(StatusCode::kInvalidArgument, "the pool is memory of a CPU, not of {}",
                 placement.pool.ToString());
  }
  const WorkerPlanes planes(fabric, placement, mapping);
  EMS_RETURN_IF_ERROR(planes.PoolOf(planes.PrefillDie(0), Plane::kUb).status());  // is it there?
  return planes;
}

Endpoint WorkerPlanes::PrefillDie(int rank) const {
  EMS_CHECK(rank >= 0 && rank < placement_.shape.prefill_tp, "prefill rank {} of {}", rank,
            placement_.shape.prefill_tp);
  return fabric_->topology().DieAt(placement_.prefill_die + static_cast<uint64_t>(rank));
}

Endpoint WorkerPlanes::DecodeDie(DecodeRank rank) const {
  const PdShape& shape = placement_.shape;
  EMS_CHECK(rank.dp >= 0 && rank.dp < shape.decode_dp && rank.tp >= 0 && rank.tp < shape.decode_tp,
            "decode rank {}, {} of {}, {}", rank.dp, rank.tp, shape.decode_dp, shape.decode_tp);
  return fabric_->topology().DieAt(placement_.decode_die +
                                   static_cast<uint64_t>(rank.dp) *
                                       static_cast<uint64_t>(shape.decode_tp) +
                                   static_cast<uint64_t>(rank.tp));
}

Result<PoolPaths> WorkerPlanes::PoolOf(const Endpoint& die, Plane plane) const {
  if (die.kind != Endpoint::Kind::kDie)
    return Error(StatusCode::kInvalidArgument, "{} is no die", die.ToString());
  PoolPaths paths;
  EMS_ASSIGN_OR_RETURN(paths.read, fabric_->Path(plane, die, placement_.pool, Access::kRead));
  EMS_ASSIGN_OR_RETURN(paths.write, fabric_->Path(plane, die, placement_.pool, Access::kWrite));
  return paths;
}

Result<const EmulatedPath*> WorkerPlanes::HandoffTo(DecodeRank rank) const {
  // The sender writes (fabric/ring_sender.h).
  return fabric_->Path(Plane::kRdma, PrefillDie(mapping_.PrefillRank(rank)), DecodeDie(rank),
                       Access::kWrite);
}

}  // namespace ems::pdc
