// What must hold: codes have one name each, misses carry no text, context is added in front and
// keeps the code.
#include "common/status.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ems {
namespace {

TEST(StatusTest, MissIsNotFoundWithoutText) {
  EXPECT_EQ(Miss().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Message(Miss()).empty());
  EXPECT_EQ(ToString(Miss()), "NOT_FOUND");
}

TEST(StatusTest, ErrorFormatsItsNumbers) {
  const Status status =
      Error(StatusCode::kResourceExhausted, "chunk {} B, {} of {} free", 4096, 0, 512);
  EXPECT_EQ(ToString(status), "RESOURCE_EXHAUSTED: chunk 4096 B, 0 of 512 free");
}

TEST(StatusTest, TextWithBracesAndNoArgumentsIsTakenAsItIs) {
  EXPECT_EQ(Message(Error(StatusCode::kInternal, "a {} b")), "a {} b");
}

TEST(StatusTest, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 0; code <= 16; ++code) names.insert(CodeName(static_cast<StatusCode>(code)));
  EXPECT_EQ(names.size(), 17U);
  EXPECT_EQ(CodeName(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(StatusTest, PrefixedKeepsTheCodeAndLeavesOkAlone) {
  EXPECT_TRUE(Prefixed(OkStatus(), "put").ok());
  const Status status = Prefixed(Error(StatusCode::kUnavailable, "refused"), "server a");
  EXPECT_EQ(ToString(status), "UNAVAILABLE: server a: refused");
  EXPECT_EQ(ToString(Prefixed(Miss(), "key k")), "NOT_FOUND: key k");
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Error(StatusCode::kInvalidArgument, "{} is odd", value);
  return value / 2;
}
Result<int> Quarter(int value) {
  EMS_ASSIGN_OR_RETURN(const int half, Half(value));
  EMS_RETURN_IF_ERROR(Half(half).status());
  return Half(half);
}

TEST(StatusTest, MacrosPassErrorsOnAndValuesThrough) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Message(Quarter(3).status()), "3 is odd");
  EXPECT_EQ(Message(Quarter(6).status()), "3 is odd");
}

}  // namespace
}  // namespace ems
