// What must hold: a view is active only when nobody who lost slots by it can take a Put for them;
// and then it is.
#include "mp_controller/activation.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ems::controller {
namespace {

using std::chrono::seconds;
using ::testing::Test;

constexpr Duration kLease = seconds(5);

class ActivationTest : public Test {
 protected:
  // All slots are shared equally by the processes, in turn.
  void Publish(uint64_t epoch, const std::vector<Process>& processes) {
    std::vector<NodeInfo> nodes;
    for (const Process& process : processes) {
      NodeInfo& node = nodes.emplace_back();
      node.id = process.id;
      node.boot_id = process.boot_id;
    }
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i)
      slots.set_owner(SlotId(i), processes[i % processes.size()].id);
    activation_.OnPublished(**DhtView::Make({1, epoch}, nodes, slots, false), now_);
  }
  void Install(Process process, uint64_t epoch) {
    installed_[process] = {1, epoch};
    activation_.OnInstalled(process, {1, epoch}, now_);
  }
  bool Renews(Process process) const {
    const auto it = installed_.find(process);
    return activation_.MayRenew(process, it == installed_.end() ? ViewVersion() : it->second);
  }
  void Renew(Process process) { activation_.OnRenewed(process, now_ + kLease); }
  uint64_t Active() { return activation_.Active(now_).epoch(); }

  const Process a_{NodeId(1), 11}, b_{NodeId(2), 12}, c_{NodeId(3), 13}, a2_{NodeId(1), 21};
  TimePoint now_{seconds(100)};
  std::map<Process, ViewVersion> installed_;
  ControlRules rules_;
  Activation activation_{rules_};
};

TEST_F(ActivationTest, WhereNobodyLosesAViewIsActiveAtOnce) {
  EXPECT_EQ(Active(), 0U);
  Publish(1, {a_});
  EXPECT_EQ(Active(), 1U);
  Publish(2, {a_});
  EXPECT_EQ(Active(), 2U);
}

TEST_F(ActivationTest, AJoinIsActiveWhenTheOldOwnerHasInstalledIt) {
  Publish(1, {a_});
  Renew(a_);
  Publish(2, {a_, b_});
  EXPECT_EQ(Active(), 1U);
  Install(b_, 2);
  EXPECT_EQ(Active(), 1U) << "the new owner's word says nothing";
  EXPECT_EQ(activation_.WaitsFor(now_), std::vector{a_.id});
  Install(a_, 2);
  EXPECT_EQ(Active(), 2U);
  EXPECT_TRUE(activation_.WaitsFor(now_).empty());
}

// What a server keeps by a view of another history may have been replaced by others.
TEST_F(ActivationTest, NobodyIsRenewedBeforeItHasInstalledANewHistory) {
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    Activation activation{rules_};
    const auto publish = [&](uint64_t epoch, uint64_t history) {
      NodeInfo node;
      node.id = a_.id;
      node.boot_id = a_.boot_id;
      SlotTable slots;
      for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), a_.id);
      const auto view = *DhtView::Make(
          {1, epoch}, {node}, slots, false,
          *SlotHistory::Make(history, std::vector<uint64_t>(kSlotCount, epoch), epoch));
      restarted ? activation.Restore(*view, {}, now_) : activation.OnPublished(*view, now_);
    };
    publish(1, 70);
    publish(2, 70);
    EXPECT_TRUE(activation.MayRenew(a_, {1, 1}));
    publish(3, 71);
    EXPECT_FALSE(activation.MayRenew(a_, {1, 2}));
    EXPECT_TRUE(activation.MayRenew(a_, {1, 3}));
    publish(4, 71);
    EXPECT_TRUE(activation.MayRenew(a_, {1, 3})) << "it has lost nothing since";
  }
}

TEST_F(ActivationTest, AnOldOwnerIsNotRenewedBeforeItHasInstalledTheLoss) {
  Publish(1, {a_});
  Install(a_, 1);
  Install(b_, 2);
  Renew(a_);
  Publish(2, {a_, b_});
  EXPECT_FALSE(Renews(a_));
  EXPECT_TRUE(Renews(b_)) << "it loses nothing";
  Install(a_, 2);
  EXPECT_TRUE(Renews(a_));
}

// The older view shows the process before it, which may still take Puts by it.
TEST_F(ActivationTest, AProcessThatTookANameGetsNoLeaseForViewsThatDoNotShowIt) {
  Publish(1, {a_});
  Install(a_, 1);
  Renew(a_);
  Install(a2_, 1);
  Publish(2, {a2_});
  EXPECT_FALSE(Renews(a2_));
  Install(a2_, 2);
  EXPECT_TRUE(Renews(a2_));
}

