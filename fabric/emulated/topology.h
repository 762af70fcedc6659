#pragma once
// The machine that is emulated: nodes, NPUs of two dies, CPUs, storage; and what a transfer between
// two of them passes on each plane.
//
// EMULATED: positions in a supernode that is not here, after CM §3.2 and §3.3. A route names the
// parts of the machine whose bandwidth a transfer takes; an EmulatedFabric (emulated_fabric.h)
// holds them as links that transfers share.
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "fabric/emulated/link_model.h"

namespace ems::fabric {

// The source or the destination of a transfer.
struct Endpoint {
  enum class Kind : uint8_t { kDie, kCpu, kEvs, kObs };
  Kind kind = Kind::kDie;
  uint32_t node = 0;
  uint32_t unit = 0;  // NPU or CPU of the node
  uint32_t die = 0;   // of the NPU
  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;

  static constexpr Endpoint Die(uint32_t node, uint32_t npu, uint32_t die) {
    return {Kind::kDie, node, npu, die};
  }
  static constexpr Endpoint Cpu(uint32_t node, uint32_t cpu) { return {Kind::kCpu, node, cpu, 0}; }
  // The block storage of a node.
  static constexpr Endpoint Evs(uint32_t node) { return {Kind::kEvs, node, 0, 0}; }
  // The one bucket.
  static constexpr Endpoint Obs() { return {Kind::kObs, 0, 0, 0}; }
  // "node 3 NPU 7 die 1"
  std::string ToString() const;
};

// A part of the machine, in one direction.
struct LinkId {
  enum class Kind : uint8_t {
    kEngine,      // of a die: what it reads or writes of one kind of peer (CM Table 1)
    kHbm,         // of a die
    kPackageOut,  // of a die, to the other one of its package
    kUbOut,       // of a die or CPU
    kUbIn,
    kRdmaOut,  // of a die
    kRdmaIn,
    kNicOut,  // of a node
    kNicIn,
    kBucket,
  };
  Kind kind = Kind::kEngine;
  Endpoint at;
  uint32_t variant = 0;  // of an engine
  friend auto operator<=>(const LinkId&, const LinkId&) = default;
};

struct RouteLink {
  LinkId id;
  uint64_t bytes_per_s = 0;
};

struct EmulatedRoute {
  std::vector<RouteLink> links;
  Duration base_latency{0};
  uint64_t bytes_per_s() const;  // of the slowest link
};

// Threading: immutable.
class EmulatedTopology final {
 public:
  struct Shape {
    uint32_t nodes = 48;
    uint32_t npus_per_node = 8;
    uint32_t dies_per_npu = 2;
    uint32_t cpus_per_node = 4;
  };
  // For tests and laptops: two nodes of two NPUs and one CPU.
  static constexpr Shape kSmall = {2, 2, 2, 1};

  // Errors: kInvalidArgument  something of which there is none, or more than 65,536
  static Result<EmulatedTopology> Create(const Shape& shape, const EmulatedLinkModel& model);
  // A CloudMatrix384, not scaled.
  EmulatedTopology() = default;

  const Shape& shape() const { return shape_; }
  const EmulatedLinkModel& model() const { return model_; }
  uint64_t npus() const { return uint64_t{shape_.nodes} * shape_.npus_per_node; }
  uint64_t dies() const { return npus() * shape_.dies_per_npu; }
  uint64_t cpus() const { return uint64_t{shape_.nodes} * shape_.cpus_per_node; }
  // The i-th die, NPU by NPU, node by node; i < dies().
  Endpoint DieAt(uint64_t i) const;

  // What `initiator` passes to read from `target`, or to write to it. Storage is a target only; a
  // node's EVS is reached from that node.
  // Errors: kInvalidArgument  no such endpoint, or the plane does not join the two
  Result<EmulatedRoute> Route(Plane plane, const Endpoint& initiator, const Endpoint& target,
                              Access access) const;

 private:
  EmulatedTopology(const Shape& shape, const EmulatedLinkModel& model)
      : shape_(shape), model_(model) {}
  Status Check(const Endpoint& endpoint) const;
  EmulatedRoute OverUb(const Endpoint& initiator, const Endpoint& target, Access access) const;
  EmulatedRoute OverNic(Plane plane, const Endpoint& initiator, const Endpoint& target,
                        Access access) const;

  Shape shape_;
  EmulatedLinkModel model_;
};

}  // namespace ems::fabric
