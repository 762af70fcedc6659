#include "pdc/cost_model/kv_transfer.h"

#include <cmath>

#include "common/check.h"

namespace ems::pdc {

using fabric::LinkFigures;

LinkFigures KvTransfer::VpcOfDie() const {
  const Hardware& h = c_.hardware;
  LinkFigures share = h.vpc_node;
  share.bytes_per_s /= static_cast<uint64_t>(h.npus_per_node * h.dies_per_npu);
  share.latency = h.npu_cpu_read.latency;
  return share;
}

double KvTransfer::Seconds(double tokens, int block_tokens, const LinkFigures& link) const {
  EMS_CHECK(block_tokens >= 1, "blocks of {} tokens", block_tokens);
  const double reads = std::ceil(tokens / block_tokens) * c_.model.layers;
  return tokens * c_.model.kv_bytes_per_token / (link.gb_per_s() * 1e9) +
         reads * link.latency_us() * 1e-6;
}

double KvTransfer::LoadSeconds(const KvLoad& load, CachePlane plane) const {
  const double tokens = load.tokens_per_die * load.copies;
  // The pool's nodes send to each other's cards first; from there it is the same local read.
  const LinkFigures link = plane == CachePlane::kUb ? c_.hardware.npu_cpu_read : VpcOfDie();
  const double once =
      plane == CachePlane::kVpc && tokens > 0 ? c_.hardware.vpc_node.latency_us() * 1e-6 : 0;
  return once + Seconds(tokens, load.block_tokens, link);
}

double KvTransfer::HandOffSeconds(double tokens) const {
  const LinkFigures& rdma = c_.hardware.rdma;
  return rdma.latency_us() * 1e-6 + tokens * c_.model.kv_bytes_per_token / (rdma.gb_per_s() * 1e9);
}

}  // namespace ems::pdc