TEST_F(ActivationTest, ADeadOwnersLeaseEndsAndItsPeersHaveGoneOn) {
  Publish(1, {a_, b_, c_});
  for (const Process& process : {a_, b_, c_}) Renew(process);
  now_ += seconds(3);
  Renew(b_);
  Renew(c_);
  Publish(2, {b_, c_});
  Install(b_, 2);
  Install(c_, 2);
  now_ += seconds(2) - Duration(1);
  EXPECT_EQ(Active(), 1U) << "its lease goes on";
  now_ += Duration(1);
  EXPECT_EQ(Active(), 2U);
}

// Cut off from the controller it may go on with a majority of the view that it has.
TEST_F(ActivationTest, AMajorityThatMayHaveTheOldViewHoldsTheNewOneUp) {
  Publish(1, {a_, b_, c_});
  for (const Process& process : {a_, b_, c_}) Renew(process);
  Publish(2, {b_, c_});
  now_ += kLease;
  Renew(b_);
  Renew(c_);
  Install(b_, 2);
  EXPECT_EQ(Active(), 1U) << "a and c may tell each other to go on";
  Install(c_, 2);
  EXPECT_EQ(Active(), 1U) << "what c said a moment ago is still good";
  now_ += kQuorumOver;
  EXPECT_EQ(Active(), 2U);
}

// Alone it is a majority of the view that it has.
TEST_F(ActivationTest, WhoKnowsThatItIsRefusedProlongsNothing) {
  Publish(1, {a_});
  Renew(a_);
  Publish(2, {b_});
  Install(b_, 2);
  now_ += kLease + kQuorumOver;
  EXPECT_EQ(Active(), 1U) << "it may not have heard";
  activation_.OnRefused(a_, now_);
  now_ += kQuorumOver;
  EXPECT_EQ(Active(), 2U);
}

// One that is parked may register and end without end, each time as another process.
TEST_F(ActivationTest, ProcessesThatNoViewNamesAreNotRemembered) {
  activation_.OnRefused(a_, now_);
  activation_.OnGone(b_, now_);
  Publish(1, {a_, b_});
  Publish(2, {c_});
  now_ += kLease + kQuorumOver;
  EXPECT_EQ(Active(), 1U) << "a and b may tell each other to go on";
  activation_.OnRefused(a_, now_);
  now_ += kQuorumOver;
  EXPECT_EQ(Active(), 2U);
}

TEST_F(ActivationTest, WhoIsGivenALeaseAgainProlongsAgain) {
  Publish(1, {a_});
  Renew(a_);
  activation_.OnRefused(a_, now_);
  Renew(a_);
  Publish(2, {b_});
  Install(b_, 2);
  now_ += kLease + kQuorumOver;
  EXPECT_EQ(Active(), 1U) << "it may tell others that it has the view";
}

// The view before was closed because b and c were silent: with b's word a and b were a majority
// again.
TEST_F(ActivationTest, AClosedViewStaysClosed) {
  Publish(1, {a_, b_, c_});
  for (const Process& process : {a_, b_, c_}) {
    Renew(process);
    Install(process, 1);
  }
  activation_.OnRefused(b_, now_);
  activation_.OnRefused(c_, now_);
  EXPECT_TRUE(Renews(b_)) << "the newest view is never closed";
  Publish(2, {a2_, b_, c_});
  EXPECT_FALSE(Renews(b_));
  now_ += kLease;
  EXPECT_EQ(Active(), 2U) << "a cannot prolong its lease";
  Install(b_, 2);
  EXPECT_TRUE(Renews(b_));
}

// A view that is not closed waits for those who count again.
TEST_F(ActivationTest, WhoWasSilentIsRenewedAtAViewThatIsNotClosed) {
  Publish(1, {a_, b_, c_});
  for (const Process& process : {a_, b_, c_}) {
    Renew(process);
    Install(process, 1);
  }
  activation_.OnRefused(b_, now_);
  Publish(2, {a2_, b_, c_});
  EXPECT_TRUE(Renews(b_));
}

