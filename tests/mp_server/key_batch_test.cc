// What must hold: each key is answered for itself, however many are looked up together.
#include "mp_server/key_batch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

class KeyBatchTest : public SmallTierTest {
 protected:
  KeyBatchTest() : SmallTierTest("key_batch") {
    dram_->SetOwnedSlots(std::bitset<kSlotCount>().set());
  }
  void Store(const std::string& key, const std::string& value) {
    Result<Reservation> room = dram_->Reserve(kNs, SlotId(1), key, value.size());
    ASSERT_TRUE(room.ok()) << room.status();
    std::memcpy(room->value().data(), value.data(), value.size());
    HashPieces(AsBytes(value), room->piece_sums());
    bool stored = false;
    ASSERT_TRUE(ObjectStore::Publish(*std::move(room), Checksum(AsBytes(value)), {}, &stored).ok());
  }
};

TEST_F(KeyBatchTest, EachKeyHasItsOwnAnswer) {
  constexpr size_t kKeys = 2 * TieredNamespace::kFindMax + 7;
  std::vector<std::string> keys;
  for (size_t i = 0; i < kKeys; ++i) {
    keys.push_back("key-" + std::to_string(i));
    if (i % 3 == 0) Store(keys.back(), std::string(i + 1, 'v'));
  }
  const TieredNamespace objects = store_->Open(kNs);
  std::vector<wire::ItemResult> results(kKeys);
  KeyBatch batch(&objects, true);
  for (size_t i = 0; i < kKeys; ++i) batch.Add(keys[i], &results[i]);
  batch.Finish();
  for (size_t i = 0; i < kKeys; ++i) {
    EXPECT_EQ(results[i].status, i % 3 == 0 ? wire::WireStatus::kOk : wire::WireStatus::kMiss) << i;
    if (i % 3 != 0) continue;
    EXPECT_EQ(results[i].value_bytes, i + 1);
    EXPECT_EQ(results[i].tier, wire::ItemTier::kDram);
  }
}

TEST_F(KeyBatchTest, NoKeysAreNoAnswers) {
  const TieredNamespace objects = store_->Open(kNs);
  KeyBatch batch(&objects, true);
  batch.Finish();
}

}  // namespace
}  // namespace ems::server
