// What must hold: a namespace stays within its quota and keeps its reservation, what nobody may
// have any more goes first, and what is still being written to is waited for.
#include "mp_server/ssd/region_space.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "mp_server/ssd/ssd_tier.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::FaultyFiles;
using ::ems::testing::LogOptions;

constexpr uint64_t kRegionBytes = 64 * kKiB;
constexpr uint32_t kRegions = 4;
constexpr NamespaceRef kA{NamespaceId(1), 1};
constexpr NamespaceRef kB{NamespaceId(2), 1};
constexpr NamespaceRef kC{NamespaceId(3), 1};

NamespaceLimits LimitsOf(NamespaceRef ns, uint64_t quota_bytes = 0, uint64_t reserved_bytes = 0,
                         bool relaxed_sync = false) {
  return {ns, quota_bytes, reserved_bytes, relaxed_sync};
}

class RegionSpaceTest : public ::testing::Test {
 protected:
  RegionSpaceTest() { Open(kRegions); }
  void Open(uint32_t regions_max) {
    space_.reset();
    log_ = *RegionLog::Open(LogOptions(folder_ / "regions", &files_, regions_max, kRegionBytes));
    space_.emplace(log_.get());
  }

  // Takes what Next says, as the writer does. Null: an error.
  Region* Take(NamespaceRef ns) {
    const Result<RegionSpace::Choice> choice = space_->Next(ns);
    if (!choice.ok()) return nullptr;
    if (choice->surplus != nullptr) log_->Release(choice->surplus);
    if (choice->reclaim) log_->Release(choice->region);
    if (!log_->Begin(choice->region, ns).ok()) return nullptr;
    space_->SetOpen(ns, choice->region);
    choice->region->members.push_back({choice->region->sequence, 0});
    return choice->region;
  }
  // One that is full.
  Region* Fill(NamespaceRef ns) {
    Region* region = Take(ns);
    space_->Seal(ns);
    return region;
  }
  // What `ns` would be given; null: nothing.
  Region* NextOf(NamespaceRef ns) {
    const Result<RegionSpace::Choice> choice = space_->Next(ns);
    return choice.ok() ? choice->region : nullptr;
  }
  StatusCode ErrorOf(NamespaceRef ns) { return space_->Next(ns).status().code(); }

  const ::ems::testing::TempFolder folder_;
  FaultyFiles files_;
  std::unique_ptr<RegionLog> log_;
  std::optional<RegionSpace> space_;
};

TEST_F(RegionSpaceTest, FreeRegionsComeFirst) {
  Region* first = Fill(kA);
  const Result<RegionSpace::Choice> second = space_->Next(kA);
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->reclaim);
  EXPECT_NE(second->region, first);
  EXPECT_EQ(second->region->state, RegionState::kFree);
  EXPECT_EQ(space_->RegionsOf(kA), 1);
}

TEST_F(RegionSpaceTest, ANamespaceHasOneOpenRegion) {
  EXPECT_EQ(space_->OpenOf(kA), nullptr);
  Region* first = Take(kA);
  EXPECT_EQ(space_->OpenOf(kA), first);
  EXPECT_EQ(space_->OpenOf(kB), nullptr);
  Region* second = Take(kA);
  EXPECT_EQ(space_->OpenOf(kA), second);
  EXPECT_EQ(first->state, RegionState::kSealed);
  space_->Seal(kA);
  EXPECT_EQ(space_->OpenOf(kA), nullptr);
  EXPECT_EQ(second->state, RegionState::kSealed);
  space_->Seal(kA);
  EXPECT_EQ(space_->RegionsOf(kA), 2);
}

TEST_F(RegionSpaceTest, ARegionWhereAWriteFailedIsOpenNoMoreAndStaysBad) {
  Region* region = Take(kA);
  region->state = RegionState::kBad;
  EXPECT_EQ(space_->OpenOf(kA), nullptr);
  space_->Seal(kA);
  EXPECT_EQ(region->state, RegionState::kBad);
  EXPECT_EQ(space_->RegionsOf(kA), 1);
}

