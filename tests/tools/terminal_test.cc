// What must hold: columns line up, a bar appears only after its delay and only where it is wanted,
// and goes without a trace.
#include "tools/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace ems::terminal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TableTest, AlignsColumnsAndLeavesNoTrailingSpaces) {
  Table table({{"name", Align::kLeft}, {"bytes"}, {"note", Align::kLeft}});
  table.AddRow({"a", "5", "x"});
  table.AddRow({"longer", "12345", ""});
  EXPECT_EQ(table.Render(),
            "name    bytes  note\n"
            "a           5  x\n"
            "longer  12345\n");
}

TEST(TableTest, CountsCodePointsNotBytes) {
  Table table({{"k"}, {"v", Align::kLeft}});
  table.AddRow({"ü…", "1"});
  table.AddRow({"abc", "2"});
  EXPECT_EQ(table.Render(), "  k  v\n ü…  1\nabc  2\n");
}

TEST(TableTest, FillsMissingCellsAndDropsSurplusOnes) {
  Table table({{"a"}, {"b"}});
  table.AddRow({"1"});
  table.AddRow({"1", "2", "3"});
  EXPECT_EQ(table.Render(), "a  b\n1\n1  2\n");
}

TEST(BarTest, ShowsShareSpeedAndRest) {
  EXPECT_EQ(
      BarText("put", 500'000'000, 1'000'000'000, "bytes", seconds(5)),
      "put [###############---------------]  50 %  476.8 MiB of 953.7 MiB  0.10 GB/s  5 s left");
  EXPECT_EQ(BarText("", 10, 10, "rounds", seconds(2)),
            "[##############################] 100 %  10 rounds of 10 rounds  5 rounds/s");
}

TEST(BarTest, WithoutATotalShowsWhatIsDoneOrOnlyTheTime) {
  EXPECT_EQ(BarText("read", 2'000'000, 0, "bytes", seconds(1)), "read 1.9 MiB  0.00 GB/s");
  EXPECT_EQ(BarText("wait", 0, 0, "bytes", seconds(3)), "wait 3 s");
}

class ProgressBarTest : public ::testing::Test {
 protected:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string Drawn() {
    std::array<char, 4096> text{};
    std::rewind(file_.get());
    return std::string(text.data(), std::fread(text.data(), 1, text.size(), file_.get()));
  }
  std::unique_ptr<std::FILE, Closer> file_{std::tmpfile()};
  ManualClock clock_;
};

TEST_F(ProgressBarTest, DrawsNothingBeforeItsDelay) {
  {
    ProgressBar bar({.total = 10, .clock = &clock_, .out = file_.get()});
    clock_.Advance(milliseconds(999));
    bar.Update(5);
  }
  EXPECT_EQ(Drawn(), "");
}

TEST_F(ProgressBarTest, DrawsAtMostTenTimesASecond) {
  ProgressBar bar({.total = 1000, .unit = "x", .clock = &clock_, .out = file_.get()});
  clock_.Advance(seconds(1));
  for (uint64_t i = 0; i < 100; ++i) {
    bar.Update(i);
    clock_.Advance(milliseconds(10));
  }
  const std::string drawn = Drawn();
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), '\r'), 10);
}

TEST_F(ProgressBarTest, ClearsItsLineOnceAndForAll) {
  ProgressBar bar({.label = "L", .clock = &clock_, .out = file_.get()});
  clock_.Advance(seconds(2));
  bar.Update(0);
  bar.Clear();
  bar.Clear();
  EXPECT_EQ(Drawn(), "\rL 2 s\r     \r");
}

}  // namespace
}  // namespace ems::terminal
