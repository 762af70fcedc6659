// What must hold: JSON is always valid, complaints name what failed and what to do.
#include "tools/emsctl/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tools/emsctl/context.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

TEST(OutputTest, JsonOfTextThatIsNotUtf8IsStillJson) {
  const std::string text = JsonText({{"key", "a\xff"}});
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << text;
  EXPECT_EQ(parsed["key"], "a\xef\xbf\xbd");
}

TEST(OutputTest, ComplaintNamesTheThingTheCodeAndTheWayOut) {
  const Context context;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Complain(context, "controller x:1", Error(StatusCode::kUnavailable, "refused")), 4);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("emsctl: controller x:1: UNAVAILABLE: refused\n"));
  EXPECT_THAT(text, HasSubstr("EMS_CONTROLLER"));
}

TEST(OutputTest, WithJsonEachComplaintIsADocumentOnOneLine) {
  Context context;
  context.json = true;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Complain(context, "x", Error(StatusCode::kUnavailable, "a\n\"b\"")), 4);
  EXPECT_EQ(Complain(context, Error(StatusCode::kNotFound, "no x")), 3);
  EXPECT_EQ(ComplainOfUsage(context, "what?"), 2);
  Remark(context, "note", "so");
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  std::vector<nlohmann::json> said;
  for (std::string line; std::getline(lines, line);)
    said.push_back(nlohmann::json::parse(line, nullptr, false));
  ASSERT_EQ(said.size(), 4U);
  EXPECT_EQ(said[0]["error"]["code"], "UNAVAILABLE");
  EXPECT_EQ(said[0]["error"]["message"], "x: a\n\"b\"");
  EXPECT_TRUE(said[0]["error"].contains("advice"));
  EXPECT_EQ(said[1]["error"], nlohmann::json({{"code", "NOT_FOUND"}, {"message", "no x"}}));
  EXPECT_EQ(said[2]["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(said[3], nlohmann::json({{"note", "so"}}));
}

TEST(OutputTest, AnExitCodeSaysWhetherItIsMissingOrOutOfReach) {
  EXPECT_EQ(ExitCodeOf(StatusCode::kNotFound), 3);
  EXPECT_EQ(ExitCodeOf(StatusCode::kUnavailable), 4);
  EXPECT_EQ(ExitCodeOf(StatusCode::kDeadlineExceeded), 4);
  EXPECT_EQ(ExitCodeOf(StatusCode::kFailedPrecondition), 1);
}

TEST(OutputTest, AResultIsTextOrADocument) {
  const auto shown = [](bool json) {
    Context context;
    context.json = json;
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(Show(context, nlohmann::ordered_json::object({{"bytes", 3}}), "3 bytes\n"), kExitOk);
    EXPECT_EQ(ShowDone(context, "removed", "x"), kExitOk);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(shown(false), "3 bytes\nremoved x\n");
  EXPECT_EQ(shown(true), "{\n  \"bytes\": 3\n}\n{\n  \"removed\": \"x\"\n}\n");
}

TEST(OutputTest, AChangeNamesTheClusterThatItWasMadeIn) {
  const auto shown = [](bool json) {
    Context context;
    context.json = json;
    EXPECT_TRUE(context.joined->Join(ClusterId(0xabc)).ok());
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(ShowDone(context, "removed", "x"), kExitOk);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(shown(false), "removed x\ncluster 0000000000000abc\n");
  EXPECT_EQ(shown(true), "{\n  \"removed\": \"x\",\n  \"cluster\": \"0000000000000abc\"\n}\n");
}

TEST(OutputTest, AdviceIsGivenOnlyWhereThereIsSome) {
  EXPECT_FALSE(Advice(Error(StatusCode::kResourceExhausted, "full")).empty());
  EXPECT_FALSE(Advice(Error(StatusCode::kOutOfRange, "large")).empty());
  EXPECT_TRUE(Advice(Error(StatusCode::kInternal, "bug")).empty());
  EXPECT_TRUE(Advice(OkStatus()).empty());
}

}  // namespace
}  // namespace ems::emsctl