TEST_F(RegionSpaceTest, WhenNoneIsFreeTheOldestOfItsOwnGoes) {
  Region* oldest = Fill(kA);
  for (uint32_t i = 1; i < kRegions; ++i) Fill(kA);
  const Result<RegionSpace::Choice> choice = space_->Next(kA);
  ASSERT_TRUE(choice.ok());
  EXPECT_TRUE(choice->reclaim);
  EXPECT_EQ(choice->region, oldest);
  EXPECT_EQ(Fill(kA), oldest);
  EXPECT_NE(NextOf(kA), oldest) << "it is the newest now";
}

TEST_F(RegionSpaceTest, ARegionThatLostAllItsRecordsGoesBeforeAnOlderOne) {
  Fill(kA);
  Fill(kA);
  Region* empty = Fill(kA);
  Fill(kA);
  empty->members.clear();
  EXPECT_EQ(NextOf(kA), empty);
}

TEST_F(RegionSpaceTest, ABadRegionGoesLikeASealedOne) {
  Region* bad = Fill(kA);
  bad->state = RegionState::kBad;
  for (uint32_t i = 1; i < kRegions; ++i) Fill(kA);
  EXPECT_EQ(NextOf(kA), bad);
}

TEST_F(RegionSpaceTest, AtItsQuotaANamespaceGivesUpItsOwnThoughOthersAreFree) {
  space_->SetLimits({LimitsOf(kA, 2 * kRegionBytes), LimitsOf(kB)});
  Fill(kA);
  Fill(kA);
  for (int i = 0; i < 5; ++i) Fill(kA);
  EXPECT_EQ(space_->RegionsOf(kA), 2);
  EXPECT_EQ(log_->regions().size(), 2);
}

TEST_F(RegionSpaceTest, ARegionThatIsOpenHasNotUsedUpAReservation) {
  space_->SetLimits({LimitsOf(kA, 0, kRegionBytes), LimitsOf(kB)});
  EXPECT_EQ(space_->BelowReserved(), std::set{kA});
  Take(kA);
  EXPECT_EQ(space_->BelowReserved(), std::set{kA});
  Take(kA);
  EXPECT_EQ(space_->BelowReserved(), std::set<NamespaceRef>());
}

TEST_F(RegionSpaceTest, AQuotaIsRoundedDownToWholeRegions) {
  space_->SetLimits({LimitsOf(kA, 3 * kRegionBytes - 1)});
  for (int i = 0; i < 6; ++i) Fill(kA);
  EXPECT_EQ(space_->RegionsOf(kA), 2);
}

TEST_F(RegionSpaceTest, AQuotaSmallerThanARegionIsOneRegionFilledNoFurther) {
  for (const uint64_t quota : {uint64_t{1}, kBlockBytes, kBlockBytes + 1, kRegionBytes / 2}) {
    space_->SetLimits({LimitsOf(kA, quota)});
    EXPECT_EQ(space_->FillLimit(kA), kBlockBytes + RoundUp(quota, kBlockBytes)) << quota;
  }
  for (int i = 0; i < 3; ++i) ASSERT_NE(Fill(kA), nullptr);
  EXPECT_EQ(space_->RegionsOf(kA), 1);
}

TEST_F(RegionSpaceTest, NoRegionIsFilledBeyondItsEnd) {
  EXPECT_EQ(space_->FillLimit(kA), kRegionBytes);
  for (const uint64_t quota : {uint64_t{0}, kRegionBytes - 1, kRegionBytes, 9 * kRegionBytes}) {
    space_->SetLimits({LimitsOf(kA, quota)});
    EXPECT_EQ(space_->FillLimit(kA), kRegionBytes) << quota;
  }
}

