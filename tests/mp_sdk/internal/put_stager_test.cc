// What must hold: large values for a server of this host lie in registered memory, byte for byte;
// all others are left alone.
#include "mp_sdk/internal/put_stager.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/shm_peer.h"

namespace ems::internal {
namespace {

using testing::Eventually;
using testing::MakeValue;
using testing::PoolImage;
using testing::ShmPeer;
using namespace std::chrono_literals;

// Even slots belong to a server of this host, odd ones to another.
ViewCache::View MakeView(const std::string& path) {
  std::vector<NodeInfo> nodes(2);
  for (uint32_t i = 0; i < 2; ++i) {
    nodes[i].id = NodeId(i + 1);
    nodes[i].name = "server" + std::to_string(i);
    nodes[i].boot_id = 1;
    nodes[i].data_address = "127.0.0.1:1";
    nodes[i].unix_path = path;
    nodes[i].host_id = i == 0 ? "here" : "elsewhere";
  }
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(1U + s % 2));
  return *DhtView::Make(ViewVersion(1, 1), std::move(nodes), slots, false);
}

class PutStagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    peer.Start();
    view = MakeView(peer.path());
    servers.Follow(view);
    memory = *StagingMemory::Create(48 * kMiB);
    servers.Offer(memory);
    ASSERT_TRUE(Eventually([&] { return servers.StagedFor(NodeId(1)).has_value(); }));
  }
  void Add(uint16_t slot, uint64_t bytes) {
    values.push_back(MakeValue("ns", std::to_string(values.size()), 1, bytes));
    BatchItem item;
    item.key = "key";
    item.slot = SlotId(slot);
    batch.items.push_back(item);
  }
  StagingBuffer Stage() {
    for (size_t i = 0; i < values.size(); ++i) batch.items[i].value = ConstBuffers(values[i]);
    return stager.Stage(&batch, *view, &servers, memory.get());
  }
  std::string At(uint64_t offset, uint64_t bytes) {
    return std::string(AsText(memory->memory().bytes().subspan(offset, bytes)));
  }

  PoolImage image;
  ShmPeer peer{&image};
  LocalServers servers{LocalServers::Options{
      .ns = PoolImage::kNs, .attach_timeout = 500ms, .host_id = "here", .token = {}}};
  ViewCache::View view;
  std::shared_ptr<StagingMemory> memory;
  PutStager stager;
  std::vector<std::string> values;
  Batch batch{
      .op = wire::Op::kPut, .flags = 0, .ns = {}, .deadline = Deadline::After(10s), .items = {}};
};

