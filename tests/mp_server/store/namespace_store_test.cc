#include "mp_server/store/namespace_store.h"

#include <gtest/gtest.h>

#include <list>
#include <random>
#include <unordered_map>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using testing::MakeValue;
using testing::VerifyValue;

class NamespaceStoreTest : public NamespaceFixture {};

TEST_F(NamespaceStoreTest, ValuesOfAllSizesComeBackExactly) {
  Make(64 * kMiB, 0, 8 * kMiB);
  std::vector<uint64_t> sizes = {
      0, 1, 63, 64, 65, kPieceBytes - 1, kPieceBytes, kPieceBytes + 1, kMiB, 5 * kMiB + 3};
  const SizeClasses& classes = SizeClasses::Get();
  for (uint8_t i = 0; i < classes.count(); i = static_cast<uint8_t>(i + 3)) {
    for (const int off : {-1, 0, 1})
      sizes.push_back(classes.at(i).value_bytes + static_cast<uint64_t>(off));
  }
  for (const uint64_t size : sizes) {
    for (const size_t key_bytes : {size_t{1}, size_t{64}, kKeyBytesMax}) {
      std::string key(key_bytes, 'k');
      key[0] = '\0';
      const std::string value = MakeValue("kv", key, size, size);
      const Status put = Put(*store_, key, value, true);
      ASSERT_TRUE(put.ok()) << put << " size " << size;
      const ObjectPin pin = store_->Get(key, true);
      ASSERT_TRUE(pin);
      ASSERT_EQ(AsText(pin.value()), value) << size;
      ASSERT_EQ(pin.checksum(), Checksum(AsBytes(value)));
      ASSERT_EQ(pin.piece_sums().size(), PieceCount(size));
      ASSERT_EQ(CombinePieces(pin.piece_sums()), pin.checksum());
    }
  }
}

TEST_F(NamespaceStoreTest, SameContentIsStoredOnceOtherContentNeedsOverwrite) {
  Make(8 * kMiB);
  bool stored = false;
  ASSERT_TRUE(Put(*store_, "k", "one", false, &stored).ok());
  EXPECT_TRUE(stored);
  ASSERT_TRUE(Put(*store_, "k", "one", false, &stored).ok());
  EXPECT_FALSE(stored);
  EXPECT_EQ(Put(*store_, "k", "two").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Read("k"), "one");
  const ObjectPin reader = store_->Get("k", false);
  ASSERT_TRUE(Put(*store_, "k", "two", true, &stored).ok());
  EXPECT_TRUE(stored);
  EXPECT_EQ(AsText(reader.value()), "one") << "a reader keeps what it began with";
  EXPECT_EQ(Read("k"), "two");
  EXPECT_EQ(store_->Usage().value_bytes, 6u) << "the old value counts until its reader is done";
}

