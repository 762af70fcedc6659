// What must hold: each step of a new view comes before the one that relies on it, and nothing of a
// view that is refused is taken over.
#include "mp_server/lease/view_installer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "mp_server/lease/data_dir.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr NodeId kSelf(4);
constexpr NodeId kOther(5);
constexpr uint64_t kBoot = 8;

// Writes down what it is told, and which view requests were checked against meanwhile.
class LoggedHoldings final : public Holdings {
 public:
  explicit LoggedHoldings(const Ownership* ownership) : ownership_(*ownership) {}
  void SetNamespaces(const NamespaceTable& table, double share) override {
    Add("namespaces {} share {}", table.version, share);
  }
  void SetOwnedSlots(const ssd::SlotGrant& grant) override {
    Add("slots {} of view {}", grant.owned.count(), grant.view.epoch());
    reported_.push_back(ownership_.installed().version);
    told_.push_back(ownership_.told_version());
  }
  void GainSlots(const DhtView&, const ssd::SlotGrant&,
                 const std::bitset<kSlotCount>& fresh) override {
    if (fresh.any()) Add("open {}", fresh.count());
  }
  void KeepBlocks(const std::bitset<kSlotCount>& slots) override {
    if (slots.any()) Add("keep {}", slots.count());
  }
  void StopReaders() override { Add("stop"); }
  void Expect(const ssd::SlotGrant& next) override {
    expected_ = next.view;
    expected_in_ = ownership_.version();
  }
  // The last grant that was announced, and the view that was installed by then.
  ViewVersion expected() const { return expected_; }
  ViewVersion expected_in() const { return expected_in_; }
  std::vector<std::string> Take() { return std::exchange(log_, {}); }
  // What the controller, and other servers, heard while slots were dropped.
  const std::vector<ViewVersion>& reported() const { return reported_; }
  const std::vector<ViewVersion>& told() const { return told_; }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    log_.push_back(fmt::format("[{}] ", ownership_.version().epoch()) +
                   fmt::format(format, std::forward<Args>(args)...));
  }
  const Ownership& ownership_;
  std::vector<std::string> log_;
  std::vector<ViewVersion> reported_, told_;
  ViewVersion expected_, expected_in_;
};

class ViewInstallerTest : public ::testing::Test {
 protected:
  ViewInstallerTest()
      : data_dir_(*DataDir::Open(folder_.path())),
        installer_(&views_, kBoot, &data_dir_, &ownership_, &holdings_) {
    ownership_.SetSelf(kSelf);
  }
  struct Shown {
    uint32_t slots = kSlotCount;  // of this server, from 0
    uint64_t boot = kBoot;
    uint64_t history = 0;
    uint64_t since = 1;  // of each slot
  };
  // In the cache, as the controller's watch puts it there.
  void Offer(ViewVersion version, Shown shown) {
    NodeInfo self, other;
    self.id = kSelf;
    self.boot_id = shown.boot;
    self.lineage = shown.boot == kBoot ? data_dir_.lineage() : 77;
    other.id = kOther;
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i)
      slots.set_owner(SlotId(i), i < shown.slots ? kSelf : kOther);
    SlotHistory history;
    if (shown.history != 0) {
      history =
          *SlotHistory::Make(shown.history, std::vector(kSlotCount, shown.since), version.epoch());
    }
    ASSERT_TRUE(views_.Install(*DhtView::Make(version, {self, other}, slots, false, history)));
  }
  void OfferNamespaces(uint64_t version) {
    auto table = std::make_shared<NamespaceTable>();
    table->version = version;
    ASSERT_TRUE(views_.Install(std::move(table)));
  }
  std::vector<std::string> Install() {
    if (const auto view = installer_.Begin()) installer_.Finish(data_dir_.SetHighestView(*view));
    return holdings_.Take();
  }

  controller::TempDir folder_;
  ManualClock clock_;
  Ownership ownership_{&clock_};
  ViewCache views_;
  DataDir data_dir_;
  LoggedHoldings holdings_{&ownership_};
  ViewInstaller installer_;
};

