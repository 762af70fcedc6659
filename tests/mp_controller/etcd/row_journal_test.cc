#include "mp_controller/etcd/row_journal.h"

#include <gtest/gtest.h>

namespace ems::controller {
namespace {

TEST(RowJournalTest, AChangeComesBackAsItWas) {
  EtcdTransaction change;
  change.put = {{"a", ""}, {"b", std::string("\0P", 2)}};
  change.drop = {"", "c"};
  change.drop_range = {{"d", "e"}};
  const auto read = FromJournal(ToJournal(change));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->put, change.put);
  EXPECT_EQ(read->drop, change.drop);
  EXPECT_EQ(read->drop_range, change.drop_range);
}

TEST(RowJournalTest, ATornOrForeignOneIsDamage) {
  EtcdTransaction change;
  change.put = {{"key", "value"}};
  const std::string whole = ToJournal(change);
  for (size_t size = 1; size < whole.size(); ++size)
    EXPECT_EQ(FromJournal(whole.substr(0, size)).status().code(), StatusCode::kDataLoss) << size;
  EXPECT_EQ(FromJournal("X" + whole.substr(1)).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems::controller
