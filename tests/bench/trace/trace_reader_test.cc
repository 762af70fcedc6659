#include "bench/trace/trace_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

const char kGood[] =
    R"({"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]})"
    "\n"
    R"({"timestamp": 3000, "input_length": 512, "output_length": 0, "hash_ids": [0]})";

// A file that goes away with the test.
class TraceFile {
 public:
  explicit TraceFile(std::string_view content, bool compressed = false, size_t cut = 0)
      : file_("trace"), path_(file_.path()) {
    if (!compressed) {
      std::ofstream(path_, std::ios::binary) << content;
      return;
    }
    gzFile file = gzopen(path_.c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    if (cut > 0) Truncate(cut);
  }
  const std::string& path() const { return path_; }

 private:
  void Truncate(size_t cut) {
    std::ifstream in(path_, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    bytes.resize(bytes.size() - cut);
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  const ::ems::testing::TempPath file_;
  const std::string& path_;
};

// The error that a trace with `second_line` behind a good one gives.
Status ErrorOf(const std::string& second_line) {
  const std::string first(kGood, std::string_view(kGood).find('\n') + 1);
  return ReadTrace(TraceFile(first + second_line + "\n").path()).status();
}

void ExpectBad(const std::string& second_line, std::string_view says) {
  const Status status = ErrorOf(second_line);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << second_line;
  EXPECT_NE(Message(status).find(":2: "), std::string_view::npos) << ToString(status);
  EXPECT_NE(Message(status).find(says), std::string_view::npos) << ToString(status);
}

TEST(TraceReaderTest, ReadsPlainAndCompressedFiles) {
  for (const bool compressed : {false, true}) {
    const auto trace = ReadTrace(TraceFile(kGood, compressed).path());
    ASSERT_TRUE(trace.ok()) << ToString(trace.status());
    ASSERT_EQ(trace->requests.size(), 2u);
    EXPECT_EQ(trace->requests[0].blocks, (std::vector<uint64_t>{0, 1}));
    EXPECT_EQ(trace->requests[0].input_tokens, 513u);
    EXPECT_EQ(trace->requests[0].output_tokens, 5u);
    EXPECT_EQ(trace->requests[1].timestamp_ms, 3000u);
    EXPECT_EQ(trace->block_references, 3u);
    EXPECT_EQ(trace->unique_blocks, 2u);
    EXPECT_EQ(trace->input_tokens, 1025u);
    EXPECT_EQ(trace->request_blocks_max, 2u);
  }
}

TEST(TraceReaderTest, ReadsTheFirstRequestsOnly) {
  const auto trace = ReadTrace(TraceFile(kGood).path(), 1);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests.size(), 1u);
}

TEST(TraceReaderTest, PassesOverEmptyLinesAndCarriageReturns) {
  const auto trace = ReadTrace(TraceFile("\n" + std::string(kGood) + "\r\n\r\n\n").path());
  ASSERT_TRUE(trace.ok()) << ToString(trace.status());
  EXPECT_EQ(trace->requests.size(), 2u);
}

TEST(TraceReaderTest, NamesTheLineAndWhatIsWrong) {
  ExpectBad("nonsense", "not a JSON object");
  ExpectBad("[1, 2]", "not a JSON object");
  ExpectBad(R"({"timestamp": 0)", "not a JSON object");
  ExpectBad(R"({"input_length": 1, "output_length": 1, "hash_ids": [0]})", "\"timestamp\"");
  ExpectBad(R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [0]})",
            "\"timestamp\"");
  ExpectBad(R"({"timestamp": 0, "input_length": "1", "output_length": 1, "hash_ids": [0]})",
            "\"input_length\"");
  ExpectBad(R"({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []})",
            "\"input_length\"");
  ExpectBad(R"({"timestamp": 0, "input_length": 1, "output_length": 1.5, "hash_ids": [0]})",
            "\"output_length\"");
  ExpectBad(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 7})",
            "\"hash_ids\"");
  ExpectBad(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [null]})",
            "\"hash_ids\"");
  ExpectBad(R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0]})",
            "2 blocks");
  ExpectBad(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1e300]})",
            "\"hash_ids\"");
}

TEST(TraceReaderTest, TimestampsDoNotGoBack) {
  const std::string line =
      R"({"timestamp": 4, "input_length": 1, "output_length": 1, "hash_ids": [0]})"
      "\n"
      R"({"timestamp": 3, "input_length": 1, "output_length": 1, "hash_ids": [0]})";
  const auto trace = ReadTrace(TraceFile(line).path());
  EXPECT_NE(Message(trace.status()).find(":2: \"timestamp\" 3"), std::string_view::npos)
      << ToString(trace.status());
}

TEST(TraceReaderTest, DeeplyNestedJsonIsAnErrorNotAnOverflow) {
  ExpectBad(std::string(500'000, '['), "not a JSON object");
}

TEST(TraceReaderTest, RefusesEndlessLines) {
  const auto trace = ReadTrace(TraceFile(std::string(3 << 20, ' ')).path());
  EXPECT_EQ(trace.status().code(), StatusCode::kOutOfRange) << ToString(trace.status());
}

TEST(TraceReaderTest, RefusesFilesWithoutRequests) {
  EXPECT_EQ(ReadTrace(TraceFile("").path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTrace("/nonexistent/trace.jsonl").status().code(), StatusCode::kNotFound);
}

TEST(TraceReaderTest, ACutArchiveIsAnError) {
  std::string many;
  for (int i = 0; i < 1000; ++i)
    many += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": 1, \"output_length\": {}, \"hash_ids\": [{}]}}\n",
        i, i * 7919 % 1000, i * 31);
  const auto trace = ReadTrace(TraceFile(many, true, 100).path());
  EXPECT_FALSE(trace.ok());
  EXPECT_TRUE(trace.status().code() == StatusCode::kDataLoss) << ToString(trace.status());
}

TEST(TraceReaderTest, TheTraceOfTheProjectIsWhole) {
  const auto trace = ReadTrace(testing::SourceDir() + "/bench/data/conversation_trace.jsonl.gz");
  ASSERT_TRUE(trace.ok()) << ToString(trace.status());
  EXPECT_EQ(trace->requests.size(), 12'031u);
  EXPECT_EQ(trace->block_references, 288'500u);
  EXPECT_EQ(trace->unique_blocks, 182'790u);
  EXPECT_EQ(trace->input_tokens, 144'793'823u);
}

}  // namespace
}  // namespace ems::bench
