#include "bench/trace/trace_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
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
class WrittenTrace {
 public:
  explicit WrittenTrace(std::string_view content, bool compressed = false, size_t cut = 0)
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
  return ReadTrace(WrittenTrace(first + second_line + "\n").path()).status();
}

void ExpectBad(const std::string& second_line, std::string_view says) {
  const Status status = ErrorOf(second_line);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << second_line;
  EXPECT_NE(Message(status).find(":2: "), std::string_view::npos) << ToString(status);
  EXPECT_NE(Message(status).find(says), std::string_view::npos) << ToString(status);
}

TEST(TraceReaderTest, ReadsPlainAndCompressedFiles) {
  for (const bool compressed : {false, true}) {
    const auto trace = ReadTrace(WrittenTrace(kGood, compressed).path());
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
  const auto trace = ReadTrace(WrittenTrace(kGood).path(), 1);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests.size(), 1u);
}

TEST(TraceReaderTest, PassesOverEmptyLinesAndCarriageReturns) {
  const auto trace = ReadTrace(WrittenTrace("\n" + std::string(kGood) + "\r\n\r\n\n").path());
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
  const auto trace = ReadTrace(WrittenTrace(line).path());
  EXPECT_NE(Message(trace.status()).find(":2: \"timestamp\" 3"), std::string_view::npos)
      << ToString(trace.status());
}

TEST(TraceReaderTest, DeeplyNestedJsonIsAnErrorNotAnOverflow) {
  ExpectBad(std::string(500'000, '['), "not a JSON object");
}

TEST(TraceReaderTest, RefusesEndlessLines) {
  const auto trace = ReadTrace(WrittenTrace(std::string(3 << 20, ' ')).path());
  EXPECT_EQ(trace.status().code(), StatusCode::kOutOfRange) << ToString(trace.status());
}

TEST(TraceReaderTest, RefusesFilesWithoutRequests) {
  EXPECT_EQ(ReadTrace(WrittenTrace("").path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTrace("/nonexistent/trace.jsonl").status().code(), StatusCode::kNotFound);
}

TEST(TraceReaderTest, ACutArchiveIsAnError) {
  std::string many;
  for (int i = 0; i < 1000; ++i)
    many += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": 1, \"output_length\": {}, \"hash_ids\": [{}]}}\n",
        i, i * 7919 % 1000, i * 31);
  const auto trace = ReadTrace(WrittenTrace(many, true, 100).path());
  EXPECT_FALSE(trace.ok());
  EXPECT_TRUE(trace.status().code() == StatusCode::kDataLoss) << ToString(trace.status());
}

Result<Trace> Read(std::string_view content, const char* format, uint64_t requests_max = 0) {
  return ReadTrace(WrittenTrace(content).path(), requests_max, TraceFormatOf(format));
}

TEST(TraceReaderTest, ReadsCsv) {
  const auto trace = Read(
      "timestamp,input_length,output_length,hash_ids\n"
      "0,513,5,0 1\n"
      "3000,512,0,\"[0]\"\n",
      "csv");
  ASSERT_TRUE(trace.ok()) << ToString(trace.status());
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].timestamp_ms, 3000U);
  EXPECT_EQ(trace->unique_blocks, 2U);
  const Status bad = Read("input_length,hash_ids\n512,0\n512,0 1\n", "csv").status();
  EXPECT_NE(Message(bad).find(":3: input of 512 tokens has 1 blocks"), std::string_view::npos)
      << ToString(bad);
  EXPECT_NE(Message(Read("", "csv").status()).find(":1: "), std::string_view::npos);
}

TEST(TraceReaderTest, ReadsPromptsOfVllmInLinesAndInAList) {
  for (const char* content : {"{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n",
                              "[{\"prompt\": \"one\"},\n{\"prompt\": \"two\"}]"}) {
    const auto trace = Read(content, "vllm");
    ASSERT_TRUE(trace.ok()) << ToString(trace.status());
    EXPECT_EQ(trace->requests.size(), 2U);
    EXPECT_EQ(trace->unique_blocks, 2U);
  }
  const Status bad = Read("{\"prompt\": \"one\"}\n{\"promt\": \"two\"}\n", "vllm").status();
  EXPECT_NE(Message(bad).find(":2: \"prompt\" is missing"), std::string_view::npos)
      << ToString(bad);
}

TEST(TraceReaderTest, ConversationsOfShareGptTakeTurns) {
  const std::string talk = R"({"id": "x", "conversations": [{"from": "human", "value": "@1"},
      {"from": "gpt", "value": "yes"}, {"from": "human", "value": "@2"}]})";
  std::string other = talk;
  other.replace(other.find("@1"), 2, "#1 longer");
  const auto trace = Read("[" + talk + ",\n" + other + "]", "sharegpt");
  ASSERT_TRUE(trace.ok()) << ToString(trace.status());
  ASSERT_EQ(trace->requests.size(), 4U);
  std::vector<uint64_t> tokens;
  for (const TraceRequest& request : trace->requests) tokens.push_back(request.input_tokens);
  EXPECT_EQ(tokens, (std::vector<uint64_t>{1, 3, 2, 4})) << "2, 9, 7 and 14 bytes";
  EXPECT_EQ(Read("[" + talk + "]", "sharegpt", 1)->requests.size(), 1U);
}

TEST(TraceReaderTest, DamagedFilesAreErrorsOrTracesThatHoldTogether) {
  const std::string samples[] = {
      kGood, R"({"prompt": "one", "output_tokens": 3})",
      R"([{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}])",
      "timestamp,input_length,output_length,hash_ids\n0,513,5,\"[0, 1]\"\n"};
  std::mt19937_64 random(1);
  for (size_t format = 0; format < std::size(samples); ++format) {
    for (int round = 0; round < 300; ++round) {
      std::string bytes = samples[format];
      for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
        const size_t at = random() % bytes.size();
        if (random() % 2 == 0) bytes[at] = static_cast<char>(random());
        if (random() % 3 == 0) bytes.insert(at, bytes.substr(random() % bytes.size(), 9));
        if (random() % 3 == 0 && bytes.size() > 9) bytes.erase(at, 3);
      }
      const auto trace = Read(bytes, TraceFormatNames()[format].c_str());
      if (!trace.ok()) continue;
      for (const TraceRequest& request : trace->requests)
        EXPECT_EQ(request.blocks.size(), (request.input_tokens + 511) / 512) << bytes;
    }
  }
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