TEST_F(PutStagerTest, LargeValuesForThisHostAreCopiedAndOthersAreNot) {
  Add(0, PutStager::kValueBytesMin - 1);
  Add(0, 100'000);
  Add(1, 100'000);  // another host's
  Add(2, PutStager::kValueBytesMin);
  const StagingBuffer buffer = Stage();
  EXPECT_FALSE(batch.items[0].staged_offset);
  ASSERT_TRUE(batch.items[1].staged_offset);
  EXPECT_EQ(At(*batch.items[1].staged_offset, 100'000), values[1]);
  EXPECT_FALSE(batch.items[2].staged_offset);
  ASSERT_TRUE(batch.items[3].staged_offset);
  EXPECT_EQ(At(*batch.items[3].staged_offset, values[3].size()), values[3]);
}

TEST_F(PutStagerTest, LargeCallsAreCopiedMeanwhileAndSayHowFarTheyAre) {
  const std::string second = MakeValue("ns", "second", 2, 300'001);
  const ConstBytes bytes = AsBytes(second);
  const std::vector<ConstBytes> parts{bytes.first(1), bytes.subspan(1, 70'000),
                                      bytes.subspan(70'001)};
  Add(0, PutStager::kFollowBytesMin);
  batch.items[0].value = ConstBuffers(values[0]);
  BatchItem item;
  item.slot = SlotId(0);
  item.value = ConstBuffers(std::span<const ConstBytes>(parts));
  batch.items.push_back(item);
  const StagingBuffer buffer = stager.Stage(&batch, *view, &servers, memory.get());
  ASSERT_TRUE(batch.meanwhile);
  const auto progress = [&](const BatchItem& of) {
    return reinterpret_cast<const std::atomic<uint64_t>*>(memory->memory().bytes().data() +
                                                          of.staged_progress)
        ->load();
  };
  for (const BatchItem& one : batch.items) {
    ASSERT_TRUE(one.staged_offset);
    ASSERT_NE(one.staged_progress, wire::kAllThere);
    EXPECT_EQ(progress(one), 0u);
  }
  batch.meanwhile();
  EXPECT_EQ(At(*batch.items[0].staged_offset, values[0].size()), values[0]);
  EXPECT_EQ(At(*batch.items[1].staged_offset, second.size()), second);
  EXPECT_EQ(progress(batch.items[0]), values[0].size());
  EXPECT_EQ(progress(batch.items[1]), second.size());
}

TEST_F(PutStagerTest, CopyingMeanwhileStopsSoonAfterTheDeadline) {
  batch.deadline = Deadline::After(0s);
  Add(0, 4 * PutStager::kLookEvery);
  Add(0, PutStager::kLookEvery);
  const StagingBuffer buffer = Stage();
  ASSERT_TRUE(batch.meanwhile);
  batch.meanwhile();
  const auto progress = [&](size_t item) {
    const ConstBytes word = memory->memory().bytes().subspan(batch.items[item].staged_progress);
    return reinterpret_cast<const std::atomic<uint64_t>*>(word.data())->load();
  };
  EXPECT_EQ(progress(0), PutStager::kLookEvery);
  EXPECT_EQ(progress(1), 0u);
}

TEST_F(PutStagerTest, PartsAreGathered) {
  const std::string whole = MakeValue("ns", "parts", 1, 50'000);
  const ConstBytes bytes = AsBytes(whole);
  const std::vector<ConstBytes> parts{
      bytes.first(1), {}, bytes.subspan(1, 30'000), bytes.subspan(30'001)};
  BatchItem item;
  item.slot = SlotId(0);
  item.value = ConstBuffers(std::span<const ConstBytes>(parts));
  batch.items.push_back(item);
  const StagingBuffer buffer = stager.Stage(&batch, *view, &servers, memory.get());
  ASSERT_TRUE(batch.items[0].staged_offset);
  EXPECT_EQ(At(*batch.items[0].staged_offset, whole.size()), whole);
}

TEST_F(PutStagerTest, OneThatIsStagedAlreadyOrDoesNotFitIsLeftAlone) {
  Add(0, 100'000);
  batch.items[0].staged_offset = 12345;
  EXPECT_TRUE(Stage().bytes().empty());
  EXPECT_EQ(batch.items[0].staged_offset, 12345u);
  Add(0, 49 * kMiB);  // more than the memory
  EXPECT_TRUE(Stage().bytes().empty());
  EXPECT_FALSE(batch.items[1].staged_offset);
}

TEST_F(PutStagerTest, ABufferThatCameBackIsUsedAgain) {
  Add(0, 100'000);
  StagingBuffer first = Stage();
  const auto* where = first.bytes().data();
  stager.GiveBack(std::move(first));
  batch.items[0].staged_offset.reset();
  EXPECT_EQ(Stage().bytes().data(), where);
}

TEST_F(PutStagerTest, OneThatFindsNoRoomHasMoreMadeForTheNext) {
  ASSERT_EQ(memory->made_bytes(), StagingMemory::kFirstBytes);
  Add(0, 20 * kMiB);
  EXPECT_TRUE(Stage().bytes().empty()) << "this one goes over the socket";
  ASSERT_TRUE(Eventually([&] { return servers.StagedFor(NodeId(1))->bytes > 20 * kMiB; }));
  const StagingBuffer buffer = Stage();
  ASSERT_TRUE(batch.items[0].staged_offset);
  batch.meanwhile();
  EXPECT_EQ(At(*batch.items[0].staged_offset, values[0].size()), values[0]);
}

TEST_F(PutStagerTest, WhatAServerDoesNotMapIsNotUsedAndNoMoreIsMade) {
  peer.register_status = wire::WireStatus::kRetryLater;
  Add(0, 20 * kMiB);
  EXPECT_TRUE(Stage().bytes().empty());
  ASSERT_TRUE(Eventually([&] { return memory->made_bytes() > 20 * kMiB; }));
  ASSERT_TRUE(Eventually([&] { return peer.registered_bytes > 20 * kMiB; }));  // it was refused
  EXPECT_TRUE(Stage().bytes().empty());
  EXPECT_FALSE(memory->wants_more());
  values[0] = MakeValue("ns", "small", 1, 100'000);
  const StagingBuffer buffer = Stage();
  ASSERT_TRUE(batch.items[0].staged_offset) << "what it has mapped is used";
  EXPECT_LE(*batch.items[0].staged_offset + 100'000, StagingMemory::kFirstBytes);
}

TEST_F(PutStagerTest, OnlyWhatWouldGainWantsIt) {
  Add(1, 100'000);
  (void)Stage();
  EXPECT_FALSE(PutStager::Wants(batch, &servers));
  Add(0, 10);
  (void)Stage();
  EXPECT_FALSE(PutStager::Wants(batch, &servers));
  Add(0, 100'000);
  batch.items[2].value = ConstBuffers(values[2]);
  EXPECT_TRUE(PutStager::Wants(batch, &servers));
}

}  // namespace
}  // namespace ems::internal
