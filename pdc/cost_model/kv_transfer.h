#pragma once
// KV on the move: pool → NPU over each plane, prefill → decode. Seconds are those of
// the slowest die. Pure. Cost: O(1). Threading: immutable.
#include "pdc/cost_model/hardware.h"

namespace ems::pdc {

struct KvLoad {
  double tokens_per_die = 0;  // cached tokens of the batch over the dies of the instance
  // Dies of an attention group: each needs all of the group's latent KV ("an identical, complete
  // copy", CM §4.3.3), so each loads this many times its share.
  int copies = 4;
  int block_tokens = 128;
};

class KvTransfer final {
 public:
  explicit KvTransfer(const CostConstants& constants) : c_(constants) {}
  // Pool → HBM: one read for each block and layer, and the bytes at the plane's bandwidth; on the
  // VPC plane all dies of a node share the node's card.
  double LoadSeconds(const KvLoad& load, CachePlane plane) const;
  // Prefill → decode over the RDMA plane, one request from one die to one die.
  double HandOffSeconds(double tokens) const;

 private:
  double Seconds(double tokens, int block_tokens, const fabric::LinkFigures& link) const;
  fabric::LinkFigures VpcOfDie() const;
  const CostConstants c_;
};

}  // namespace ems::pdc
