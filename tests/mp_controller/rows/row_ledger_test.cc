// What must hold: a ledger adds up for the rows that it counts and for no others; a note is the
// last one that was set, or, when that is damaged, the one before.
#include "mp_controller/rows/row_ledger.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

TEST(RowLedgerTest, AddsUpInAnyOrderAndForTheseRowsAlone) {
  RowLedger one, other;
  one.Add("a", "1");
  one.Add("b", "2");
  other.Add("b", "2");
  other.Add("c", "3");
  EXPECT_NE(one.sum, other.sum);
  other.Take("c", "3");
  other.Add("a", "1");
  EXPECT_EQ(one.sum, other.sum);
  RowLedger swapped;
  swapped.Add("a", "2");
  swapped.Add("b", "1");
  EXPECT_NE(swapped.sum, one.sum);
}

TEST(RowLedgerTest, IsReadAsItWasWrittenOrNotAtAll) {
  const auto read = RowLedger::FromText(RowLedger{.changes = 7, .sum = ~uint64_t{0}}.ToText());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->changes, 7U);
  EXPECT_EQ(read->sum, ~uint64_t{0});
  for (const char* text : {"", "7", "7 ", " 7", "7 x", "x 7", "7 8 9"})
    EXPECT_FALSE(RowLedger::FromText(text)) << text;
}

TEST(ChangeNoteTest, TheLastOneIsThereAfterReopening) {
  const TempDir dir;
  const std::string path = dir.path() + "/NOTE";
  for (uint64_t change = 1; change < 5; ++change) {
    Result<ChangeNote> note = ChangeNote::Open(path);
    ASSERT_TRUE(note.ok()) << note.status();
    EXPECT_EQ(note->last(), change - 1);
    note->Set(change);
    EXPECT_EQ(note->last(), change);
  }
  EXPECT_EQ(ChangeNote::Open(dir.path()).status().code(), StatusCode::kUnavailable);
}

TEST(ChangeNoteTest, ADamagedOneIsTheOneBefore) {
  const TempDir dir;
  const std::string path = dir.path() + "/NOTE";
  {
    Result<ChangeNote> note = ChangeNote::Open(path);
    ASSERT_TRUE(note.ok());
    note->Set(7);  // in the second place
    note->Set(8);  // in the first
  }
  for (int bit = 0; bit < 128; ++bit) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(bit / 8);
    const int byte = file.get();
    file.seekp(bit / 8);
    file.put(static_cast<char>(byte ^ (1 << bit % 8)));
    file.close();
    EXPECT_EQ(ChangeNote::Open(path)->last(), 7U) << bit;
    std::fstream again(path, std::ios::in | std::ios::out | std::ios::binary);
    again.seekp(bit / 8);
    again.put(static_cast<char>(byte));
  }
  EXPECT_EQ(ChangeNote::Open(path)->last(), 8U);
}

}  // namespace
}  // namespace ems::controller
