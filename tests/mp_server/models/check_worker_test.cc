// What must hold: blocks are added in order, wherever they lie, up to the first that is not there;
// the sum of all of them is told with their digests.
#include "mp_server/models/check_worker.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <utility>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/sha256.h"
#include "model_files/format/file_sum.h"
#include "tests/mp_server/models/model_rig.h"
#include "tests/support/memory_server.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

constexpr uint64_t kBlockBytes = 70'000;

class CheckWorkerTest : public SmallTierTest {
 protected:
  CheckWorkerTest() : SmallTierTest("check") {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->files = {{"w", 3 * kBlockBytes, "t"}};
    for (uint32_t i = 0; i < 3; ++i) {
      blocks_.push_back(std::string(kBlockBytes, static_cast<char>('a' + i)));
      content_ += blocks_.back();
      manifest->blocks.push_back({0, i * kBlockBytes, kBlockBytes, {static_cast<std::byte>(i)}});
      task_.digests.push_back(Sha256().Digest(AsBytes(blocks_.back())));
    }
    manifest->files[0].sum = "md5:" + ToHex(*Md5(AsBytes(content_)));
    task_.manifest = manifest;
    task_.ns = kNs;
    ownership_.SetSelf(NodeId(1));
    ownership_.SetActive(1000);  // nobody else has the slots
    Own({});
  }
  // All slots are this server's, but those of these blocks.
  void Own(const std::vector<uint32_t>& of_peer) {
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(1));
    for (const uint32_t block : of_peer) slots.set_owner(SlotOfBlock(block), NodeId(2));
    std::vector<NodeInfo> nodes(2);
    nodes[0].id = NodeId(1);
    nodes[1].id = NodeId(2);
    nodes[1].data_address = peer_.address();
    const auto view = *DhtView::Make(ViewVersion(1, ++epoch_), nodes, slots, false);
    views_.Install(view);
    peer_.store.SetView(view->version());
    store_->SetOwnedSlots({view->version(), ownership_.Install(*view)});
  }
  SlotId SlotOfBlock(uint32_t block) const {
    return SlotOf(kNs.id, model::RouteKey(task_.manifest->blocks[block].route));
  }
  Status Run() {
    outcome_ = {};
    return checks_.Run(&task_, &buffer_, &outcome_);
  }
  std::string Sum() { return "md5:" + task_.hasher->Finish(); }
  void Put(size_t block) {
    auto reserved = dram_->Reserve(kNs, SlotOfBlock(static_cast<uint32_t>(block)),
                                   model::BlockKey(task_.digests[block]), kBlockBytes);
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    PieceHasher hasher;
    hasher.Start(reserved->piece_sums());
    CopyValue(reserved->value(), AsBytes(blocks_[block]).data(), &hasher);
    bool stored = false;
    ASSERT_TRUE(ObjectStore::Publish(*std::move(reserved), hasher.Finish(), {}, &stored).ok());
  }

  std::vector<std::string> blocks_;
  std::string content_;
  ModelPull::CheckTask task_;
  Ownership ownership_{&Clock::System()};
  testing::MemoryServer peer_;
  ViewCache views_;
  uint64_t epoch_ = 0;
  MetricsRegistry registry_;
  PullTable table_{{.controller = "127.0.0.1:1",
                    .boot_id = 7,
                    .store = store_.get(),
                    .ownership = &ownership_,
                    .views = &views_,
                    .metrics = &registry_,
                    .pulls_max = 8,
                    .sources = {}}};
  BlockPuller puller_{store_.get(), &ownership_, &table_.stop, 8};
  CheckWorker checks_{&table_, &puller_};
  std::vector<std::byte> buffer_;
  ModelPull::CheckOutcome outcome_;
};

TEST_F(CheckWorkerTest, AddsAllBlocksThatAreHere) {
  for (size_t i = 0; i < 3; ++i) Put(i);
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_EQ(outcome_.added, 3U);
  EXPECT_FALSE(outcome_.missing);
  EXPECT_EQ(Sum(), task_.manifest->files[0].sum);
}

TEST_F(CheckWorkerTest, AddsBlocksThatAnotherServerKeeps) {
  Own({1});
  Put(0);
  Put(2);
  peer_.store.Insert(model::BlockKey(task_.digests[1]), blocks_[1]);
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_EQ(outcome_.added, 3U);
  EXPECT_EQ(Sum(), task_.manifest->files[0].sum);
}

TEST_F(CheckWorkerTest, StopsAtTheFirstThatIsNotThereAndGoesOnFromThere) {
  Put(0);
  Put(2);
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_EQ(outcome_.added, 1U);
  EXPECT_EQ(outcome_.missing, 1U);
  Put(1);
  task_.first = 1;
  task_.digests.erase(task_.digests.begin());
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_EQ(outcome_.added, 2U);
  EXPECT_EQ(Sum(), task_.manifest->files[0].sum);
}

// It may have them again in a moment, or be out of the view.
TEST_F(CheckWorkerTest, OfAServerThatCannotBeAskedNothingIsMissing) {
  Own({1});
  Put(0);
  peer_.server->Stop(Duration(0));
  EXPECT_EQ(Run().code(), StatusCode::kUnavailable);
  EXPECT_EQ(outcome_.added, 1U) << "it counts";
  EXPECT_FALSE(outcome_.missing);
}

// Whoever put it there: it is brought in again, not looked for again and again.
TEST_F(CheckWorkerTest, ABlockOfAnotherSizeIsNotHere) {
  Put(0);
  task_.digests[1] = task_.digests[0];
  auto manifest = std::make_shared<model::Manifest>(*task_.manifest);
  manifest->blocks[1].bytes -= 1;
  manifest->blocks[2].offset -= 1;
  task_.manifest = manifest;
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_EQ(outcome_.added, 1U);
  EXPECT_EQ(outcome_.missing, 1U);
}

TEST_F(CheckWorkerTest, ASumThatTheControllerDoesNotHearIsNotTold) {
  task_.sum = "0123456789abcdef0123456789abcdef";
  EXPECT_FALSE(Run().ok());
  EXPECT_FALSE(outcome_.told);
}

// As in FIPS mode: asked for what is approved alone, libcrypto has no MD5 here.
TEST_F(CheckWorkerTest, WithoutMd5TheReasonIsSaid) {
  Put(0);
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const Status refused = Run();
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
}

using ToldSumTest = ModelRigTest;

TEST_F(ToldSumTest, ASumIsOfTheVersionWhoseBlocksWereAddedUp) {
  const uint32_t id = Add("v1", /*with_sum=*/true);
  Begin(id, true);
  ModelPull::CheckTask task;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    Done(Next(id));
    ASSERT_EQ(Tell(id, block), OkStatus());
  }
  table_.With(id, [&](ModelPull& pull) { task = pull.NextCheck().value_or(task); });
  ASSERT_NE(task.manifest_checksum, 0U);
  task.sum = ToHex(*Md5(AsBytes(Content())));
  const uint64_t right = std::exchange(task.manifest_checksum, 7);
  CheckWorker checks(&table_, nullptr);
  ModelPull::CheckOutcome outcome;
  EXPECT_EQ(checks.Run(&task, nullptr, &outcome), OkStatus());
  EXPECT_EQ(Get(id).blocks_known(), 0U);
  task.manifest_checksum = right;
  EXPECT_EQ(checks.Run(&task, nullptr, &outcome), OkStatus());
  EXPECT_EQ(Get(id).blocks_known(), kBlocks);
}

}  // namespace
}  // namespace ems::server
