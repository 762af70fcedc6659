// What must hold: columns are found by name, ids are read in each way that tools write them, and
// what is wrong is named.
#include "bench/trace/csv_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/bytes.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

constexpr const char* kHeader = "timestamp,input_length,output_length,hash_ids";

Result<TraceRequest> Parse(std::string_view line, std::string_view header = kHeader) {
  Result<CsvRequests> requests = CsvRequests::Make(header);
  EXPECT_TRUE(requests.ok()) << ToString(requests.status());
  return requests->Parse(line);
}

TEST(CsvRequestsTest, ReadsIdsInEachWayThatToolsWriteThem) {
  for (const char* ids : {"4 5", "\"4 5\"", "\"[4, 5]\"", "4;5", "\" [4 5 ] \""}) {
    const auto request = Parse(fmt::format("12, 513 ,7,{}", ids));
    ASSERT_TRUE(request.ok()) << ToString(request.status());
    EXPECT_EQ(request->timestamp_ms, 12U);
    EXPECT_EQ(request->input_tokens, 513U);
    EXPECT_EQ(request->output_tokens, 7U);
    EXPECT_EQ(request->blocks, (std::vector<uint64_t>{4, 5})) << ids;
  }
}

TEST(CsvRequestsTest, ColumnsHaveAnyOrderAndOthersArePassedOver) {
  const auto request = Parse("\"a \"\"model\"\", say\",1000", "\xef\xbb\xbfmodel,input_length");
  ASSERT_TRUE(request.ok()) << ToString(request.status());
  EXPECT_EQ(request->input_tokens, 1000U);
  EXPECT_EQ(request->timestamp_ms, 0U);
  EXPECT_EQ(request->blocks.size(), 2U);
}

TEST(CsvRequestsTest, RequestsWithoutIdsHaveNothingInCommon) {
  Result<CsvRequests> requests = CsvRequests::Make("input_length");
  ASSERT_TRUE(requests.ok());
  const auto one = requests->Parse("1024"), other = requests->Parse("1024");
  EXPECT_EQ(one->blocks.size(), 2U);
  EXPECT_NE(one->blocks[0], one->blocks[1]);
  EXPECT_NE(one->blocks[0], other->blocks[0]);
}

TEST(CsvRequestsTest, NamesWhatIsWrong) {
  const auto check = [](const Status& status, const char* says) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << says;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(says));
  };
  check(CsvRequests::Make("").status(), "input_length");
  check(CsvRequests::Make("input_length,input_length").status(), "two columns input_length");
  check(Parse("1,2,3").status(), "3 cells, but 4 columns");
  check(Parse("1,-2,3,").status(), "input_length must be a whole number");
  check(Parse("1.5,2,3,").status(), "timestamp must be a whole number");
  check(Parse("1,2,18446744073709551616,").status(), "output_length");
  check(Parse("1,2,3,4 x").status(), "hash_ids must be a whole number");
  check(Parse("1,2,3,\"4").status(), "quote does not end");
  check(Parse("1,2,3,\"4\"5").status(), "behind its closing quote");
  check(Parse("1,268435457,3,").status(), "268435456 at most");
}

}  // namespace
}  // namespace ems::bench
