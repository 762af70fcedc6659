// What must hold: the first lines of a kind pass at once; of those that follow one says how many
// there were, with the last one's words, each window; memory is bounded, and nothing is lost
// uncounted.
#include "common/repeat_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ems::log {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RepeatFilterTest : public ::testing::Test {
 protected:
  // What is written then, each as "TEXT" or "TEXT xREPEATED/SECONDS".
  std::vector<std::string> Say(const std::string& text, uint64_t kind = 1, uint64_t most = 2) {
    std::vector<LineOut> out;
    filter_.Take(most, {.component = "test", .line = {.text = text, .kind = kind}}, clock_.Now(),
                 &out);
    return Shown(out);
  }
  std::vector<std::string> Due() {
    std::vector<LineOut> out;
    filter_.TakeDue(clock_.Now(), &out);
    return Shown(out);
  }
  static std::vector<std::string> Shown(const std::vector<LineOut>& lines) {
    std::vector<std::string> shown;
    for (const LineOut& line : lines) {
      shown.push_back(line.line.text);
      if (line.repeated > 0)
        shown.back() += fmt::format(" x{}/{}", line.repeated, line.within / seconds(1));
    }
    return shown;
  }

  ManualClock clock_;
  RepeatFilter filter_;
};

TEST_F(RepeatFilterTest, TheFirstOnesPassAndTheRestIsCounted) {
  EXPECT_THAT(Say("a 1"), ElementsAre("a 1"));
  EXPECT_THAT(Say("a 2"), ElementsAre("a 2"));
  clock_.Advance(seconds(9));
  for (int i = 3; i < 26; ++i) EXPECT_THAT(Say(fmt::format("a {}", i)), IsEmpty());
  EXPECT_THAT(Say("b", 2), ElementsAre("b"));
  clock_.Advance(seconds(5));
  EXPECT_THAT(Due(), IsEmpty());
  clock_.Advance(seconds(1));
  EXPECT_THAT(Due(), ElementsAre("a 25 x23/9"));
  EXPECT_THAT(Due(), IsEmpty());
}

TEST_F(RepeatFilterTest, WhatGoesOnIsSaidOnceAWindow) {
  int written = 0;
  for (int i = 0; i < 600; ++i) {  // each 100 ms, for a minute
    written += static_cast<int>(Say("a").size());
    clock_.Advance(milliseconds(100));
  }
  EXPECT_EQ(written, 2 + 3);
}

TEST_F(RepeatFilterTest, WhatWasSilentForAWindowIsNewAgain) {
  for (int i = 0; i < 3; ++i) Say("a");
  clock_.Advance(RepeatFilter::kWindow);
  EXPECT_THAT(Due(), SizeIs(1));
  clock_.Advance(RepeatFilter::kWindow);
  EXPECT_THAT(Say("a"), ElementsAre("a"));
}

TEST_F(RepeatFilterTest, AnyLineBringsWhatIsDue) {
  for (int i = 0; i < 3; ++i) Say("a");
  clock_.Advance(RepeatFilter::kWindow);
  EXPECT_THAT(Say("b", 2), ElementsAre("a x1/0", "b"));
}

TEST_F(RepeatFilterTest, KindsAreBoundedAndTheOldestIsSaidBeforeItGoes) {
  for (int i = 0; i < 3; ++i) Say("a", 0);
  for (uint64_t kind = 1; kind < RepeatFilter::kKindsMax; ++kind) {
    clock_.Advance(std::chrono::microseconds(1));
    EXPECT_THAT(Say("b", kind), SizeIs(1));
  }
  EXPECT_THAT(Say("c", 1000), ElementsAre("a x1/0", "c"));
  EXPECT_THAT(Say("a", 0), ElementsAre("a"));
}

TEST_F(RepeatFilterTest, WhatIsHeldBackIsBounded) {
  const std::string large(RepeatFilter::kLineBytesMax + 1, 'x');
  LineOut line{.component = "test",
               .line = {.text = large,
                        .message_bytes = large.size(),
                        .fields = {{.name = "x", .value = large}},
                        .kind = 1}};
  std::vector<LineOut> out;
  filter_.Take(0, std::move(line), clock_.Now(), &out);
  EXPECT_THAT(out, IsEmpty());
  filter_.TakeAll(&out);
  ASSERT_THAT(out, SizeIs(1));
  EXPECT_THAT(out[0].line.text, SizeIs(RepeatFilter::kLineBytesMax));
  EXPECT_EQ(out[0].line.message_bytes, RepeatFilter::kLineBytesMax);
  EXPECT_THAT(out[0].line.fields, IsEmpty());
  EXPECT_EQ(out[0].repeated, 1u);
}

}  // namespace
}  // namespace ems::log
