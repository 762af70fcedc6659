#pragma once
// The controller's real decisions (ClusterState) on a virtual machine: its process may die, stand
// still, or come back with an older copy of its store.
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster/control_rules.h"
#include "mp_controller/cluster_state.h"
#include "proto/controller.pb.h"
#include "tests/simulation/memory_store.h"
#include "tests/simulation/network.h"

namespace ems::simulation {

// Threading: one thread.
class SimController final {
 public:
  struct Hooks {
    // A view is published: it goes to all who watch.
    std::function<void(const ViewCache::View&)> on_view;
    std::function<void(std::string)> on_violation;
  };
  SimController(World* world, double drift, const ControlRules& rules, Hooks hooks);
  ~SimController();

  void Start();
  void Crash();
  void Pause(Duration time);
  // Writes to its store fail for so long.
  void FailStore(Duration time) { store_fails_until_ = world_.now() + time; }
  void Backup() { store_.Backup(); }
  // Only while it is down.
  void RestoreBackup();
  // An operator says that views may start again.
  void AllowNewHistory() { new_history_allowed_ = true; }
  // A server of this id stopped in order, or is there again.
  void NoteLeft(NodeId id);
  void NoteRegistered(NodeId id) { left_.erase(id); }
  bool restored() const { return restored_; }
  bool running() const { return life_ != nullptr; }

  // Runs `call` with the state when the process gets to it; never, if it dies before.
  void Serve(std::function<void(controller::ClusterState*)> call);
  ViewCache::View view() const;

 private:
  struct Life;
  bool StoreFails() const { return world_.now() < store_fails_until_; }
  void Tick(uint64_t life);
  void Spread();
  void OnPublished();
  std::set<NodeId> NodesThatLeft();
  void CheckLeft();

  World& world_;
  DriftingClock clock_;
  const ControlRules rules_;
  const Hooks hooks_;
  MemoryStore store_;
  std::unique_ptr<Life> life_;
  uint64_t lives_ = 0;
  TimePoint paused_until_{}, store_fails_until_{};
  std::vector<std::function<void(controller::ClusterState*)>> waiting_;
  ViewVersion highest_;    // that was ever published
  uint64_t history_ = 0;   // of the views so far
  bool restored_ = false;  // an older copy was put back: numbers may come twice
  bool new_history_allowed_ = false;
  std::set<NodeId> left_;  // in order, and not there again
};

}  // namespace ems::simulation
