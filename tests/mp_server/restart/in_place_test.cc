// What must hold: what a process hands over is taken by the next start of this folder, once; and
// each start in between, whatever becomes of it, makes it worthless.
#include "mp_server/restart/in_place.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "mp_server/store/namespace_store.h"
#include "tests/mp_server/restart/restart_fixture.h"
#include "tests/support/temp_path.h"

namespace ems::server {
namespace {

class InPlaceTest : public RestartFixture {
 protected:
  ~InPlaceTest() override { EndLife(); }
  // Begins a life in the folder, up to the point where it could serve.
  void BeginLife(bool wanted = true, const std::string& tier_folder = "") {
    auto dir = DataDir::Open(path_.path(), "machine");
    ASSERT_TRUE(dir.ok()) << dir.status();
    dir_ = std::make_unique<DataDir>(*std::move(dir));
    if (dir_->cluster() == kNoCluster) (void)dir_->SetCluster(ClusterId(4));
    InPlace::Options options;
    options.fds = std::make_unique<KeptFdStore>(&kept_);
    options.wanted = wanted;
    options.tier_folder = tier_folder;
    in_place_ = std::make_unique<InPlace>(std::move(options), dir_.get());
    SegmentPool::Options pool = SmallPool(16 * kMiB);
    in_place_->Prepare({}, &pool);
    pool_ = std::make_unique<SegmentPool>(pool);
    ObjectStore::Options store;
    store.pool = pool_.get();
    store_ = std::make_unique<ObjectStore>(store);
  }
  // Installs a view with the number `epoch`; what was taken over.
  TakeOver::Taken Install(uint64_t epoch) {
    EXPECT_EQ(dir_->SetHighestView({ViewVersion(1, epoch), epoch}), OkStatus());
    TakeOver::Taken taken;
    if (in_place_->pending() != nullptr) {
      in_place_->pending()->Expect(Grant(epoch));
      taken = in_place_->Adopt(Table({kA, kB}), store_.get(), pool_.get());
    }
    store_->SetNamespaces(Table({kA, kB}), 1);
    store_->SetOwnedSlots(AllSlots());
    EXPECT_TRUE(pool_->WaitReady(8 * kMiB, Soon()).ok());
    return taken;
  }
  bool Stop(uint64_t epoch) {
    ShutSharing(*store_);
    const bool done =
        in_place_->HandOver(*store_, Grant(epoch).Record(0), NodeId(1), pool_->boot_id());
    EndLife();
    return done;
  }
  void EndLife() {
    if (in_place_ != nullptr) in_place_->Drop(pool_.get());
    store_.reset();
    pool_.reset();
    in_place_.reset();
    dir_.reset();
  }
  // A whole first life with some objects.
  void LiveOnce() {
    BeginLife();
    lineage_ = in_place_->Lineage(0, pool_.get());
    ASSERT_NE(lineage_, 0u);
    (void)Install(5);
    (void)PutMany(kA, 7, "a");
    ASSERT_TRUE(Stop(5));
  }