// Who was declared dead and is not: what it had is another's.
TEST_F(ActivationTest, WhoseLossWasAcceptedComesBackWithANewerView) {
  Publish(1, {a_, b_, c_});
  for (const Process& process : {a_, b_, c_}) Install(process, 1);
  Publish(2, {a2_, b_, c_});
  activation_.AcceptLoss({a2_, c_}, now_);
  EXPECT_FALSE(Renews(b_));
  Install(b_, 2);
  EXPECT_TRUE(Renews(b_));
}

// An operator sees whom the next view waits for; only a node that no view waits for is forgotten.
TEST_F(ActivationTest, EachViewThatIsNotActiveWaitsForItsOwn) {
  Publish(1, {a_, c_});
  Renew(a_);
  Renew(c_);
  Publish(2, {b_, c_});
  Publish(3, {a_, b_});
  EXPECT_EQ(Active(), 1U);
  EXPECT_EQ(activation_.WaitsFor(now_), std::vector{a_.id});
  EXPECT_TRUE(activation_.WaitsFor(a_.id, now_));
  EXPECT_TRUE(activation_.WaitsFor(c_.id, now_)) << "the third view waits for it";
  Install(c_, 3);
  EXPECT_FALSE(activation_.WaitsFor(c_.id, now_));
}

TEST_F(ActivationTest, WhoStopsInOrderIsWaitedForNoLonger) {
  Publish(1, {a_, b_});
  Renew(a_);
  Renew(b_);
  Publish(2, {b_});
  EXPECT_EQ(Active(), 1U);
  activation_.OnGone(a_, now_);
  EXPECT_EQ(Active(), 2U);
}

TEST_F(ActivationTest, AnotherProcessOfTheNameWaitsForTheLeaseOfTheFirst) {
  Publish(1, {a_, b_});
  Renew(a_);
  Publish(2, {a2_, b_});
  EXPECT_EQ(Active(), 1U);
  Install(a2_, 2);
  Install(b_, 2);
  EXPECT_EQ(Active(), 1U);
  now_ += kLease;
  EXPECT_EQ(Active(), 2U);
}

TEST_F(ActivationTest, AProcessThatIsKnownToBeDeadHoldsNothingUp) {
  Publish(1, {a_, b_});
  Renew(a_);
  activation_.OnGone(a_, now_);
  Publish(2, {a2_, b_});
  EXPECT_EQ(Active(), 2U);
}

// Long out of touch: what it lost meanwhile is not remembered one by one.
TEST_F(ActivationTest, WhoIsBehindAllViewsThatCountGetsNoLease) {
  for (uint64_t epoch = 1; epoch <= 9; ++epoch) {
    Publish(epoch, epoch < 5 ? std::vector{a_, b_} : std::vector{b_});
    Install(b_, epoch);
    if (epoch == 1) Install(a_, epoch);
    now_ += seconds(6);
    EXPECT_EQ(Active(), epoch);
  }
  EXPECT_FALSE(Renews(a_));
  Install(a_, 9);
  EXPECT_TRUE(Renews(a_));
}

// It holds the lock of the folder, or the socket, that the one before had. Two containers may each
// have a machine's name and an address.
TEST_F(ActivationTest, WhatOnlyOneProcessCanHaveShowsThatTheOneBeforeIsDead) {
  struct Case {
    uint64_t folder_before, folder, listener_before, listener;
    const char* host;
    bool is_dead;
  };
  for (const Case& one :
       {Case{5, 5, 7, 8, "m", true}, Case{5, 6, 7, 7, "m", true}, Case{5, 6, 7, 8, "m", false},
        Case{0, 0, 0, 0, "m", false}, Case{5, 5, 7, 8, "booted", false}}) {
    SCOPED_TRACE(::testing::Message() << one.folder << " " << one.listener);
    Activation activation(rules_);
    NodeInfo before;
    before.id = a_.id;
    before.boot_id = a_.boot_id;
    before.host_id = "m";
    before.data_address = "h:1";
    before.folder_id = one.folder_before;
    before.listener_id = one.listener_before;
    NodeInfo after = before;
    after.boot_id = a2_.boot_id;
    after.host_id = one.host;
    after.folder_id = one.folder;
    after.listener_id = one.listener;
    NodeInfo other = after;
    other.folder_id = other.listener_id = 9;
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), a_.id);
    activation.OnPublished(**DhtView::Make({1, 1}, {before}, slots, false), now_);
    activation.OnRenewed(a_, now_ + kLease);
    activation.OnPublished(**DhtView::Make({1, 2}, {other}, slots, false), now_);
    EXPECT_EQ(activation.Active(now_).epoch(), 1U);
    activation.OnThere(after, now_);
    EXPECT_EQ(activation.Active(now_).epoch(), one.is_dead ? 2U : 1U);
  }
}

