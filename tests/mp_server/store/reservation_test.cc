#include "mp_server/store/reservation.h"

#include <gtest/gtest.h>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

class ReservationTest : public NamespaceFixture {};

TEST_F(ReservationTest, ReservationsThatAreNotPublishedLeaveNothing) {
  Make(8 * kMiB, 100);
  {
    auto room = store_->Reserve(SlotId(1), "k", 100);
    ASSERT_TRUE(room.ok());
    EXPECT_EQ(store_->Usage().value_bytes, 100u);
    EXPECT_EQ(Read("k"), "(miss)");
  }
  EXPECT_EQ(store_->Usage().value_bytes, 0u);
  EXPECT_EQ(Memory().chunk_bytes, 0u);
  EXPECT_EQ(store_->objects().entries().taken(), 0u);
}

TEST_F(ReservationTest, KnowsWhatItWasMadeFor) {
  Make(8 * kMiB);
  const auto room = store_->Reserve(SlotId(1), "key", 200'000);
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->key(), "key");
  EXPECT_EQ(room->hash(), KeyHash("key"));
  EXPECT_EQ(room->ns(), store_->ref());
  EXPECT_EQ(room->value().size(), 200'000u);
  EXPECT_EQ(room->piece_sums().size(), PieceCount(200'000));
}

TEST_F(ReservationTest, AnAssignedOneGivesBackWhatItHad) {
  Make(8 * kMiB, 1000);
  auto first = store_->Reserve(SlotId(1), "a", 600);
  auto second = store_->Reserve(SlotId(1), "b", 300);
  ASSERT_TRUE(first.ok() && second.ok());
  *first = std::move(*second);
  EXPECT_FALSE(*second);
  EXPECT_EQ(first->key(), "b");
  EXPECT_EQ(store_->Usage().value_bytes, 300u);
  *first = Reservation();
  EXPECT_EQ(store_->Usage().value_bytes, 0u);
}

}  // namespace
}  // namespace ems::server
