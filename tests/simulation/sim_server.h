#pragma once
// A server's real decisions (ServerControl, LeaseKeeper, Ownership) on a virtual machine, with a
// few keys: its process may die, stand still, lose its disk, or wait for it.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/control_rules.h"
#include "mp_server/lease/server_control.h"
#include "mp_server/store/moved_slots.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_controller.h"

namespace ems::simulation {

// Keys lie in slots of their own.
constexpr int kKeys = 6;
SlotId SlotOf(int key);

struct Answer {
  enum class Kind { kDone, kValue, kWrongOwner, kRefused } kind = Kind::kRefused;
  uint64_t value = 0;
  ViewVersion view;
};

// Threading: one thread.
class SimServer final : public server::Holdings, public server::KeptNumbers {
 public:
  struct Options {
    Machine machine = 1;
    int name = 1;  // two machines may have a server of one name
    double drift = 0;
    bool has_ssd = false;
    ClusterId cluster = kNoCluster;  // its disk comes from there, with all keys and a view
    ControlRules rules = {};
    // Values that slots had before are asked for where they were, and some are evicted.
    bool forwards = false;
    // And are brought without being asked for, after which nobody is asked.
    bool migrates = false;
  };
  SimServer(World* world, Network* network, SimController* controller, const Options& options,
            const std::vector<std::unique_ptr<SimServer>>* peers);
  ~SimServer() override;

  void Start();
  void Crash(bool lose_disk);
  // Its machine does: the next process runs under another kernel.
  void CrashMachine();
  // Says so, and stops.
  void Stop();
  // Says with each heartbeat that it is to stop.
  void AnnounceStop();
  // Becomes a copy of the machine of `original`, folder and address included, as it is now.
  void Copy(const SimServer& original);
  void Pause(Duration time);
  // Writes that are made in this time end after it.
  void HangDisk(Duration time) { disk_hangs_until_ = world_.now() + time; }
  // Those that begin in this time fail.
  void FailDisk(Duration time) { disk_fails_until_ = world_.now() + time; }

  bool running() const { return life_ != nullptr; }
  bool paused() const { return world_.now() < paused_until_; }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  Machine machine() const { return options_.machine; }
  // It has another disk and another kernel than in the beginning: nothing shows that a process of
  // then is dead.
  bool is_new() const { return boots_ > 0 && lost_disk_; }
  // Other servers in the view that it has; 0, too, while it has none, or the next one comes.
  size_t peers() const;
  // It has been told that another process has its name.
  bool replaced() const;
  // A life of it ended that had acted upon a view whose number its disk does not have.
  bool forgot_a_view() const { return forgot_a_view_; }
  // It has installed two views of one number.
  bool mistook_a_view() const { return mistook_a_view_; }
  // Keys that its disk has a value for.
  size_t kept_keys() const { return disk_.values.size(); }
  const server::Ownership* ownership() const;
  // Whether a Put would be taken at this moment by whoever asks with the view of the server.
  bool TakesPuts(int key) const;

  // From the network.
  void TakeView(ViewCache::View view);
  // Its own goes to who has an older one.
  void TellView(ViewVersion than, SimServer* to);
  void TakePeers(uint64_t boot_id, ViewVersion view,
                 std::function<void(server::PeerAnswer)> answer);
  void TakePut(int key, uint64_t value, ViewVersion client, std::function<void(Answer)> answer);
  void TakeGet(int key, ViewVersion client, std::function<void(Answer)> answer);

  struct Kept {
    server::Era before{};  // whom to ask instead: `node`; none: history 0
    NodeId node{};
    uint64_t value = 0;
    bool said = false;  // false: it has not answered
  };
  void TakeKept(int key, server::Era era, ViewVersion client, std::function<void(Kept)> answer);

  // Holdings
  void SetNamespaces(const NamespaceTable&, double) override {}
  void GainSlots(const DhtView& view, const ssd::SlotGrant& grant,
                 const std::bitset<kSlotCount>& fresh) override;
  void SetOwnedSlots(const ssd::SlotGrant& grant) override;
  void KeepBlocks(const std::bitset<kSlotCount>&) override {}
  void StopReaders() override {}  // it has none
  // KeptNumbers
  server::ViewIdentity highest_view() const override { return disk_.highest; }
  uint64_t lineage() const override { return disk_.lineage; }
  ClusterId cluster() const override { return disk_.cluster; }

 private:
  struct Disk {
    ClusterId cluster;
    server::ViewIdentity highest;
    uint64_t folder = 0, lineage = 0;
    ssd::GrantRecord granted;
    std::map<int, uint64_t> values;
  };
  struct Life;
  // Runs when the process gets to it; never, if it dies before.
  void Run(std::function<void()> step);
  void Resume();
  void SayLeave(bool keeps_slots);
  // Whether a Put from a client with that view is taken now; kDone: it is.
  Answer CheckPut(int key, ViewVersion client) const;
  void EndPut(int key, uint64_t value, ViewVersion client, uint64_t losses,
              const std::function<void(Answer)>& answer);
  // What `origin` kept of the key becomes visible here, if it may; then `done`: whether all that
  // had to be asked have answered.
  void Forward(int key, server::Origin origin, uint64_t since, uint64_t losses, int hops,
               std::function<void(bool)> done);
  // The same for the slot of the key, after a while, until it is done with.
  void MigrateAfter(Duration time, int key);
  void Migrate(int key);
  bool Finished(int key) const;
  void Land(int key, const Kept& kept, uint64_t since, uint64_t losses);
  Kept KeptOf(int key, server::Era era);
  void Beat();
  void NextBeat(std::optional<Duration> pause);
  void Step();
  void Write(const server::ViewIdentity& view);
  void Keep(const server::ViewIdentity& view);
  void AskPeers();
  void AskForViews(const server::PeerAnswers& answers, const DhtView& view);
  void AskPeer(const NodeInfo& node, ViewVersion view,
               const std::shared_ptr<server::PeerAnswers>& answers);
  void StepAfter(Duration pause);
  template <typename Reply, typename Call, typename Take>
  void CallController(Duration patience, Call call, Take take);

  World& world_;
  Network& network_;
  SimController& controller_;
  Options options_;
  const std::vector<std::unique_ptr<SimServer>>& peers_;
  const std::string name_;
  std::string address_;
  DriftingClock clock_;
  Disk disk_;
  std::unique_ptr<Life> life_;
  uint64_t lives_ = 0;
  int boots_ = 0;  // of its machine
  TimePoint paused_until_{}, disk_hangs_until_{}, disk_fails_until_{};
  bool forgot_a_view_ = false, mistook_a_view_ = false, lost_disk_ = false;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace ems::simulation
