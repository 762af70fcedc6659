#include "bench/paper/paper_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PaperRowTest, ComparesOursWithThePapers) {
  const PaperRow row{.id = "a", .name = "a", .paper = 200, .ours = 190, .tolerance_percent = 5.1};
  EXPECT_DOUBLE_EQ(row.ratio(), 0.95);
  EXPECT_NEAR(row.off_percent(), 5, 1e-9);
  EXPECT_TRUE(row.within_tolerance());
  const PaperRow above{.id = "b", .name = "b", .paper = 200, .ours = 211, .tolerance_percent = 5};
  EXPECT_FALSE(above.within_tolerance());
}

TEST(PaperRowTest, ZeroIsOnlyLikeZero) {
  EXPECT_TRUE((PaperRow{.id = "a", .name = "a", .paper = 0, .ours = 0}).within_tolerance());
  EXPECT_FALSE((PaperRow{.id = "a", .name = "a", .paper = 0, .ours = 0.1}).within_tolerance());
}

TEST(PaperRowTest, ARowThatIsOffSaysSo) {
  PaperSection section{.title = "A table",
                       .rows = {{.id = "a", .name = "good", .paper = 100, .ours = 101},
                                {.id = "b", .name = "bad", .paper = 100, .ours = 150}}};
  std::string text = RenderSection(section);
  EXPECT_THAT(text, HasSubstr("within 10 %"));
  EXPECT_THAT(text, HasSubstr("50.0 % off, NOT within 10 %"));
  section.rows[1].known_percent = 60;
  section.rows[1].why = "the reason";
  text = RenderSection(section);
  EXPECT_THAT(text, HasSubstr("50.0 % off, known, not within 10 %"));
  EXPECT_THAT(text, HasSubstr("bad: the reason"));
  EXPECT_THAT(text, Not(HasSubstr("NOT within")));
}

}  // namespace
}  // namespace ems::bench