TEST_F(RegionSpaceTest, LimitsAreThoseThatWereSetLast) {
  space_->SetLimits({LimitsOf(kA, 0, 0, true)});
  EXPECT_TRUE(space_->relaxed_sync(kA));
  EXPECT_FALSE(space_->relaxed_sync(kB));
  EXPECT_FALSE(space_->relaxed_sync({kA.id, kA.generation + 1}));
  space_->SetLimits({LimitsOf(kB, 0, 0, true)});
  EXPECT_FALSE(space_->relaxed_sync(kA));
  EXPECT_TRUE(space_->relaxed_sync(kB));
}

TEST_F(RegionSpaceTest, WhatIsStillBeingWrittenToIsWaitedFor) {
  space_->SetLimits({LimitsOf(kA, kRegionBytes), LimitsOf(kB)});
  Region* busy = Fill(kA);
  busy->writes_under_way = 1;
  EXPECT_EQ(ErrorOf(kA), StatusCode::kUnavailable);
  busy->members.clear();
  EXPECT_EQ(ErrorOf(kA), StatusCode::kUnavailable) << "its rows are not there yet";
  busy->writes_under_way = 0;
  EXPECT_EQ(NextOf(kA), busy);
}

TEST_F(RegionSpaceTest, OfSeveralTheOldestThatIsNotBusyGoes) {
  std::vector<Region*> regions;
  for (uint32_t i = 0; i < kRegions; ++i) regions.push_back(Fill(kA));
  regions[0]->writes_under_way = 1;
  EXPECT_EQ(NextOf(kA), regions[1]);
}

TEST_F(RegionSpaceTest, WhatIsStillBeingMovedFromIsWaitedFor) {
  Region* oldest = Fill(kA);
  for (uint32_t i = 1; i < kRegions; ++i) Fill(kA);
  oldest->moves_under_way = 1;
  EXPECT_EQ(ErrorOf(kA), StatusCode::kUnavailable) << "a younger one must not go instead";
  EXPECT_EQ(oldest->state, RegionState::kSealed);
  oldest->moves_under_way = 0;
  EXPECT_EQ(NextOf(kA), oldest);
}

TEST_F(RegionSpaceTest, WhatGoesNextIsKnownBeforeItGoes) {
  Region* oldest = Fill(kA);
  for (uint32_t i = 1; i < kRegions; ++i) {
    EXPECT_EQ(space_->NextVictim(kA), nullptr) << "there are free ones";
    Fill(kA);
  }
  EXPECT_EQ(space_->NextVictim(kA), oldest);
  EXPECT_EQ(space_->NextVictim(kB), oldest);
  EXPECT_EQ(oldest->state, RegionState::kSealed);
  space_->SetLimits({LimitsOf(kA, 2 * kRegionBytes), LimitsOf(kB)});
  EXPECT_EQ(space_->NextVictim(kA), oldest) << "it is above its quota";
  space_->SetLimits({LimitsOf(kA, 0, kRegions * kRegionBytes), LimitsOf(kB)});
  EXPECT_EQ(space_->NextVictim(kB), nullptr) << "all are reserved";
}

TEST_F(RegionSpaceTest, ABusyFreeRegionIsNotHandedOut) {
  Open(1);
  Region* region = Fill(kA);
  region->writes_under_way = 1;
  log_->Release(region);
  EXPECT_EQ(NextOf(kA), nullptr);
}

TEST_F(RegionSpaceTest, TheNamespaceFurthestAboveItsReservationGivesOneUp) {
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB), LimitsOf(kC)});
  Fill(kB);
  Region* victim = Fill(kA);
  Fill(kA);
  Fill(kA);
  EXPECT_EQ(NextOf(kC), victim);
}

TEST_F(RegionSpaceTest, AReservationCountsForItsNamespace) {
  space_->SetLimits(
      {LimitsOf(kA, 0, 3 * kRegionBytes), LimitsOf(kB), LimitsOf(kC, 0, kRegionBytes)});
  for (int i = 0; i < 3; ++i) Fill(kA);
  Region* theirs = Fill(kB);
  EXPECT_EQ(NextOf(kC), theirs) << "A has three, but all of them are reserved";
  EXPECT_EQ(NextOf(kB), theirs);
}

