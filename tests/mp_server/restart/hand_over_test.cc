// What must hold: what is handed over is what is linked; nothing of it changes any more; and what a
// client on this host looks at stays out, for as long as it may look.
#include "mp_server/restart/hand_over.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <new>

#include "mp_server/store/namespace_store.h"
#include "tests/mp_server/restart/restart_fixture.h"
#include "tests/mp_server/shm/shared_reader.h"

namespace ems::server {
namespace {

class HandOverTest : public RestartFixture {
 protected:
  // A client of kA that has mapped the control page before.
  void Share() {
    store_->SetCurrent(ViewVersion(1, 5), TimePoint::max());
    auto shared = store_->Share(kA);
    ASSERT_TRUE(shared.ok()) << shared.status();
    (*shared)->MaintainShared();
    auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    ASSERT_TRUE(made.ok()) << made.status();
    page_ = new (made->bytes().data()) shm::SessionPage;
    memory_ = std::make_shared<const fabric::ShmSegment>(*std::move(made));
    (*shared)->sharing().AddSession(1, memory_);
    const auto control = (*shared)->sharing().index()->OpenControl();
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = std::make_unique<Mapping>(control->fd, control->bytes);
  }
  uint64_t GenerationOf(const std::string& key) {
    const ObjectPin pin = store_->Get(kA, key, false);
    const auto* header =
        reinterpret_cast<const ObjectHeader*>(pin.key().data() - kObjectHeaderBytes);
    return header->state_generation.load() >> 8;
  }
  void Look(uint64_t generation) {
    page_->hazard_end = 1;
    page_->hazards[0] = generation << 8;
  }

  shm::SessionPage* page_ = nullptr;
  std::shared_ptr<const fabric::ShmSegment> memory_;
  std::unique_ptr<Mapping> control_;
};

TEST_F(HandOverTest, CountsWhatIsLinkedAndPutsItsSegmentsAndARecord) {
  BeginCold();
  (void)PutMany(kA, 14, "a");
  ASSERT_EQ(Put(kB, "b", 1000), OkStatus());
  ASSERT_TRUE(store_->Remove(kA, "a0"));
  const auto sealed = HandOver();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->objects, 14u);
  EXPECT_EQ(sealed->left_segments, 0u);
  EXPECT_EQ(kept_.fds.size(), sealed->segments + 1);
}

TEST_F(HandOverTest, WithoutRoomInTheStoreNothingIsHandedOver) {
  BeginCold();
  (void)PutMany(kA, 7, "a");
  kept_.refuses = true;
  EXPECT_EQ(HandOver().status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(kept_.fds.empty());
}

TEST_F(HandOverTest, AThreadThatStillWritesEndsTheProcess) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  const ObjectPin pin = store_->Get(kA, "k", false);
  KeptFdStore store(&kept_);
  ASSERT_TRUE(Seal(*store_, Head(), &store).ok());
  EXPECT_DEATH(const_cast<std::byte*>(pin.value().data())[0] = std::byte{1}, "");
}

TEST_F(HandOverTest, WhatIsDestroyedAfterwardsLeavesTheBytesAlone) {
  BeginCold();
  const auto put = PutMany(kA, 21, "a");
  ASSERT_TRUE(HandOver().ok());  // which ends the first life
  ASSERT_EQ(BeginNext(), OkStatus());
  EXPECT_EQ(Adopt(Grant(6), Table({kA, kB})).objects, 21u);
  ExpectAll(kA, put);
}

TEST_F(HandOverTest, NoReaderBeginsOrEndsAfterwards) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  Share();
  const auto* page = control_->as<const shm::ControlPage>();
  const uint32_t shard = shm::ShardOf(KeyHash("k"));
  ASSERT_NE(shm::TableOf(page->shards[shard].load()), 0u);
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(page->closed.load(), 1u);
  EXPECT_EQ(page->shards[shard].load(), shm::ShardWord(0, true));
}

TEST_F(HandOverTest, ASegmentThatAClientLooksIntoStaysOut) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  ASSERT_EQ(Put(kB, "b", 1000), OkStatus());
  Share();
  Look(GenerationOf("k"));
  const auto sealed = HandOver();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->left_segments, 1u);
  EXPECT_EQ(sealed->objects, 1u);  // the other namespace's
}

TEST_F(HandOverTest, SoDoesOneWithAnObjectThatIsGoneAndStillLookedAt) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  ASSERT_EQ(Put(kA, "neighbour", 1000), OkStatus());
  Share();
  Look(GenerationOf("k"));
  ASSERT_TRUE(store_->Remove(kA, "k"));
  const auto sealed = HandOver();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->left_segments, 1u);
  EXPECT_EQ(sealed->objects, 0u);
}

TEST_F(HandOverTest, AlsoWhenItsSessionEndsInBetween) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  Share();
  Look(GenerationOf("k"));
  ShutSharing(*store_);
  store_->Open(kA)->sharing().RemoveSession(1);  // as when the service of the sessions stops
  const auto sealed = HandOver();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->left_segments, 1u);
  EXPECT_EQ(sealed->objects, 0u);
}

}  // namespace
}  // namespace ems::server
