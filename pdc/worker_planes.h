#pragma once
// The paths that KV of one worker takes through an emulated machine: between its die and the pool,
// and from the die that prefills to the one that decodes.
//
// EMULATED: positions in a machine that is not here (fabric/topology.h). A rank is one die. The
// pool is one CPU's memory: a real pool is spread over all nodes, so that a die's own port is what
// limits it; here several dies that read at once also share that CPU's port of 160 GB/s. Invariant:
// each rank has a die of its own.
#include "common/status.h"
#include "fabric/emulated_fabric.h"
#include "fabric/emulated_link.h"
#include "fabric/topology.h"
#include "pdc/pd_mapping.h"

namespace ems::pdc {

// Between a die and the pool. Null: not paced. Whoever uses the same paths shares their links.
struct PoolPaths {
  const fabric::EmulatedPath* read = nullptr;   // pool → die
  const fabric::EmulatedPath* write = nullptr;  // die → pool
};

// Dies are numbered as by EmulatedTopology::DieAt.
struct WorkerPlacement {
  PdShape shape{};
  uint64_t prefill_die = 0;  // of prefill rank 0; the others follow
  uint64_t decode_die = 1;  // of decode rank {0, 0}; then {0, 1}, …: rank by rank of a tensor group
  fabric::Endpoint pool = fabric::Endpoint::Cpu(0, 0);
};

// Threading: thread-safe.
class WorkerPlanes final {
 public:
  // `fabric` must outlive this; paths live as long as it does.
  // Errors: kInvalidArgument  a shape that PdMapping refuses, ranks beyond the machine's dies or
  // two on one die, a pool that is no CPU of the machine
  static Result<WorkerPlanes> Make(fabric::EmulatedFabric* fabric,
                                   const WorkerPlacement& placement);

  const PdMapping& mapping() const { return mapping_; }
  // Abort on a rank outside of the shape.
  fabric::Endpoint PrefillDie(int rank) const;
  fabric::Endpoint DecodeDie(DecodeRank rank) const;

  // Between the pool and `die` over UB, read and written by the die's SDMA; or over the nodes' VPC
  // cards. Errors: kInvalidArgument  another plane, or no such die
  Result<PoolPaths> PoolOf(const fabric::Endpoint& die, fabric::Plane plane) const;
  // To `rank` over RDMA, from the prefill rank that PdMapping gives it. Never null.
  Result<const fabric::EmulatedPath*> HandoffTo(DecodeRank rank) const;

 private:
  WorkerPlanes(fabric::EmulatedFabric* fabric, const WorkerPlacement& placement,
               const PdMapping& mapping)
      : fabric_(fabric), placement_(placement), mapping_(mapping) {}

  fabric::EmulatedFabric* fabric_;
  WorkerPlacement placement_;
  PdMapping mapping_;
};

}  // namespace ems::pdc