  const testing::TempPath path_{"in_place"};
  std::unique_ptr<DataDir> dir_;
  std::unique_ptr<InPlace> in_place_;
  uint64_t lineage_ = 0;
};

TEST_F(InPlaceTest, TheNextLifeHasItAllAndTheSameLineage) {
  LiveOnce();
  BeginLife();
  EXPECT_EQ(in_place_->Lineage(0, pool_.get()), lineage_);
  EXPECT_EQ(dir_->lineage(), lineage_);
  EXPECT_EQ(Install(6).objects, 7u);
  ASSERT_TRUE(Stop(6));
  BeginLife();  // and on it goes
  EXPECT_EQ(in_place_->Lineage(0, pool_.get()), lineage_);
  EXPECT_EQ(Install(7).objects, 7u);
}

TEST_F(InPlaceTest, AfterACrashTheNextLifeIsAnother) {
  BeginLife();
  lineage_ = in_place_->Lineage(0, pool_.get());
  (void)Install(5);
  (void)PutMany(kA, 7, "a");
  EndLife();
  BeginLife();
  EXPECT_EQ(in_place_->pending(), nullptr);
  EXPECT_NE(in_place_->Lineage(0, pool_.get()), lineage_);
}

TEST_F(InPlaceTest, AProcessThatCrashesAfterItTookOverBeginsCold) {
  LiveOnce();
  const auto copies = std::make_shared<std::vector<fabric::Fd>>(kept_.Copies());
  BeginLife();
  ASSERT_NE(in_place_->pending(), nullptr);
  EndLife();
  kept_.fds = std::move(*copies);  // a store that gave them out and kept them
  BeginLife();
  EXPECT_EQ(in_place_->pending(), nullptr);
  EXPECT_NE(in_place_->Lineage(0, pool_.get()), lineage_);
}

TEST_F(InPlaceTest, ALifeThatDoesNotWantItMakesItWorthless) {
  LiveOnce();
  auto copies = kept_.Copies();
  BeginLife(false);
  EXPECT_EQ(in_place_->pending(), nullptr);
  EXPECT_TRUE(kept_.fds.empty());  // its memory is free
  EXPECT_EQ(in_place_->Lineage(0, pool_.get()), 0u);
  EXPECT_FALSE(in_place_->on());
  EndLife();
  kept_.fds = std::move(copies);
  BeginLife();
  EXPECT_EQ(in_place_->pending(), nullptr);
}

// It does not know the number's file, and may have taken Puts under the views that it installed.
TEST_F(InPlaceTest, ALifeOfOlderSoftwareInBetweenMakesItWorthless) {
  LiveOnce();
  {
    auto dir = DataDir::Open(path_.path(), "machine");
    ASSERT_TRUE(dir.ok());
    ASSERT_EQ(dir->SetHighestView({ViewVersion(1, 6), 6}), OkStatus());
  }
  BeginLife();
  EXPECT_EQ(in_place_->pending(), nullptr);
}

TEST_F(InPlaceTest, ATierThatWasOpenedInBetweenMakesItWorthless) {
  const std::string folder = path_.path() + "/ssd", current = folder + "/index/CURRENT";
  std::filesystem::create_directories(folder + "/index");
  std::ofstream(current) << "MANIFEST-1";
  BeginLife(true, folder);
  dir_->UseLineageOfMemory(33);  // the tier's
  EXPECT_EQ(in_place_->Lineage(33, pool_.get()), 33u);
  (void)Install(5);
  (void)PutMany(kA, 7, "a");
  ASSERT_TRUE(Stop(5));
  auto copies = kept_.Copies();
  const auto number = [&] { return std::filesystem::path(path_.path()) / "handover"; };
  std::filesystem::copy(number(), path_.path() + "/number");
  BeginLife(true, folder);
  ASSERT_NE(in_place_->pending(), nullptr);
  // Another tier than the one before: of another lineage.
  (void)in_place_->Lineage(34, pool_.get());
  EXPECT_EQ(in_place_->pending(), nullptr);
  EndLife();
  std::filesystem::rename(path_.path() + "/number", number());
  kept_.fds = std::move(copies);
  std::ofstream(current + ".next") << "MANIFEST-2";
  std::filesystem::rename(current + ".next", current);
  BeginLife(true, folder);
  EXPECT_EQ(in_place_->pending(), nullptr);
}

TEST_F(InPlaceTest, WithoutAViewOrWithAStoreThatRefusesNothingIsHandedOver) {
  BeginLife();
  (void)in_place_->Lineage(0, pool_.get());
  EXPECT_FALSE(in_place_->HandOver(*store_, {}, NodeId(1), pool_->boot_id()));
  (void)Install(5);
  (void)PutMany(kA, 7, "a");
  kept_.refuses = true;
  EXPECT_FALSE(Stop(5));
  BeginLife();
  EXPECT_EQ(in_place_->pending(), nullptr);
}

}  // namespace
}  // namespace ems::server