// Servers whose machines have a folder and an address that stay, and another kernel with each boot.
class BootTest : public Test {
 protected:
  // Servers 1 .. `count`, each with an equal share of the slots, in its life of this number; each
  // life is one of another kernel.
  std::shared_ptr<const DhtView> View(uint64_t epoch, const std::vector<int>& lives) {
    std::vector<NodeInfo> nodes;
    SlotTable slots;
    for (size_t i = 0; i < lives.size(); ++i) nodes.push_back(Node(i, lives[i]));
    for (uint16_t slot = 0; slot < kSlotCount; ++slot)
      slots.set_owner(SlotId(slot), nodes[slot % nodes.size()].id);
    return *DhtView::Make({1, epoch}, nodes, slots, false);
  }
  static NodeInfo Node(size_t i, int life) {
    NodeInfo node;
    node.id = NodeId(static_cast<uint32_t>(i + 1));
    node.boot_id = 10 * (i + 1) + static_cast<uint64_t>(life);
    node.folder_id = 500 + i;
    node.host_id = fmt::format("m{}/{}", i, life);
    node.data_address = fmt::format("m{}:1", i);
    node.listener_id = node.boot_id;
    return node;
  }
  static Process Of(const NodeInfo& node) { return {node.id, node.boot_id}; }
  void Publish(uint64_t epoch, const std::vector<int>& lives) {
    const auto view = View(epoch, lives);
    activation_->OnPublished(*view, now_);
    for (const NodeInfo& node : view->nodes()) activation_->OnRenewed(Of(node), now_ + kLease);
  }
  uint64_t Active() { return activation_->Active(now_).epoch(); }

  TimePoint now_{seconds(100)};
  std::optional<Activation> activation_{std::in_place, ControlRules{}};
};

TEST_F(BootTest, AfterAPowerCutThatAllCameBackFromPutsGoOnWhenTheLeasesHaveEnded) {
  for (const size_t servers : {1U, 2U, 3U, 5U}) {
    SCOPED_TRACE(servers);
    activation_.emplace(ControlRules{});
    Publish(1, std::vector<int>(servers, 1));
    now_ += seconds(4);
    Publish(2, std::vector<int>(servers, 2));
    EXPECT_EQ(Active(), 1U) << "a copy of a machine shows the same, and the first one may live";
    now_ += seconds(1);
    EXPECT_EQ(Active(), 1U) << "what it said a moment ago is still good";
    now_ += kQuorumOver;
    EXPECT_EQ(Active(), 2U);
  }
}

// A copy that is started elsewhere while a part of the cluster is cut off with the original in it.
TEST_F(BootTest, OneThatBootedSaysNothingOfOthersThatAreSilent) {
  Publish(1, {1, 1, 1});
  activation_->OnPublished(*View(2, {2, 1}), now_);
  activation_->OnInstalled(Of(Node(1, 1)), {1, 2}, now_);
  now_ += kLease + kQuorumOver + seconds(60);
  EXPECT_EQ(Active(), 1U) << "the first and the third may prolong each other's leases";
  activation_->OnThere(Node(2, 2), now_);
  EXPECT_EQ(Active(), 1U);
  now_ += kQuorumOver;
  EXPECT_EQ(Active(), 2U);
}

TEST_F(BootTest, AQuarterMayStayAway) {
  for (const int away : {1, 2}) {
    SCOPED_TRACE(away);
    activation_.emplace(ControlRules{});
    Publish(1, std::vector<int>(4, 1));
    activation_->OnPublished(*View(2, std::vector<int>(static_cast<size_t>(4 - away), 2)), now_);
    now_ += kLease + kQuorumOver;
    EXPECT_EQ(Active(), away == 1 ? 2U : 1U);
  }
}

TEST_F(BootTest, OnlyTheSameFolderAtTheSameAddressTellsOfABoot) {
  for (const bool address : {false, true}) {
    activation_.emplace(ControlRules{});
    Publish(1, {1});
    NodeInfo after = Node(0, 2);
    if (address) {
      after.data_address = "another:1";
    } else {
      after.folder_id = 9;
    }
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), after.id);
    activation_->OnPublished(**DhtView::Make({1, 2}, {after}, slots, false), now_);
    now_ += kLease + kQuorumOver;
    EXPECT_EQ(Active(), 1U);
  }
}

