// What must hold: the state that is handed on is that of the bytes that are here, up to the first
// block that is not.
#include "mp_server/file_checker.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/sha256.h"
#include "ems_model/format/file_sum.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

constexpr uint64_t kBlockBytes = 70'000;

class FileCheckerTest : public SmallTierTest {
 protected:
  FileCheckerTest() : SmallTierTest("check") {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->files = {{"w", 3 * kBlockBytes, "t"}};
    for (uint32_t i = 0; i < 3; ++i) {
      blocks_.push_back(std::string(kBlockBytes, static_cast<char>('a' + i)));
      content_ += blocks_.back();
      manifest->blocks.push_back({0, i * kBlockBytes, kBlockBytes, {}});
      task_.digests.push_back(Sha256().Digest(AsBytes(blocks_.back())));
    }
    manifest->files[0].sum = "md5:" + ToHex(*Md5(AsBytes(content_)));
    task_.manifest = manifest;
    // All slots are this server's.
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(1));
    std::vector<NodeInfo> nodes(1);
    nodes[0].id = NodeId(1);
    const ViewVersion version(1, 1);
    ownership_.SetSelf(NodeId(1));
    store_->SetOwnedSlots(
        {version, ownership_.Install(**DhtView::Make(version, nodes, slots, false))});
    task_.ns = kNs;
    task_.state = model::FileHasher(model::FileSum{}).Save();
  }
  void Put(size_t block) {
    auto reserved =
        dram_->Reserve(kNs, SlotId(5), model::BlockKey(task_.digests[block]), kBlockBytes);
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    PieceHasher hasher;
    hasher.Start(reserved->piece_sums());
    CopyValue(reserved->value(), AsBytes(blocks_[block]).data(), &hasher);
    bool stored = false;
    ASSERT_TRUE(ObjectStore::Publish(*std::move(reserved), hasher.Finish(), {}, &stored).ok());
  }
  static std::string Sum(const std::string& state) {
    model::FileHasher hasher(model::FileSum{});
    EXPECT_EQ(hasher.Restore(state, 3 * kBlockBytes), OkStatus());
    return "md5:" + hasher.Finish();
  }

  std::vector<std::string> blocks_;
  std::string content_;
  ModelPull::CheckTask task_;
  Ownership ownership_{&Clock::System()};
  StopFlag stop_;
  BlockPuller puller_{store_.get(), &ownership_, &stop_, 8};
  FileChecker checker_{&puller_};
};

TEST_F(FileCheckerTest, AddsAllBlocksThatAreHere) {
  for (size_t i = 0; i < 3; ++i) Put(i);
  const auto added = checker_.Add(task_);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(added->blocks, 3U);
  EXPECT_FALSE(added->missing);
  EXPECT_EQ(Sum(added->state), task_.manifest->files[0].sum);
}

TEST_F(FileCheckerTest, StopsAtTheFirstThatIsNot) {
  Put(0);
  Put(2);
  const auto added = checker_.Add(task_);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(added->blocks, 1U);
  EXPECT_EQ(added->missing, 1U);
  Put(1);
  task_.first = 1;
  task_.state = added->state;
  task_.digests.erase(task_.digests.begin());
  const auto rest = checker_.Add(task_);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(Sum(rest->state), task_.manifest->files[0].sum);
}

TEST_F(FileCheckerTest, RefusesAStateThatMakesNoSense) {
  task_.state = "x";
  EXPECT_EQ(checker_.Add(task_).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileCheckerTest, RefusesAStateOfOtherBytesThanThoseBeforeIt) {
  Put(1);
  task_.first = 1;
  task_.digests.erase(task_.digests.begin());
  EXPECT_EQ(checker_.Add(task_).status().code(), StatusCode::kInvalidArgument);
}

// Whoever put it there: it is brought in again, not looked for again and again.
TEST_F(FileCheckerTest, ABlockOfAnotherSizeIsNotHere) {
  Put(0);
  task_.digests[1] = task_.digests[0];
  auto manifest = std::make_shared<model::Manifest>(*task_.manifest);
  manifest->blocks[1].bytes -= 1;
  manifest->blocks[2].offset -= 1;
  task_.manifest = manifest;
  const auto added = checker_.Add(task_);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(added->blocks, 1U);
  EXPECT_EQ(added->missing, 1U);
}

// As in FIPS mode: asked for what is approved alone, libcrypto has no MD5 here.
TEST_F(FileCheckerTest, WithoutMd5TheReasonIsSaid) {
  Put(0);
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const auto added = checker_.Add(task_);
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_EQ(added.status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ems::server
