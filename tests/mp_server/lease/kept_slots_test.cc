// What must hold, whatever happens in whatever order: what a server still has of a slot that it may
// answer for is the newest that anybody took for it. Servers are killed, come back with their
// storage, without it, or on another machine that they have been on before; views are missed; what
// a server noted of the last view is lost with it; the controller is restarted. The rules under
// test are the real ones; storage and network are a model.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "mp_controller/publish/next_history.h"
#include "mp_controller/publish/view_builder.h"
#include "mp_server/lease/view_grant.h"
#include "proto/controller.pb.h"

namespace ems::server {
namespace {

constexpr uint32_t kServers = 4;
constexpr uint64_t kHistory = 5;
constexpr int kSteps = 400;
constexpr uint16_t kLooked = 64;  // every 64th slot has a value in the model

// What one machine has on its disk.
struct Disk {
  std::map<uint16_t, uint64_t> values;  // slot → which Put
  ssd::GrantRecord record;
  uint64_t lineage = 0;  // of the folder
};

// One server's name: at most one life at a time, on one of two machines.
struct Name {
  Disk disks[2];
  int machine = 0;
  bool alive = false;
  bool with_tier = false;
  uint64_t boot = 0;
  uint64_t lineage = 0;  // of this life
  ViewVersion installed;
  ssd::SlotGrant granted;
  std::map<uint16_t, uint64_t> values;  // DRAM or SSD: what it would answer
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) { Publish(); }

  void Step() {
    const uint32_t who = Roll(kServers);
    switch (Roll(10)) {
      case 0:
        return Kill(who);
      case 1:
        return Start(who);
      case 2:
        return Publish();
      case 3:
        return RestartController();
      case 4:
      case 5:
      case 6:
        return Install(who);
      default:
        return Write();
    }
  }
  void Check() {
    for (const Name& name : names_) {
      if (!name.alive) continue;
      for (const auto& [slot, value] : name.values) {
        // Who answers by the newest view; an older one is corrected by its clients.
        if (name.installed != view_->version() || !name.granted.owned[slot]) continue;
        ASSERT_EQ(value, newest_[slot]) << "slot " << slot << ", view " << view_->version().epoch();
        ++answered_;
      }
    }
  }
  uint64_t answered() const { return answered_; }
  uint64_t kept() const { return kept_; }

 private:
  uint32_t Roll(uint32_t sides) { return static_cast<uint32_t>(random_() % sides); }

  void Kill(uint32_t who) {
    Name& name = names_[who];
    if (!name.alive) return;
    name.alive = false;
    if (name.with_tier) {
      Disk& disk = name.disks[name.machine];
      disk.values = name.values;
      // The note of the last view may not have come to the disk; what was dropped with it is then
      // still there, unless it was written anew.
      if (Roll(3) == 0) {
        for (const auto& [slot, value] : dropped_[who]) disk.values.emplace(slot, value);
        disk.record = before_[who];
      }
    }
    dropped_[who].clear();
  }

  void Start(uint32_t who) {
    Name& name = names_[who];
    if (name.alive) return;
    name.alive = true;
    name.boot = ++boots_;
    if (Roll(12) == 0) name.machine = 1 - name.machine;
    name.with_tier = Roll(12) != 0;
    Disk& disk = name.disks[name.machine];
    // As Server::SettleLineage does.
    if (!name.with_tier) {
      disk.lineage = 0;
    } else if (disk.lineage == 0 || disk.record.lineage != disk.lineage) {
      disk.lineage = ++lineages_;
      if (disk.record.lineage != 0) disk.record = {};
    }
    name.lineage = disk.lineage;
    name.installed = {};
    name.granted = {};
    name.values = name.with_tier ? disk.values : std::map<uint16_t, uint64_t>();
    before_[who] = disk.record;
  }