// It lives after all, and its word would open the view again.
TEST_F(BootTest, WhoseMachineBootedGetsNoLeaseByAViewThatIsClosed) {
  Publish(1, {1, 1, 1});
  for (size_t i = 0; i < 3; ++i) activation_->OnInstalled(Of(Node(i, 1)), {1, 1}, now_);
  activation_->OnPublished(*View(2, {2, 2, 1}), now_);
  EXPECT_TRUE(activation_->MayRenew(Of(Node(2, 1)), {1, 1})) << "it lost nothing";
  activation_->OnThere(Node(2, 2), now_);
  EXPECT_FALSE(activation_->MayRenew(Of(Node(2, 1)), {1, 1}));
  EXPECT_TRUE(activation_->MayRenew(Of(Node(2, 1)), {1, 2}));
}

TEST_F(BootTest, AfterARestartOfTheControllerStoredViewsTellOfBoots) {
  activation_->Restore(*View(1, {1, 1}), {1, 1}, now_ + kLease);
  activation_->Restore(*View(2, {2, 2}), {1, 1}, now_ + kLease);
  EXPECT_EQ(Active(), 1U);
  now_ += kLease;
  EXPECT_EQ(Active(), 2U);
}

TEST_F(ActivationTest, ViewsBecomeActiveInOrder) {
  Publish(1, {a_});
  Renew(a_);
  Publish(2, {a_, b_});
  Renew(b_);
  Publish(3, {a_, b_, c_});
  Install(b_, 3);
  EXPECT_EQ(Active(), 1U);
  Install(a_, 2);
  EXPECT_EQ(Active(), 2U);
  Install(a_, 3);
  EXPECT_EQ(Active(), 3U);
}

// The life before may have given leases that this one does not know of.
TEST_F(ActivationTest, AfterARestartStoredViewsCountAsTheyDidBefore) {
  Publish(1, {a_});
  Publish(2, {a_, b_});
  Activation after(rules_);
  std::vector<NodeInfo> nodes(2);
  nodes[0].id = a_.id, nodes[0].boot_id = a_.boot_id;
  nodes[1].id = b_.id, nodes[1].boot_id = b_.boot_id;
  SlotTable one, two;
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    one.set_owner(SlotId(i), a_.id);
    two.set_owner(SlotId(i), i % 2 == 0 ? a_.id : b_.id);
  }
  after.Restore(**DhtView::Make({1, 1}, {nodes[0]}, one, false), {1, 1}, now_ + kLease);
  after.Restore(**DhtView::Make({1, 2}, nodes, two, false), {1, 1}, now_ + kLease);
  EXPECT_EQ(after.Active(now_).epoch(), 1U);
  after.OnInstalled(a_, {1, 2}, now_);
  EXPECT_EQ(after.Active(now_).epoch(), 2U);
}

TEST_F(ActivationTest, AnAcceptedLossIsDeath) {
  Publish(1, {a_, b_, c_});
  for (const Process& process : {a_, b_, c_}) Renew(process);
  Publish(2, {c_});
  now_ += kLease;
  Install(c_, 2);
  EXPECT_EQ(Active(), 1U) << "a and b are a majority";
  activation_.AcceptLoss({c_}, now_);
  EXPECT_EQ(Active(), 2U);
}

TEST_F(ActivationTest, ViewsThatNobodyCanActUponAreForgotten) {
  for (uint64_t epoch = 1; epoch <= 40; ++epoch) {
    ASSERT_TRUE(activation_.HasRoom()) << epoch;
    Publish(epoch, epoch % 2 == 0 ? std::vector{a_, b_} : std::vector{a_});
    Install(a_, epoch);
    Install(b_, epoch);
    now_ += kQuorumOver;
    EXPECT_EQ(Active(), epoch);
  }
  const ViewWindow window = activation_.Window();
  EXPECT_EQ(window.open, std::vector{ViewVersion(1, 40)});
  EXPECT_EQ(window.active, ViewVersion(1, 40));
}

TEST_F(ActivationTest, TooManyOpenViewsHoldUpTheNext) {
  for (uint64_t epoch = 1; activation_.HasRoom(); ++epoch) {
    ASSERT_LE(epoch, Activation::kOpenViewsMax);
    Publish(epoch, {a_, b_});
  }
  Install(a_, Activation::kOpenViewsMax);
  now_ += kQuorumOver;
  (void)Active();
  EXPECT_TRUE(activation_.HasRoom());
}

}  // namespace
}  // namespace ems::controller
