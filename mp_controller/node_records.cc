#include "mp_controller/node_records.h"

#include "common/bytes.h"
#include "common/logging.h"
#include "mp_controller/request_check.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

uint64_t NumberOf(const std::map<NodeId, uint64_t>& numbers, NodeId id) {
  const auto found = numbers.find(id);
  return found == numbers.end() ? 0 : found->second;
}

}  // namespace

StoredNode NodeRecords::Of(NodeId id) const {
  const std::string name = parts_.membership->NameOf(id);
  return {.id = id,
          .name = name,
          .stopped_boot_id = NumberOf(stopped_, id),
          .left = parts_.membership->HasLeft(name),
          .times = parts_.membership->TimesOf(id),
          .dram_bytes = NumberOf(dram_, id),
          .drained = parts_.drains->IsSet(id)};
}

uint64_t NodeRecords::DramBytes(NodeId id) const { return NumberOf(dram_, id); }

Status NodeRecords::Put(const StoredNode& record, uint32_t next_node_id) {
  const Status stored = parts_.store->PutNode(record, next_node_id);
  if (!stored.ok()) {
    parts_.metrics->store_errors.Add();
    return stored;
  }
  Remember(record);
  return OkStatus();
}

void NodeRecords::Remember(const StoredNode& record) {
  parts_.membership->SetTimes(record.id, record.times);
  if (record.stopped_boot_id != 0) stopped_[record.id] = record.stopped_boot_id;
  if (record.dram_bytes != 0) {
    dram_[record.id] = record.dram_bytes;
  } else {
    dram_.erase(record.id);
  }
  parts_.drains->Set(record.id, record.drained);
}

Result<NodeId> NodeRecords::IdOf(const std::string& name) const {
  if (const auto id = parts_.membership->IdOf(name)) return *id;
  return Error(StatusCode::kNotFound, "no server is called \"{}\"; `emsctl node list` names all",
               Printable(name));
}

Status NodeRecords::Set(const v1::SetNodeRequest& request, uint32_t next_node_id) {
  EMS_RETURN_IF_ERROR(CheckDramBytes(request.dram_bytes()));
  EMS_ASSIGN_OR_RETURN(const NodeId id, IdOf(request.name()));
  StoredNode record = Of(id);
  record.dram_bytes = request.dram_bytes();
  EMS_RETURN_IF_ERROR(Put(record, next_node_id));
  EMS_LOG(kInfo, "mp_controller", "an operator set the memory of a server name={} dram.bytes={}",
          record.name, record.dram_bytes == 0 ? "default" : FormatBytes(record.dram_bytes));
  return OkStatus();
}

Status NodeRecords::Drain(const v1::DrainNodeRequest& request, const DhtView& view,
                          uint32_t next_node_id) {
  EMS_ASSIGN_OR_RETURN(const NodeId id, IdOf(request.name()));
  StoredNode record = Of(id);
  if (record.drained == !request.cancel()) return OkStatus();
  if (!request.cancel()) EMS_RETURN_IF_ERROR(parts_.drains->Check(id, view));
  record.drained = !request.cancel();
  EMS_RETURN_IF_ERROR(Put(record, next_node_id));
  EMS_LOG(kInfo, "mp_controller", "an operator {} name={}",
          record.drained ? "drains a server" : "has cancelled the drain of a server", record.name);
  return OkStatus();
}

void NodeRecords::Forget(NodeId id) {
  parts_.drains->Forget(id);
  stopped_.erase(id);
  dram_.erase(id);
}

}  // namespace ems::controller