TEST_F(ViewInstallerTest, AGrowingShareHasItsRoomBeforeTheFirstPut) {
  OfferNamespaces(3);
  Offer({1, 2}, {.slots = 4096});
  EXPECT_THAT(Install(), ElementsAre("[0] namespaces 3 share 0.25", "[2] slots 4096 of view 2"));
  EXPECT_EQ(data_dir_.highest_view().version, ViewVersion(1, 2));
  EXPECT_EQ(ownership_.owned_slots(), 4096u);
  EXPECT_THAT(Install(), IsEmpty()) << "nothing is new";
}

TEST_F(ViewInstallerTest, WhatAViewGivesIsAnnouncedBeforeAnythingIsServedByIt) {
  OfferNamespaces(3);
  Offer({1, 2}, {.slots = 4096});
  (void)Install();
  EXPECT_EQ(holdings_.expected(), ViewVersion(1, 2));
  EXPECT_EQ(holdings_.expected_in(), ViewVersion());
}

TEST_F(ViewInstallerTest, ATableThatHasNotComeYetIsNotOneWithoutNamespaces) {
  Offer({1, 2}, {.slots = 4096});
  EXPECT_THAT(Install(), ElementsAre("[2] slots 4096 of view 2"))
      << "an empty table would drop what the SSD tier has kept";
  OfferNamespaces(1);
  EXPECT_THAT(Install(), ElementsAre("[2] namespaces 1 share 0.25"));
}

TEST_F(ViewInstallerTest, AShrinkingShareIsTakenAwayWhenTheObjectsAreGone) {
  OfferNamespaces(6);
  Offer({1, 2}, {});
  (void)Install();
  Offer({1, 3}, {.slots = 8192});
  EXPECT_THAT(Install(), ElementsAre("[3] slots 8192 of view 3", "[3] namespaces 6 share 0.5"));
}

// The controller takes the report as word that nothing of the lost slots can be read here, and lets
// their new owners take Puts.
TEST_F(ViewInstallerTest, AViewIsReportedWhenTheObjectsOfLostSlotsAreGone) {
  Offer({1, 2}, {});
  (void)Install();
  EXPECT_EQ(ownership_.installed().version, ViewVersion(1, 2));
  const uint64_t before = ownership_.installed().fingerprint;
  Offer({1, 3}, {.slots = 8192});
  EXPECT_THAT(Install(), ElementsAre("[3] slots 8192 of view 3"))
      << "requests are checked against it all the while";
  EXPECT_THAT(holdings_.reported(), ElementsAre(ViewVersion(), ViewVersion(1, 2)));
  EXPECT_THAT(holdings_.told(), ElementsAre(ViewVersion(), ViewVersion(1, 2)));
  EXPECT_EQ(ownership_.installed().version, ViewVersion(1, 3));
  EXPECT_EQ(ownership_.told_version(), ViewVersion(1, 3));
  EXPECT_NE(ownership_.installed().fingerprint, before);
}

TEST_F(ViewInstallerTest, ANewTableOfNamespacesKeepsTheShare) {
  Offer({1, 2}, {.slots = 8192});
  (void)Install();
  OfferNamespaces(7);
  EXPECT_THAT(Install(), ElementsAre("[2] namespaces 7 share 0.5"));
}

TEST_F(ViewInstallerTest, WithoutAViewNamespacesHaveNoShareYet) {
  OfferNamespaces(1);
  EXPECT_THAT(Install(), ElementsAre("[0] namespaces 1 share 0"));
}

TEST_F(ViewInstallerTest, AnOlderViewThanTheHighestEverIsRefused) {
  ASSERT_TRUE(data_dir_.SetHighestView({{1, 5}}).ok());
  OfferNamespaces(2);
  Offer({1, 4}, {});
  EXPECT_THAT(Install(), IsEmpty());
  EXPECT_EQ(ownership_.version(), ViewVersion());
  Offer({1, 5}, {});
  EXPECT_THAT(Install(), ElementsAre("[0] namespaces 2 share 1", "[5] slots 16384 of view 5"));
}

// A controller with an older copy of its store begins a newer term with epochs that were used.
TEST_F(ViewInstallerTest, AUsedEpochOfANewerTermIsRefused) {
  ASSERT_TRUE(data_dir_.SetHighestView({{1, 9}}).ok());
  Offer({2, 3}, {});
  EXPECT_THAT(Install(), IsEmpty());
  Offer({2, 9}, {});
  EXPECT_THAT(Install(), IsEmpty()) << "another view than 1.9";
  EXPECT_EQ(data_dir_.highest_view().version, ViewVersion(1, 9));
  Offer({2, 10}, {});
  EXPECT_THAT(Install(), ::testing::Contains("[10] slots 16384 of view 10"));
}

