// What must hold: byte counts that people write and read mean the same; text for logs never carries
// raw bytes.
#include "common/bytes.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace ems {
namespace {

TEST(BytesTest, ParseTakesPowersOf1024WithAnIAndOf1000Without) {
  const std::vector<std::pair<std::string_view, uint64_t>> cases = {{"0", 0},
                                                                    {"4096", 4096},
                                                                    {"1 B", 1},
                                                                    {"10k", 10'000},
                                                                    {"64KiB", 65'536},
                                                                    {"1.5 GB", 1'500'000'000},
                                                                    {"64MiB", 67'108'864},
                                                                    {"2Gi", 2 * kGiB},
                                                                    {"1TiB", 1024 * kGiB},
                                                                    {"0.5 KiB", 512}};
  for (const auto& [text, bytes] : cases) {
    const Result<uint64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << ToString(parsed.status());
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(BytesTest, ParseRefusesWhatIsNoByteCountAndNamesIt) {
  for (const std::string_view text :
       {"", "x", "-1", "1 XiB", "1 MiB extra", "nan", "inf", "1e30"}) {
    const Result<uint64_t> parsed = ParseBytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(Message(parsed.status()).find(text), std::string_view::npos) << text;
  }
}

TEST(BytesTest, FormatHasNoDecimalsForExactMultiplesAndOneOtherwise) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(64 * kMiB), "64 MiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(5000 * kGiB), "4.9 TiB");
}

TEST(BytesTest, ParseReadsBackWhatFormatWrites) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{512}, kKiB, 3 * kMiB, 7 * kGiB}) {
    EXPECT_EQ(ParseBytes(FormatBytes(bytes)).value(), bytes);
  }
}

TEST(BytesTest, RoundUpGivesTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 64), 0U);
  EXPECT_EQ(RoundUp(1, 64), 64U);
  EXPECT_EQ(RoundUp(64, 64), 64U);
  EXPECT_EQ(RoundUp(65, 64), 128U);
}

TEST(BytesTest, ToHexWritesTwoLowerCaseDigitsAByte) {
  EXPECT_EQ(ToHex(AsBytes(std::string_view("\x00\x0f\xff", 3))), "000fff");
  EXPECT_EQ(ToHex({}), "");
}

TEST(BytesTest, PrintableEscapesWhatIsNotAsciiAndCutsLongText) {
  EXPECT_EQ(Printable("plain key"), "plain key");
  EXPECT_EQ(Printable(std::string_view("a\0b\n", 4)), "a\\x00b\\x0a");
  EXPECT_EQ(Printable("back\\slash"), "back\\x5cslash");
  EXPECT_EQ(Printable("123456", 3), "123…");
}

}  // namespace
}  // namespace ems
