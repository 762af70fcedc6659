#include "cluster/node_usage.h"

#include <algorithm>

#include "proto/controller.pb.h"

namespace ems {

void ToProto(const NodeUsage& usage, v1::NodeUsage* proto) {
  proto->set_dram_used_bytes(usage.dram_used_bytes);
  proto->set_dram_total_bytes(usage.dram_total_bytes);
  proto->set_objects(usage.objects);
  proto->set_ssd_used_bytes(usage.ssd_used_bytes);
  proto->set_ssd_total_bytes(usage.ssd_total_bytes);
  proto->set_ssd_state(static_cast<v1::SsdState>(usage.ssd_state));
  proto->set_gets(usage.gets);
  proto->set_hits(usage.hits);
  for (const HitCurve& curve : usage.curves) ToProto(curve, proto->add_curves());
  proto->set_damaged_objects(usage.damaged_objects);
  for (const QuotaPart& part : usage.quota_parts) ToProto(part, proto->add_quota_parts());
}

NodeUsage FromProto(const v1::NodeUsage& proto) {
  NodeUsage usage;
  usage.dram_used_bytes = proto.dram_used_bytes();
  usage.dram_total_bytes = proto.dram_total_bytes();
  usage.objects = proto.objects();
  usage.ssd_used_bytes = proto.ssd_used_bytes();
  usage.ssd_total_bytes = proto.ssd_total_bytes();
  if (v1::SsdState_IsValid(proto.ssd_state()))
    usage.ssd_state = static_cast<SsdState>(proto.ssd_state());
  usage.gets = proto.gets();
  usage.hits = proto.hits();
  const size_t curves = std::min<size_t>(static_cast<size_t>(proto.curves_size()), kHitCurvesMax);
  for (size_t i = 0; i < curves; ++i)
    usage.curves.push_back(FromProto(proto.curves(static_cast<int>(i))));
  usage.damaged_objects = proto.damaged_objects();
  const size_t parts =
      std::min<size_t>(static_cast<size_t>(proto.quota_parts_size()), kQuotaPartsMax);
  for (size_t i = 0; i < parts; ++i)
    usage.quota_parts.push_back(FromProto(proto.quota_parts(static_cast<int>(i))));
  return usage;
}

}  // namespace ems