// Such a controller gave the number to another view; the record of older software has only that.
TEST_F(ViewInstallerTest, AnotherViewOfTheHighestNumberIsRefused) {
  Offer({1, 9}, {});
  const uint64_t offered = views_.view()->Fingerprint();
  ASSERT_TRUE(data_dir_.SetHighestView({{1, 9}, offered + 1}).ok());
  EXPECT_THAT(Install(), IsEmpty());
  EXPECT_EQ(data_dir_.highest_view(), (ViewIdentity{{1, 9}, offered + 1}));
  for (const uint64_t kept : {offered, uint64_t{0}}) {
    ASSERT_TRUE(data_dir_.SetHighestView({{1, 9}, kept}).ok());
    EXPECT_EQ(installer_.Begin(), (ViewIdentity{{1, 9}, offered}));
    installer_.Finish(Error(StatusCode::kUnavailable, "not now"));
  }
}

TEST_F(ViewInstallerTest, NothingIsInstalledBeforeTheServerKnowsWhoItIs) {
  ownership_.SetSelf(kNoNode);
  Offer({1, 2}, {});
  EXPECT_THAT(Install(), IsEmpty());
  ownership_.SetSelf(kSelf);
  EXPECT_THAT(Install(), ::testing::Contains("[2] slots 16384 of view 2"));
}

TEST_F(ViewInstallerTest, AViewThatShowsAnotherProcessOfThisNameIsNotInstalled) {
  Offer({1, 2}, {.boot = kBoot + 1});
  EXPECT_THAT(Install(), IsEmpty());
  EXPECT_EQ(data_dir_.highest_view().version, ViewVersion());
  Offer({1, 3}, {});
  EXPECT_THAT(Install(), ::testing::Contains("[3] slots 16384 of view 3"));
}

TEST_F(ViewInstallerTest, AViewWhoseNumberCannotBeKeptIsNotInstalledUntilItCan) {
  const std::string away = folder_.path() + "_away";
  std::filesystem::rename(folder_.path(), away);
  Offer({1, 2}, {});
  EXPECT_THAT(Install(), IsEmpty());
  EXPECT_EQ(ownership_.version(), ViewVersion());
  EXPECT_THAT(ToString(installer_.Refusal()),
              ::testing::HasSubstr("the number of view 1.2 cannot be kept"));
  OfferNamespaces(4);
  EXPECT_THAT(Install(), ElementsAre("[0] namespaces 4 share 0")) << "one may have been deleted";
  std::filesystem::rename(away, folder_.path());
  EXPECT_THAT(Install(), ::testing::Contains("[2] slots 16384 of view 2"));
  EXPECT_TRUE(installer_.Refusal().ok());
}

// The disk takes its time: nothing is served by the new view, and the old one goes on.
TEST_F(ViewInstallerTest, AViewCountsWhenItsNumberIsDurable) {
  Offer({1, 2}, {.slots = 10});
  (void)Install();
  Offer({1, 3}, {.slots = 20});
  EXPECT_EQ(installer_.Begin()->version, ViewVersion(1, 3));
  Offer({1, 4}, {.slots = 30});
  EXPECT_EQ(ownership_.version(), ViewVersion(1, 2));
  EXPECT_EQ(ownership_.owned_slots(), 10U);
  installer_.Finish(OkStatus());
  EXPECT_EQ(ownership_.version(), ViewVersion(1, 3)) << "the one whose number was kept";
}

TEST_F(ViewInstallerTest, BlocksOfSlotsThatAllGoAreKeptFirst) {
  Offer({1, 2}, {.slots = 100});
  (void)Install();
  Offer({1, 3}, {.slots = 0});
  EXPECT_THAT(Install(), ElementsAre("[2] keep 100", "[3] slots 0 of view 3"));
}

TEST_F(ViewInstallerTest, WhatOthersMayHaveChangedGoesBeforeTheNewViewIsAnsweredFor) {
  Offer({1, 2}, {.slots = 100});
  (void)Install();
  Offer({1, 4}, {.slots = 100});  // without a history a view that was not seen says nothing
  EXPECT_THAT(Install(), ElementsAre("[2] keep 100", "[2] slots 0 of view 2",
                                     "[2] slots 100 of view 2", "[4] slots 100 of view 4"));
}