TEST_F(NamespaceStoreTest, QuotaHoldsToTheByteAndRemovedBytesCountUntilUnpinned) {
  Make(8 * kMiB, 1000);
  ASSERT_TRUE(PutTick("a", std::string(600, 'a')).ok());
  ASSERT_TRUE(PutTick("b", std::string(400, 'b')).ok());
  ASSERT_TRUE(PutTick("c", std::string(1, 'c')).ok());
  EXPECT_EQ(Read("a"), "(miss)");
  EXPECT_EQ(store_->Usage().value_bytes, 401u);
  EXPECT_EQ(PutTick("d", std::string(1001, 'd')).code(), StatusCode::kOutOfRange);
  {
    const ObjectPin pin = store_->Get("b", false);
    EXPECT_TRUE(store_->Remove("b"));
    EXPECT_EQ(Read("b"), "(miss)");
    EXPECT_EQ(PutTick("e", std::string(1000, 'e')).code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(AsText(pin.value()), std::string(400, 'b'));
  }
  EXPECT_TRUE(PutTick("e", std::string(1000, 'e')).ok());
  EXPECT_FALSE(store_->Remove("b"));
}

// With uniform sizes the resident set is that of an exact LRU of the same byte capacity.
TEST_F(NamespaceStoreTest, ResidentSetEqualsThatOfAnExactLru) {
  constexpr uint64_t kValue = 16 * kKiB;
  constexpr size_t kCapacity = 200;
  Make(8 * kMiB, kCapacity * kValue);
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::list<int> order;  // front: warmest
  std::unordered_map<int, std::list<int>::iterator> model;
  for (int i = 0; i < 20000; ++i) {
    const int id = static_cast<int>(std::min(random() % 600, random() % 600));
    const std::string key = "block" + std::to_string(id);
    clock_.Advance(Duration(1));
    const bool hit = static_cast<bool>(store_->Get(key, true));
    const auto known = model.find(id);
    ASSERT_EQ(hit, known != model.end()) << "access " << i;
    if (hit) {
      order.splice(order.begin(), order, known->second);
      continue;
    }
    clock_.Advance(Duration(1));
    ASSERT_TRUE(Put(*store_, key, std::string(kValue, static_cast<char>(id))).ok());
    order.push_front(id);
    model[id] = order.begin();
    if (order.size() > kCapacity) {
      model.erase(order.back());
      order.pop_back();
    }
  }
  EXPECT_EQ(store_->Usage().objects, kCapacity);
  EXPECT_EQ(store_->Usage().value_bytes, kCapacity * kValue);
}

TEST_F(NamespaceStoreTest, APoolFullOfOneSizeMakesRoomForAnother) {
  Make(16 * kMiB, 0, 16 * kMiB);
  for (const uint64_t fill : {uint64_t{500}, 20 * kKiB, 64 * kKiB, 700 * kKiB}) {
    for (const uint64_t need : {uint64_t{64}, 36 * kKiB, 256 * kKiB, 3 * kMiB, 12 * kMiB}) {
      for (uint64_t i = 0; i * (fill + 192) < 17 * kMiB; ++i)
        ASSERT_TRUE(
            PutTick("f" + std::to_string(fill) + "." + std::to_string(i), std::string(fill, 'f'))
                .ok());
      const Status put = PutTick("n" + std::to_string(need), MakeValue("kv", "n", fill, need));
      ASSERT_TRUE(put.ok()) << put << ": " << need << " into a pool of " << fill;
      EXPECT_EQ(VerifyValue("kv", "n", Read("n" + std::to_string(need))), fill);
      store_->Remove("n" + std::to_string(need));
    }
  }
  EXPECT_LE(Memory().segment_bytes, 16 * kMiB);
}

TEST_F(NamespaceStoreTest, EverythingPinnedIsAnErrorWithinBoundedTimeAndHealsOnUnpin) {
  Make(8 * kMiB, 0, 8 * kMiB);
  std::vector<ObjectPin> pins;
  for (int i = 0;; ++i) {
    const std::string key = std::to_string(i);
    if (!PutTick(key, std::string(100 * kKiB, 'x')).ok()) break;
    pins.push_back(store_->Get(key, false));
    ASSERT_TRUE(pins.back());
  }
  EXPECT_GT(pins.size(), 60u);
  for (const uint64_t need : {uint64_t{64}, 100 * kKiB, 4 * kMiB}) {
    const TimePoint start = Clock::System().Now();
    const Status put = PutTick("more", std::string(need, 'y'));
    if (need > 1000) {
      EXPECT_EQ(put.code(), StatusCode::kResourceExhausted);
    }
    EXPECT_LT(Clock::System().Now() - start,
              std::chrono::seconds(1));  // 50 ms outside of sanitizers
    store_->Remove("more");
  }
  EXPECT_EQ(store_->Usage().pinned_objects, pins.size());
  pins.clear();
  EXPECT_EQ(store_->Usage().pinned_objects, 0u);
  EXPECT_TRUE(PutTick("more", std::string(4 * kMiB, 'y')).ok());
}

Hash128 ConstantHash(std::string_view) { return {42, 42}; }

TEST_F(NamespaceStoreTest, KeysThatCollideInAllBitsKeepTheirOwnValues) {
  Make(8 * kMiB, 0, 2 * kMiB, &ConstantHash);
  for (int i = 0; i < 200; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_TRUE(PutTick(key, MakeValue("kv", key, 5, 500)).ok());
  }
  for (int i = 0; i < 200; ++i) {
    const std::string key = "k" + std::to_string(i);
    EXPECT_EQ(VerifyValue("kv", key, Read(key)), 5u);
  }
  EXPECT_TRUE(store_->Remove("k3"));
  EXPECT_EQ(Read("k3"), "(miss)");
  EXPECT_NE(Read("k4"), "(miss)");
}

// Of a packed object.
const std::byte* HeadOf(const ObjectPin& pin, std::string_view key) {
  return pin.value().data() - PackedKeyBytes(key.size()) - kObjectHeaderBytes;
}

TEST_F(NamespaceStoreTest, ADamagedHeaderIsAMissAndIsCounted) {
  Make(8 * kMiB);
  for (const size_t at : {0u, 33u, 48u, 57u, 121u}) {
    ASSERT_TRUE(PutTick("k", "value").ok());
    {
      const ObjectPin pin = store_->Get("k", false);
      auto* header = const_cast<std::byte*>(HeadOf(pin, "k"));
      header[at] ^= std::byte{1};
    }
    EXPECT_EQ(Read("k"), "(miss)") << "byte " << at;
  }
  EXPECT_EQ(store_->Usage().damaged_objects, 5u);
  EXPECT_EQ(store_->Usage().value_bytes, 0u);
  EXPECT_TRUE(PutTick("k", "value").ok());
  EXPECT_EQ(Read("k"), "value");
}

TEST_F(NamespaceStoreTest, GenerationsGrowWithEachUseOfAChunk) {
  Make(8 * kMiB);
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(PutTick("k", "value").ok());
    const ObjectPin pin = store_->Get("k", false);
    const auto* header = reinterpret_cast<const ObjectHeader*>(HeadOf(pin, "k"));
    const uint64_t word = header->state_generation.load();
    EXPECT_EQ(static_cast<ChunkState>(word & 0xff), ChunkState::kValid);
    EXPECT_GT(word >> 8, last);
    last = word >> 8;
    store_->Remove("k");
  }
}

TEST_F(NamespaceStoreTest, AClosedNamespaceRefusesAndGivesMemoryBackWithItsLastPin) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("k", "value").ok());
  ObjectPin pin = store_->Get("k", false);
  auto room = store_->Reserve(SlotId(1), "late", 3);
  ASSERT_TRUE(room.ok());
  store_->Close();
  bool stored = true;
  Fill(*room, "abc");
  EXPECT_EQ(NamespaceStore::Publish(std::move(*room), 1, {}, &stored).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(AsText(pin.value()), "value");
  EXPECT_GT(pool_->stats().bytes_in_use, 0u);
  pin = ObjectPin();
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

TEST_F(NamespaceStoreTest, WithoutMemoryForSegmentsAPutIsRefusedAndLeavesNothing) {
  Make(2 * kMiB);
  auto taken = pool_->Acquire(1);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(PutTick("k", "value").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->Usage().value_bytes, 0u);
  EXPECT_EQ(store_->objects().entries().taken(), 0u);
  pool_->Release(std::move(*taken));
}

}  // namespace
}  // namespace ems::server
