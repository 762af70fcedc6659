#include "mp_server/store/object_pin.h"

#include <gtest/gtest.h>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

class ObjectPinTest : public NamespaceFixture {};

TEST_F(ObjectPinTest, ADamagedValueGoesOnceAndItsSuccessorStays) {
  Make(8 * kMiB);
  const std::string value(200'000, 'v');
  ASSERT_TRUE(PutTick("k", value).ok());
  const ObjectPin first = store_->Get("k", false);
  const ObjectPin second = first.Share();
  EXPECT_TRUE(first.Intact());
  const_cast<std::byte*>(first.value().data())[150'000] ^= std::byte{1};
  EXPECT_FALSE(second.Intact());
  first.DropDamaged();
  EXPECT_EQ(Read("k"), "(miss)");
  ASSERT_TRUE(PutTick("k", value).ok());
  second.DropDamaged();
  EXPECT_TRUE(Read("k") == value) << "it is another object";
  EXPECT_EQ(store_->Usage().damaged_objects, 1u);
  EXPECT_EQ(store_->Usage().value_bytes, 2 * value.size()) << "the damaged one is still held";
}

TEST_F(ObjectPinTest, WithdrawingTakesThisObjectOutAndNotItsSuccessor) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("k", "first").ok());
  const ObjectPin first = store_->Get("k", false);
  ASSERT_TRUE(Put(*store_, "k", "second", true).ok());
  first.Withdraw();
  EXPECT_EQ(Read("k"), "second");
  const ObjectPin second = store_->Get("k", false);
  second.Withdraw();
  EXPECT_EQ(Read("k"), "(miss)");
  second.Withdraw();
  EXPECT_EQ(store_->Usage().damaged_objects + store_->Usage().evicted_objects, 0u);
}

TEST_F(ObjectPinTest, DamagedPieceSumsAreDamageToo) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("k", std::string(200'000, 'v')).ok());
  const ObjectPin pin = store_->Get("k", false);
  const_cast<uint64_t&>(pin.piece_sums()[2]) ^= 1;
  EXPECT_FALSE(pin.Intact());
}

TEST_F(ObjectPinTest, AMovedPinHoldsOnceAndAnAssignedOneLetsGoOfWhatItHeld) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("a", "one").ok());
  ASSERT_TRUE(PutTick("b", "two").ok());
  ObjectPin a = store_->Get("a", false);
  ObjectPin moved = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(AsText(moved.value()), "one");
  EXPECT_EQ(store_->Usage().pinned_objects, 1u);
  moved = store_->Get("b", false);
  EXPECT_EQ(store_->Usage().pinned_objects, 1u);
  EXPECT_EQ(AsText(moved.value()), "two");
  moved = ObjectPin();
  EXPECT_EQ(store_->Usage().pinned_objects, 0u);
}

TEST_F(ObjectPinTest, EachOfTwoPinsKeepsTheBytesOfARemovedObject) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("k", "value").ok());
  ObjectPin first = store_->Get("k", false);
  const ObjectPin second = first.Share();
  EXPECT_TRUE(second.linked());
  EXPECT_TRUE(store_->Remove("k"));
  EXPECT_FALSE(second.linked());
  first = ObjectPin();
  EXPECT_EQ(AsText(second.value()), "value");
  EXPECT_EQ(second.key(), "k");
  EXPECT_EQ(second.slot(), 7);
  EXPECT_EQ(store_->Usage().value_bytes, 5u);
}

TEST_F(ObjectPinTest, TheLastPinKeepsTheNamespace) {
  Make(8 * kMiB);
  ASSERT_TRUE(PutTick("k", "value").ok());
  ObjectPin pin = store_->Get("k", false);
  const std::weak_ptr<NamespaceStore> gone = store_;
  store_.reset();
  EXPECT_FALSE(gone.expired());
  EXPECT_EQ(AsText(pin.value()), "value");
  pin = ObjectPin();
  EXPECT_TRUE(gone.expired());
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

}  // namespace
}  // namespace ems::server
