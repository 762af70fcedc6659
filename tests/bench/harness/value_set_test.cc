// What must hold: a walk meets every object once a turn and keeps neighbours apart; bytes show
// which object and which Put they are of.
#include "bench/harness/value_set.h"

#include <gtest/gtest.h>

#include <set>

namespace ems::bench {
namespace {

TEST(ValueSetTest, WalkMeetsEachObjectOnceATurn) {
  for (const uint64_t count : {1U, 2U, 3U, 5U, 64U, 1000U, 1024U, 1618U}) {
    const ValueSet values("salt", 16, count);
    std::set<uint64_t> met;
    for (uint64_t step = 0; step < count; ++step) met.insert(values.Walk(step));
    EXPECT_EQ(met.size(), count);
    EXPECT_LT(*met.rbegin(), count);
    EXPECT_EQ(values.Walk(count), values.Walk(0));
  }
}

TEST(ValueSetTest, NeighboursOfAWalkAreFarApart) {
  const ValueSet values("salt", 16, 1024);
  for (uint64_t step = 0; step < 1023; ++step) {
    const uint64_t a = values.Walk(step), b = values.Walk(step + 1);
    EXPECT_GT(a > b ? a - b : b - a, 300U);
  }
}

TEST(ValueSetTest, BytesTellObjectVersionSaltAndLength) {
  const ValueSet values("salt", 100, 4), others("another", 100, 4);
  std::vector<std::byte> bytes(100);
  values.Fill(1, 7, bytes);
  EXPECT_TRUE(values.Matches(1, 7, bytes));
  EXPECT_FALSE(values.Matches(1, 8, bytes));
  EXPECT_FALSE(values.Matches(2, 7, bytes));
  EXPECT_FALSE(others.Matches(1, 7, bytes));
  EXPECT_FALSE(values.Matches(1, 7, ConstBytes(bytes).first(99)));
  bytes[57] ^= std::byte{1};
  EXPECT_FALSE(values.Matches(1, 7, bytes));
}

TEST(ValueSetTest, KeysAreDistinct) {
  const ValueSet values("salt", 16, 500);
  std::set<std::string> keys;
  for (uint64_t i = 0; i < values.count(); ++i) keys.insert(values.key(i));
  EXPECT_EQ(keys.size(), 500U);
}

}  // namespace
}  // namespace ems::bench
