// What must hold: a figure that is named once is in the table and in the document, each in its own
// way.
#include "bench/harness/figure_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace ems::bench {
namespace {

FigureTable TwoRows() {
  FigureTable table;
  for (const double speed : {1.234, std::nan("")}) {
    table.AddRow();
    table.Label("name", "id", "one");
    table.Figure("GB/s", "gb_per_s", speed, 1);
    table.Count("", "calls", 7);
    table.Cell("share", "50 %");
    table.Field("share", 0.5);
    table.Figure("p99", "", 2, 0);
  }
  return table;
}

TEST(FigureTableTest, RowsAreShownUnderTheTitlesOfTheFirst) {
  EXPECT_EQ(TwoRows().Render(),
            "name  GB/s  share  p99\n"
            "one    1.2   50 %    2\n"
            "one      -   50 %    2\n");
}

TEST(FigureTableTest, TheDocumentHasWholeFigures) {
  const FigureTable table = TwoRows();
  EXPECT_EQ(table.json().size(), 2U);
  EXPECT_EQ(
      table.json()[0],
      (nlohmann::ordered_json{{"id", "one"}, {"gb_per_s", 1.234}, {"calls", 7}, {"share", 0.5}}));
}

TEST(FigureTableTest, WithoutRowsThereIsNothing) {
  const FigureTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.json(), nlohmann::ordered_json::array());
}

TEST(FigureTableDeathTest, ARowOfOtherTitlesIsABug) {
  FigureTable table = TwoRows();
  table.AddRow();
  EXPECT_DEATH(table.Cell("other", "1"), "other");
}

}  // namespace
}  // namespace ems::bench