TEST_F(RegionSpaceTest, AReservationIsTakenBackFromWhoHasMoreThanTheirs) {
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB, 0, 2 * kRegionBytes)});
  std::vector<Region*> theirs;
  for (uint32_t i = 0; i < kRegions; ++i) theirs.push_back(Fill(kA));
  EXPECT_EQ(Fill(kB), theirs[0]);
  EXPECT_EQ(Fill(kB), theirs[1]);
  EXPECT_EQ(space_->RegionsOf(kA), 2);
  EXPECT_EQ(space_->RegionsOf(kB), 2);
  for (int i = 0; i < 10; ++i) ASSERT_NE(Fill(kA), nullptr);
  EXPECT_EQ(space_->RegionsOf(kB), 2) << "the reservation is kept";
}

TEST_F(RegionSpaceTest, WhoAreAboutAsFarAboveTakeFromThemselves) {
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB)});
  Region* own = Fill(kA);
  Fill(kB);
  Fill(kB);
  Fill(kA);
  EXPECT_EQ(NextOf(kA), own);
}

TEST_F(RegionSpaceTest, TwoGreedyNamespacesEndUpWithHalfEach) {
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB)});
  for (uint32_t i = 0; i < kRegions; ++i) Fill(kA);
  for (int i = 0; i < 20; ++i) {
    ASSERT_NE(Take(i % 2 == 0 ? kA : kB), nullptr) << i;
  }
  EXPECT_EQ(space_->RegionsOf(kA), kRegions / 2);
  EXPECT_EQ(space_->RegionsOf(kB), kRegions / 2);
}

TEST_F(RegionSpaceTest, RegionsOfNamespacesThatAreNoMoreGoFirst) {
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB)});
  for (int i = 0; i < 3; ++i) Fill(kA);
  Region* orphan = Fill(kC);
  EXPECT_EQ(NextOf(kB), orphan);
  EXPECT_EQ(NextOf(kA), orphan);
  orphan->writes_under_way = 1;
  EXPECT_NE(NextOf(kB), orphan);
}

TEST_F(RegionSpaceTest, AnotherGenerationIsNoMoreToo) {
  const NamespaceRef before{kA.id, kA.generation + 1};
  space_->SetLimits({LimitsOf(kA)});
  Fill(kA);
  Fill(kA);
  Region* orphan = Fill(before);
  Fill(kA);
  EXPECT_EQ(NextOf(kA), orphan);
}

TEST_F(RegionSpaceTest, WhileNoNamespaceIsKnownNoneIsTakenForGone) {
  Region* own = Fill(kA);
  Fill(kB);
  Fill(kA);
  Fill(kB);
  EXPECT_EQ(NextOf(kA), own);
  EXPECT_NE(NextOf(kB), own);
}

// A deleted namespace writes no more, so nothing but this ends the use of its open region.
TEST_F(RegionSpaceTest, TheOpenRegionOfANamespaceThatIsNoMoreGoesToo) {
  Open(2);
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB)});
  Region* orphan = Take(kA);
  Region* own = Fill(kB);
  space_->SetLimits({LimitsOf(kB)});
  EXPECT_EQ(NextOf(kB), orphan);
  EXPECT_NE(NextOf(kB), own);
}

// Its records would lie in a region of another's.
TEST_F(RegionSpaceTest, WhoseOpenRegionWasGivenUpHasNoneAnyMore) {
  Open(1);
  space_->SetLimits({LimitsOf(kA), LimitsOf(kC, 0, kRegionBytes)});
  Region* region = Take(kA);
  ASSERT_EQ(Take(kC), region);
  EXPECT_EQ(space_->OpenOf(kA), nullptr);
  space_->Seal(kA);
  EXPECT_EQ(space_->OpenOf(kC), region);
}

