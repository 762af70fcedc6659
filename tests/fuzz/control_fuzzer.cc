// Any bytes as each request of the control plane: checked, then run on membership and registry;
// never a crash.
#include <cstddef>
#include <cstdint>
#include <string>

#include "cluster/dht_view.h"
#include "cluster/namespace_codec.h"
#include "common/check.h"
#include "mp_controller/membership.h"
#include "mp_controller/namespace_registry.h"
#include "mp_controller/publish/view_builder.h"
#include "mp_controller/request_check.h"
#include "proto/controller.pb.h"

namespace {

using namespace ems;              // NOLINT: a fuzzer is one function
using namespace ems::controller;  // NOLINT

struct World {
  Membership membership{MembershipOptions{}};
  NamespaceRegistry namespaces;
  TimePoint now{std::chrono::seconds(100)};
  uint32_t next_id = 1;
};

void RunNodes(const std::string& bytes, World* world) {
  v1::RegisterRequest request;
  if (request.ParseFromString(bytes)) {
    auto info = CheckRegister(request);
    if (info.ok()) {
      if (!world->membership.IdOf(info->name).has_value())
        world->membership.AddNode(NodeId(world->next_id++), info->name);
      (void)world->membership.Register(*info, world->now);
    }
  }
  v1::HeartbeatRequest beat;
  if (beat.ParseFromString(bytes)) {
    const auto event = CheckHeartbeat(beat);
    if (event.ok())
      (void)world->membership.Heartbeat(event->id, event->boot_id,
                                        {.installed = event->installed, .usage = event->usage},
                                        world->now);
  }
  v1::LeaveRequest leave;
  if (leave.ParseFromString(bytes))
    (void)world->membership.Leave(NodeId(leave.node_id()), leave.boot_id(), world->now);
  v1::RemoveNodeRequest remove;
  if (remove.ParseFromString(bytes) && world->membership.CanRemove(remove.name()).ok())
    world->membership.Remove(remove.name());
}

void RunNamespaces(const std::string& bytes, World* world) {
  v1::CreateNamespaceRequest create;
  if (create.ParseFromString(bytes)) {
    auto wanted = CheckNamespace(create.name(), create.policy());
    if (wanted.ok()) {
      const auto change = world->namespaces.PlanCreate(*wanted);
      if (change.ok()) world->namespaces.Apply(*change);
    }
  }
  v1::UpdateNamespaceRequest update;
  if (update.ParseFromString(bytes)) {
    auto wanted = CheckNamespace(update.name(), update.policy());
    if (wanted.ok()) (void)world->namespaces.PlanUpdate(*wanted);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  World world;
  // Pieces separated by 0xff 0xff are requests in a row.
  const std::string all(reinterpret_cast<const char*>(data), size);
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find("\xff\xff", begin), all.size());
    const std::string bytes = all.substr(begin, end - begin);
    RunNodes(bytes, &world);
    RunNamespaces(bytes, &world);
    world.now += std::chrono::milliseconds(400);
    if (const auto proposal = world.membership.Propose(world.now)) {
      std::vector<NodeWeight> weights;
      for (const NodeInfo& node : proposal->nodes)
        weights.push_back({node.id, node.capacity_bytes});
      const SlotTable slots = BuildSlots(SlotTable(), weights);
      EMS_CHECK(DhtView::Make(ViewVersion(1, 1), proposal->nodes, slots, false).ok());
      world.membership.Commit(*proposal, world.now);
    }
    begin = end + 2;
  }
  v1::ClusterUpdate update;
  if (update.ParseFromString(all)) {
    (void)DhtView::FromProto(update.view());
    (void)FromProto(update.namespaces());
    const auto base = DhtView::Make(ViewVersion(1, 1), {}, SlotTable(), false);
    (void)DhtView::Apply(**base, update.delta());
  }
  return 0;
}
