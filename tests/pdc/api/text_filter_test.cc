// What must hold: however bytes are cut, the text is the same, valid, and without a trace of a stop
// string.
#include "pdc/api/text_filter.h"

#include <gtest/gtest.h>

#include <random>

namespace ems::pdc::api {
namespace {

struct Filtered {
  std::string text;
  bool stopped = false;
  bool operator==(const Filtered&) const = default;
};

Filtered InPieces(const std::string& bytes, const std::vector<std::string>& stops, size_t piece) {
  TextFilter filter(stops);
  Filtered result;
  for (size_t at = 0; at < bytes.size() && !filter.stopped(); at += piece) {
    result.text += filter.Feed(std::string_view(bytes).substr(at, piece));
  }
  result.stopped = filter.stopped();
  if (!result.stopped) result.text += filter.Finish();
  return result;
}

Filtered Filter(const std::string& bytes, const std::vector<std::string>& stops = {}) {
  const Filtered byte_by_byte = InPieces(bytes, stops, 1);
  for (size_t piece = 2; piece <= bytes.size(); ++piece) {
    EXPECT_EQ(InPieces(bytes, stops, piece).text, byte_by_byte.text) << piece;
  }
  return byte_by_byte;
}

TEST(TextFilterTest, CharactersComeWhole) {
  TextFilter filter({});
  EXPECT_EQ(filter.Feed("a\xC3"), "a");
  EXPECT_EQ(filter.Feed("\xA4\xF0\x9F"), "\xC3\xA4");
  EXPECT_EQ(filter.Feed("\x98"), "");
  EXPECT_EQ(filter.Feed("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(filter.Finish(), "");
}

TEST(TextFilterTest, InvalidBytesAreReplacedByMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Filter("a\xFF\x80"
                   "b")
                .text,
            "a" + r + r + "b");
  EXPECT_EQ(Filter("\xE2\x82").text, r);         // cut off at the end
  EXPECT_EQ(Filter("\xE2\x82x").text, r + "x");  // … in the middle
  EXPECT_EQ(Filter("\xC0\xAF").text, r + r);     // overlong
  EXPECT_EQ(Filter("\xE0\x9F\x80").text, r + r + r);
  EXPECT_EQ(Filter("\xED\xA0\x80").text, r + r + r);          // a surrogate
  EXPECT_EQ(Filter("\xF4\x90\x80\x80").text, r + r + r + r);  // beyond Unicode
  EXPECT_EQ(Filter("\xF4\x8F\xBF\xBF\xED\x9F\xBF").text, "\xF4\x8F\xBF\xBF\xED\x9F\xBF");
  // Unicode 15, §3.9, table 3-11.
  EXPECT_EQ(Filter("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41").text, r + r + r + r + "A");
}

TEST(TextFilterTest, StopStringsEndTheTextAndNeverShow) {
  EXPECT_EQ(Filter("hello STOP more", {"STOP"}), (Filtered{"hello ", true}));
  EXPECT_EQ(Filter("STOP", {"STOP"}), (Filtered{"", true}));
  EXPECT_EQ(Filter("hello STO", {"STOP"}), (Filtered{"hello STO", false}));
  EXPECT_EQ(Filter("SSTSTOP", {"STOP"}), (Filtered{"SST", true}));
  EXPECT_EQ(Filter("ababac", {"abac"}), (Filtered{"ab", true}));
  EXPECT_EQ(Filter("one\ntwo\n\nthree", {"\n\n", "four"}), (Filtered{"one\ntwo", true}));
  EXPECT_EQ(Filter("gr\xC3\xBC\xC3\x9F", {"\xC3\x9F"}), (Filtered{"gr\xC3\xBC", true}));
  EXPECT_EQ(Filter("turn\xFF after", {"\xFF"}), (Filtered{"turn", true}));
  // A character that the stop string cuts off.
  EXPECT_EQ(Filter("a\xE2\x82STOP", {"STOP"}), (Filtered{"a\xEF\xBF\xBD", true}));
  EXPECT_EQ(Filter("abc", {""}), (Filtered{"abc", false}));
}

TEST(TextFilterTest, WhatMayBeginAStopStringIsHeldBackAndNoMore) {
  TextFilter filter({"</end>", "</x"});
  EXPECT_EQ(filter.Feed("text <"), "text ");
  EXPECT_EQ(filter.Feed("/"), "");
  EXPECT_EQ(filter.Feed("en"), "");
  EXPECT_EQ(filter.Feed("t <"), "</ent ");
  EXPECT_EQ(filter.Finish(), "<");
  EXPECT_FALSE(filter.stopped());
}

TEST(TextFilterTest, RandomTextsEndAtTheFirstStopString) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    auto text = [&](size_t bytes) {
      std::string made(bytes, 'a');
      for (char& c : made) c = static_cast<char>('a' + random() % 2);
      return made;
    };
    const std::string bytes = text(random() % 40);
    const std::string stop = text(1 + random() % 5);
    const size_t at = bytes.find(stop);
    for (const size_t piece : {1, 2, 3, 7}) {
      EXPECT_EQ(InPieces(bytes, {stop}, piece),
                (Filtered{bytes.substr(0, at), at != std::string::npos}))
          << bytes << " " << stop << " " << piece;
    }
  }
}

}  // namespace
}  // namespace ems::pdc::api