TEST_F(RegionSpaceTest, PurgesWithoutEndLeaveRoom) {
  for (uint32_t generation = 1; generation <= 3 * kRegions; ++generation) {
    const NamespaceRef ns{kA.id, generation};
    space_->SetLimits({LimitsOf(ns)});
    ASSERT_NE(Take(ns), nullptr) << "generation " << generation;
  }
}

// Others that write seldom hold regions open for ever.
TEST_F(RegionSpaceTest, AReservationIsKeptWhereEveryRegionIsOpen) {
  Open(2);
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB), LimitsOf(kC, 0, kRegionBytes)});
  ASSERT_NE(Take(kA), nullptr);
  ASSERT_NE(Take(kB), nullptr);
  EXPECT_NE(NextOf(kC), nullptr);
}

TEST_F(RegionSpaceTest, WhoHasNoneGetsOneWhereEveryOtherHasOne) {
  Open(2);
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB), LimitsOf(kC)});
  ASSERT_NE(Fill(kA), nullptr);
  ASSERT_NE(Fill(kB), nullptr);
  EXPECT_NE(NextOf(kC), nullptr);
}

TEST_F(RegionSpaceTest, AQuotaThatIsLoweredIsKeptAfterAWhile) {
  space_->SetLimits({LimitsOf(kA), LimitsOf(kB)});
  for (uint32_t i = 0; i < kRegions; ++i) Fill(kA);
  space_->SetLimits({LimitsOf(kA, kRegionBytes), LimitsOf(kB)});
  for (uint32_t i = 0; i < 2 * kRegions; ++i) ASSERT_NE(Fill(kA), nullptr);
  EXPECT_EQ(space_->RegionsOf(kA), 1);
}

TEST_F(RegionSpaceTest, WhatGoesNextIsOfTheNamespaceFurthestAboveItsReservation) {
  space_->SetLimits({LimitsOf(kA, 0, 2 * kRegionBytes), LimitsOf(kB)});
  EXPECT_EQ(space_->NextToGo().status().code(), StatusCode::kResourceExhausted);
  Region* reserved = Fill(kA);
  EXPECT_EQ(space_->NextToGo()->region, reserved) << "there is no other";
  Region* theirs = Fill(kB);
  Fill(kA);
  EXPECT_EQ(space_->NextToGo()->region, theirs);
  theirs->writes_under_way = 1;
  EXPECT_EQ(space_->NextToGo().status().code(), StatusCode::kUnavailable);
}

TEST_F(RegionSpaceTest, WithoutRoomOnTheDiskTheFirstRegionIsAnErrorThatSaysWhy) {
  files_.Fail(FaultyFiles::kPreallocate, StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorOf(kA), StatusCode::kResourceExhausted);
  EXPECT_EQ(space_->disk().code(), StatusCode::kResourceExhausted);
  files_.Mend();
  EXPECT_NE(Take(kA), nullptr);
  EXPECT_TRUE(space_->disk().ok());
}

TEST_F(RegionSpaceTest, WithoutRoomOnTheDiskWhatIsThereIsUsedAgain) {
  Region* own = Fill(kA);
  files_.Fail(FaultyFiles::kPreallocate, StatusCode::kResourceExhausted);
  EXPECT_EQ(NextOf(kA), own);
  EXPECT_FALSE(space_->disk().ok());
  files_.Mend();
  EXPECT_NE(NextOf(kA), own) << "there is room again";
}

TEST_F(RegionSpaceTest, WithoutRoomOnTheDiskABusyRegionIsStillWaitedFor) {
  Region* own = Fill(kA);
  own->writes_under_way = 1;
  files_.Fail(FaultyFiles::kPreallocate, StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorOf(kA), StatusCode::kUnavailable);
}

TEST_F(RegionSpaceTest, AllRegionsInUseIsNoFaultOfTheDisk) {
  for (uint32_t i = 0; i < kRegions; ++i) Fill(kA);
  EXPECT_NE(NextOf(kA), nullptr);
  EXPECT_TRUE(space_->disk().ok());
}