TEST_F(ViewInstallerTest, AHistorySaysThatNobodyElseHadTheSlots) {
  Offer({1, 2}, {.history = 9});
  (void)Install();
  Offer({1, 6}, {.history = 9, .since = 2});
  EXPECT_THAT(Install(), ElementsAre("[6] slots 16384 of view 6"));
}

// The process before it has the same storage, and may still take Puts by an older view.
TEST_F(ViewInstallerTest, WhatIsInheritedIsHeldUntilTheFirstViewThatShowsThisProcessIsActive) {
  ASSERT_TRUE(data_dir_.BeginLineage().ok());
  ownership_.SetActive(5);
  ownership_.RenewLease(clock_.Now() + std::chrono::seconds(5));
  const auto write = [&] { return ownership_.CheckWrite(SlotId(7), ViewVersion()); };
  Offer({1, 6}, {.history = 9, .since = 2});
  (void)Install();
  EXPECT_EQ(write(), Verdict::kHold);
  Offer({1, 7}, {.history = 9, .since = 2});
  (void)Install();
  EXPECT_EQ(write(), Verdict::kHold);
  ownership_.SetActive(6);
  EXPECT_EQ(write(), Verdict::kYes) << "the later view changes nothing for it";
}

TEST_F(ViewInstallerTest, AnExpelledServerStartsEmptyUnlessTheHistoryWillTell) {
  Offer({1, 2}, {.slots = 10});
  (void)Install();
  installer_.OnExpelled();
  EXPECT_THAT(Install(),
              ElementsAre("[2] keep 10", "[2] slots 0 of view 2", "[2] slots 10 of view 2"));
  EXPECT_THAT(Install(), IsEmpty()) << "once";
  Offer({1, 3}, {.slots = 10, .history = 9});
  (void)Install();
  installer_.OnExpelled();
  EXPECT_THAT(Install(), IsEmpty());
}

// Before requests are checked against the view; and what an earlier life may have changed is not.
TEST_F(ViewInstallerTest, SlotsAreOpenedThatNoLifeOfThisServerHasHad) {
  Offer({1, 5}, {.slots = 100, .history = 9, .since = 5});
  EXPECT_THAT(Install(), ElementsAre("[0] open 100", "[5] slots 100 of view 5"));
  Offer({1, 6}, {.slots = 200, .history = 9, .since = 5});
  EXPECT_THAT(Install(), ElementsAre("[6] slots 200 of view 6")) << "a view of then was installed";
  Offer({1, 9}, {.slots = 200, .history = 9, .since = 8});
  EXPECT_THAT(Install(), ::testing::Contains("[6] open 200"));
}

// Its storage vouches for the slots, so they count as its own all the time; what it removed in them
// is nowhere but there.
TEST_F(ViewInstallerTest, NothingIsOpenedWhereTheViewsOfAnEarlierLifeAreForgotten) {
  const std::string path = folder_.path() + "/other";
  ASSERT_EQ(DataDir::Open(path)->BeginLineage(), OkStatus());
  ASSERT_EQ(DataDir::Open(path)->SetHighestView({{1, 6}}), OkStatus());
  std::filesystem::resize_file(path + "/view", 7);
  data_dir_ = *DataDir::Open(path);
  ASSERT_NE(data_dir_.lineage(), 0u);
  Offer({1, 7}, {.slots = 100, .history = 9, .since = 5});
  EXPECT_THAT(Install(), ElementsAre("[7] slots 100 of view 7"));
  Offer({1, 8}, {.slots = 200, .history = 9, .since = 8});
  EXPECT_THAT(Install(), ::testing::Contains("[7] open 200")) << "from now on they are known";
}

TEST_F(ViewInstallerTest, AServerWhoseStorageBeginsHasNoEarlierLife) {
  ASSERT_EQ(data_dir_.BeginLineage(), OkStatus());
  ASSERT_TRUE(data_dir_.knows_views());
  data_dir_.UseLineageOfMemory(78);
  Offer({1, 5}, {.slots = 100, .history = 9, .since = 5});
  EXPECT_THAT(Install(), ::testing::Contains("[0] open 100"));
}

}  // namespace
}  // namespace ems::server
