// What must hold: fields are those of the format string, whatever the values are; JSON is one
// object with each field as what it is, also for bytes that are not UTF-8; lines that differ in
// values of fields and in digits are of one kind.
#include "common/log_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ems::log {
namespace {

using Json = nlohmann::json;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <typename... Args>
LogLine Line(fmt::format_string<Args...> format, Args&&... args) {
  const fmt::string_view text = format;
  return MakeLogLine({text.data(), text.size()}, fmt::make_format_args(args...));
}
Json Parsed(const LogLine& line) {
  return Json::parse("{" + JsonOf("info", "test", line) + "}", nullptr, false);
}

TEST(LogLineTest, FieldsThatEndALineAreNoPartOfItsMessage) {
  const LogLine line =
      Line("view published term={} frozen={} boot={:x} share={}", 7, true, 255, 0.5);
  EXPECT_EQ(TextOf("test", line), "test: view published term=7 frozen=true boot=ff share=0.5");
  EXPECT_EQ(Parsed(line), (Json{{"level", "info"},
                                {"component", "test"},
                                {"message", "view published"},
                                {"term", 7},
                                {"frozen", true},
                                {"boot", "ff"},
                                {"share", 0.5}}));
}

TEST(LogLineTest, FieldsWithinASentenceStayInIt) {
  const LogLine line = Line("node forgotten name={}: {} that are gone", "a", 3);
  const Json json = Parsed(line);
  EXPECT_EQ(json["message"], "node forgotten name=a: 3 that are gone");
  EXPECT_EQ(json["name"], "a");
}

TEST(LogLineTest, QuotedFieldsHaveSeveralValuesAndBlanks) {
  const LogLine line = Line("refused pid={} reason=\"{}: {} of {{}}\"", 9, "no room", 5);
  EXPECT_EQ(line.text, "refused pid=9 reason=\"no room: 5 of {}\"");
  const Json json = Parsed(line);
  EXPECT_EQ(json["message"], "refused");
  EXPECT_EQ(json["pid"], 9);
  EXPECT_EQ(json["reason"], "no room: 5 of {}");
  EXPECT_EQ(Parsed(Line("hit={}% of address={}:{}", 5, "h", 1))["address"], "h:1");
}

TEST(LogLineTest, AValueMakesNoField) {
  const LogLine line = Line("registered name={}", "a admin=true level=off");
  ASSERT_THAT(line.fields, SizeIs(1));
  EXPECT_EQ(Parsed(line)["name"], "a admin=true level=off");
  EXPECT_THAT(Line("{}", "configuration a=1 b=2").fields, IsEmpty());
  EXPECT_THAT(Line("{}={}", "name", "value").fields, IsEmpty());
}

TEST(LogLineTest, ANameThatIsTakenStaysInTheMessage) {
  const Json json = Parsed(Line("odd time={} level={} id={} id={}", 1, 2, 3, 4));
  EXPECT_EQ(json["message"], "odd time=1 level=2 id=3 id=4");
  EXPECT_EQ(json["level"], "info");
  EXPECT_EQ(json["id"], 3);
  EXPECT_FALSE(json.contains("time"));
}

TEST(LogLineTest, JsonIsEscapedWhateverTheBytesAre) {
  const std::string odd = std::string("\"\\\n\t\0\xff\xfe ok \xc3\xa9 \xed\xa0\x80", 17);
  const LogLine line = Line("odd {} value=\"{}\"", odd, odd);
  const std::string text = JsonOf("info", "te\"st", line);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Json json = Json::parse("{" + text + "}", nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << text;
  const std::string value = json["value"];
  EXPECT_THAT(value, ::testing::StartsWith(std::string("\"\\\n\t\0\xef\xbf\xbd", 8)));
  EXPECT_THAT(value, ::testing::HasSubstr(" ok \xc3\xa9"));
  EXPECT_EQ(json["component"], "te\"st");
  EXPECT_EQ(Parsed(Line("x={}", std::numeric_limits<double>::quiet_NaN()))["x"], "nan");
  // As text a line stays one, too.
  EXPECT_EQ(TextOf("test", Line("a {}", "b\nc\x1b[0m")), "test: a b\\x0ac\\x1b[0m");
}

TEST(LogLineTest, ALineThatIsFieldsAloneKeepsAMessage) {
  EXPECT_EQ(Parsed(Line("x={} y={}", 1, 2))["message"], "x=1");
}

TEST(LogLineTest, SpecsIndexesAndWidthsAreThoseOfFmt) {
  EXPECT_EQ(Line("{1} {0:>3} {0}", 7, "a").text, "a   7 7");
  EXPECT_EQ(Line("{:>{}}|{}", "x", 4, "y").text, "   x|y");
}

TEST(LogLineTest, KindsAreOfTextAloneWithoutFieldsAndDigits) {
  EXPECT_EQ(Line("failed after {} ms node={}", 12, "a").kind,
            Line("failed after {} ms node={}", 3456, "b").kind);
  EXPECT_NE(Line("{} failed", "heartbeat").kind, Line("{} failed", "register").kind);
  EXPECT_NE(Line("failed node={}", 1).kind, Line("failed name={}", 1).kind);
}

}  // namespace
}  // namespace ems::log