// Files that take room on no disk, and no descriptors. Threading: one thread.
class SimulatedDisk final : public RegionFiles {
 public:
  explicit SimulatedDisk(uint64_t bytes) : free_bytes_(bytes) {}
  Result<fabric::Fd> Open(const std::string& /*path*/, bool /*create*/, bool* direct) override {
    *direct = true;
    ++opened_;
    return fabric::Fd();
  }
  Status Preallocate(int /*fd*/, uint64_t bytes) override {
    if (bytes > free_bytes_) return Error(StatusCode::kResourceExhausted, "the disk is full");
    free_bytes_ -= bytes;
    return OkStatus();
  }
  uint64_t FreeBytes(const std::string& /*folder*/) override { return free_bytes_; }
  Status Sync(int /*fd*/) override { return OkStatus(); }
  Status Write(int /*fd*/, ConstBytes /*bytes*/, uint64_t /*offset*/) override {
    return OkStatus();
  }
  uint64_t opened() const { return opened_; }

 private:
  uint64_t free_bytes_;
  uint64_t opened_ = 0;
};

// The work of each step is counted, not timed.
TEST(RegionSpaceOfALargeDiskTest, MakingARegionCostsTheSameHoweverManyThereAre) {
  constexpr uint64_t kCapacity = 10 * 1024 * kGiB;
  const uint64_t region_bytes = RegionBytesFor(kCapacity);
  const auto regions_max = static_cast<uint32_t>(kCapacity / region_bytes);
  const ::ems::testing::TempFolder folder;
  SimulatedDisk disk(kCapacity);
  const auto log =
      *RegionLog::Open(LogOptions(folder / "regions", &disk, regions_max, region_bytes));
  RegionSpace space(log.get());
  for (uint32_t i = 0; i < regions_max; ++i) {
    const NamespaceRef ns{NamespaceId(1 + i % 3), 1};
    space.SetLimits({LimitsOf(kA), LimitsOf(kB), LimitsOf(kC, 0, kGiB)});
    const uint64_t before = log->looked_at();
    const Result<RegionSpace::Choice> choice = space.Next(ns);
    ASSERT_TRUE(choice.ok()) << choice.status();
    ASSERT_FALSE(choice->reclaim);
    ASSERT_TRUE(log->Begin(choice->region, ns).ok());
    space.SetOpen(ns, choice->region);
    ASSERT_EQ(log->Find(choice->region->id), choice->region);
    ASSERT_LE(log->looked_at() - before, 4) << "with " << i << " regions";
  }
  EXPECT_EQ(disk.opened(), regions_max);
  EXPECT_LE(disk.opened(), 4096);
  EXPECT_EQ(disk.FreeBytes(""), kCapacity - regions_max * region_bytes);
  EXPECT_LT(disk.FreeBytes(""), region_bytes);
  EXPECT_TRUE(space.Next(kA)->reclaim) << "none is free";
}

// One that is given up is the next to be used, wherever its file is.
TEST(RegionSpaceOfALargeDiskTest, AFreeRegionIsFoundWithoutAWalk) {
  const ::ems::testing::TempFolder folder;
  SimulatedDisk disk(kGiB);
  const auto log = *RegionLog::Open(LogOptions(folder / "regions", &disk, 1000, kMiB));
  RegionSpace space(log.get());
  for (uint32_t i = 0; i < 1000; ++i)
    ASSERT_NE(::ems::testing::BeginRegion(log.get(), kA), nullptr);
  for (const uint32_t id : {999U, 0U, 500U}) {
    Region* region = log->Find(id);
    region->state = RegionState::kSealed;
    log->Release(region);
    EXPECT_EQ(space.RegionsOf(kA), 999U);
    const uint64_t before = log->looked_at();
    const Result<RegionSpace::Choice> choice = space.Next(kA);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->region, region);
    EXPECT_LE(log->looked_at() - before, 4);
    ASSERT_TRUE(log->Begin(region, kA).ok());
  }
}

}  // namespace
}  // namespace ems::ssd
