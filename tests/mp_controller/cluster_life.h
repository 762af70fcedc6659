#pragma once
// One life of a controller on a folder, without threads or sockets, for tests.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cluster/control_rules.h"
#include "mp_controller/cluster_state.h"
#include "mp_controller/controller_store.h"
#include "proto/controller.pb.h"

namespace ems::controller {

// One life of a controller on a folder, without threads or sockets.
struct ClusterLife {
  explicit ClusterLife(const std::string& folder, ManualClock* clock_in,
                       const MembershipOptions& options = {})
      : clock(clock_in) {
    auto opened = ControllerStore::Open(folder);
    EXPECT_TRUE(opened.ok()) << opened.status();
    store = std::move(*opened);
    state = std::make_unique<ClusterState>(
        options, ClusterState::Parts{clock, store.get(), &publisher, &metrics});
    EXPECT_TRUE(state->Start("default").ok());
    state->Listen();
  }
  // Registers, and installs what there is; while the controller listens, its word alone is taken.
  uint32_t Register(const std::string& name, uint64_t boot, uint64_t lineage = 0,
                    ClusterId cluster = kNoCluster) {
    const uint32_t id = Announce(name, boot, lineage, cluster);
    v1::HeartbeatReply reply;
    (void)TryBeat(id, boot, publisher.view()->version(), {}, false, &reply);
    return id;
  }
  uint32_t Announce(const std::string& name, uint64_t boot, uint64_t lineage,
                    ClusterId cluster = kNoCluster) {
    v1::RegisterRequest request;
    request.set_cluster(cluster.value());
    request.mutable_node()->set_name(name);
    request.mutable_node()->set_boot_id(boot);
    request.mutable_node()->set_lineage(lineage);
    request.mutable_node()->set_data_address("h:1");
    request.mutable_node()->set_capacity_bytes(1 << 30);
    v1::RegisterReply reply;
    EXPECT_TRUE(state->Register(request, &reply).ok());
    return reply.node_id();
  }
  v1::HeartbeatReply Beat(uint32_t id, uint64_t boot, ViewVersion installed,
                          ViewVersion highest = {}, bool refused = false) {
    v1::HeartbeatReply reply;
    EXPECT_EQ(TryBeat(id, boot, installed, highest, refused, &reply), OkStatus());
    return reply;
  }
  Status TryBeat(uint32_t id, uint64_t boot, ViewVersion installed, ViewVersion highest,
                 bool refused, v1::HeartbeatReply* reply) {
    v1::HeartbeatRequest request;
    request.set_refused(refused);
    request.set_highest_term(highest.term());
    request.set_highest_epoch(highest.epoch());
    request.set_highest_fingerprint(highest_fingerprint);
    request.set_namespaces_version(table);
    request.set_namespaces_fingerprint(table_fingerprint);
    request.set_sequence(sequence);
    request.set_node_id(id);
    request.set_boot_id(boot);
    request.set_term(installed.term());
    request.set_epoch(installed.epoch());
    request.set_stopping(stopping);
    for (const uint32_t other : pulling_from) request.add_pulling_from(other);
    return state->Heartbeat(request, reply);
  }
  // After a restart: everybody who lives has had the time to say so.
  void FinishListening() {
    Run(ListenFirst(MembershipOptions().heartbeat) + std::chrono::milliseconds(100));
  }
  bool IsOld() {
    v1::ListNodesReply list;
    EXPECT_TRUE(state->ListNodes({}, &list).ok());
    return list.store_is_old();
  }
  Status AcceptAhead() {
    v1::AcceptAheadReply reply;
    return state->AcceptAhead({}, &reply);
  }
  void Leave(uint32_t id, uint64_t boot, bool keeps_slots = false) {
    v1::LeaveRequest leave;
    leave.set_keeps_slots(keeps_slots);
    leave.set_node_id(id);
    leave.set_boot_id(boot);
    v1::LeaveReply left;
    EXPECT_TRUE(state->Leave(leave, &left).ok());
  }
  bool Ahead(int node) {
    v1::ListNodesReply list;
    EXPECT_TRUE(state->ListNodes({}, &list).ok());
    return list.nodes(node).ahead();
  }
  void Run(Duration time) {
    for (Duration past{}; past < time; past += std::chrono::milliseconds(100)) {
      clock->Advance(std::chrono::milliseconds(100));
      state->Tick();
    }
  }

  uint64_t highest_fingerprint = 0, sequence = 0;  // that heartbeats name
  uint64_t table = 0, table_fingerprint = 0;
  bool stopping = false;
  std::vector<uint32_t> pulling_from;
  ManualClock* clock;
  MetricsRegistry registry;
  ControllerMetrics metrics{&registry};
  ViewPublisher publisher{16};
  std::unique_ptr<ControllerStore> store;
  std::unique_ptr<ClusterState> state;
};

}  // namespace ems::controller