  // Some servers are in the next view, as they are now; one that is not may be shown as it was.
  void Publish() {
    std::vector<NodeInfo> nodes;
    std::vector<controller::NodeWeight> weights;
    const bool frozen = Roll(2) == 0;
    for (uint32_t i = 0; i < kServers; ++i) {
      NodeInfo node;
      node.id = NodeId(i + 1);
      node.boot_id = names_[i].boot;
      node.lineage = names_[i].lineage;
      const NodeInfo* shown = view_ == nullptr ? nullptr : view_->Find(node.id);
      const bool now = names_[i].alive && Roll(4) != 0;
      if (frozen && shown == nullptr) continue;
      if (!now && (shown == nullptr || (!frozen && Roll(2) == 0))) continue;
      nodes.push_back(now ? node : *shown);
      weights.push_back({node.id, 1});
    }
    SlotTable slots = view_ == nullptr ? SlotTable() : view_->slots();
    if (!frozen) slots = controller::BuildSlots(slots, weights);
    Take(1, nodes, slots, frozen);
  }
  // Through the bytes of the store.
  void RestartController() {
    v1::View stored;
    view_->ToProto(&stored);
    const auto loaded = DhtView::FromProto(stored);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    view_ = *loaded;
    Take(2, view_->nodes(), view_->slots(), view_->frozen());
  }
  void Take(uint64_t terms, const std::vector<NodeInfo>& nodes, const SlotTable& slots,
            bool frozen) {
    const uint64_t epoch = ++epoch_;
    if (terms > 1) ++term_;
    SlotHistory history = controller::NextHistory(view_.get(), nodes, slots, epoch, kHistory);
    view_ = *DhtView::Make(ViewVersion(term_, epoch), nodes, slots, frozen, std::move(history));
  }

  // As ViewInstaller does.
  void Install(uint32_t who) {
    Name& name = names_[who];
    const NodeId self(who + 1);
    if (!name.alive || view_->version() <= name.installed ||
        ShowsAnother(*view_, self, name.boot, name.lineage)) {
      return;
    }
    const ssd::GrantRecord before =
        name.installed == ViewVersion() ? before_[who] : name.granted.Record(name.lineage);
    name.granted = GrantOf(*view_, self, name.lineage);
    const std::bitset<kSlotCount> kept = name.granted.Kept(before);
    dropped_[who].clear();
    std::erase_if(name.values, [&](const auto& one) {
      if (kept[one.first]) return false;
      dropped_[who].insert(one);
      return true;
    });
    if (name.installed == ViewVersion()) kept_ += name.values.size();
    name.installed = view_->version();
    before_[who] = before;
    if (name.with_tier) name.disks[name.machine].record = name.granted.Record(name.lineage);
  }

  // A slot's owner takes a Put, or a Remove, if the view shows that very life: it has the lease.
  void Write() {
    const uint16_t slot = static_cast<uint16_t>(Roll(kSlotCount / kLooked) * kLooked);
    const NodeInfo* owner = view_->Owner(SlotId(slot));
    if (owner == nullptr) return;
    Name& name = names_[owner->id.value() - 1];
    if (!name.alive || name.boot != owner->boot_id || name.installed == ViewVersion() ||
        !name.granted.owned[slot]) {
      return;
    }
    newest_[slot] = ++puts_;
    name.values.erase(slot);
    dropped_[owner->id.value() - 1].erase(slot);
    if (Roll(4) != 0) name.values[slot] = newest_[slot];
  }

  std::mt19937_64 random_;
  std::array<Name, kServers> names_;
  // Of each server: what it noted before the view it has installed, and what it dropped with that.
  std::array<ssd::GrantRecord, kServers> before_;
  std::array<std::map<uint16_t, uint64_t>, kServers> dropped_;
  std::map<uint16_t, uint64_t> newest_;
  std::shared_ptr<const DhtView> view_;
  uint64_t term_ = 1, epoch_ = 0, boots_ = 0, lineages_ = 0, puts_ = 0;
  uint64_t answered_ = 0, kept_ = 0;
};

TEST(KeptSlotsTest, NoServerEverAnswersWithAnOldValue) {
  uint64_t answered = 0, kept = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    for (int step = 0; step < kSteps; ++step) {
      world.Step();
      ASSERT_NO_FATAL_FAILURE(world.Check()) << "step " << step;
    }
    answered += world.answered();
    kept += world.kept();
  }
  EXPECT_GT(answered, 1'500u);
  EXPECT_GT(kept, 60u) << "restarts keep something, or nothing is shown here";
}

}  // namespace
}  // namespace ems::server
