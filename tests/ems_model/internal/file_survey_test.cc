// What must hold: digests are given only of a file that has its sum; it is read once however many
// ask, once more when it was damaged, and no more in a load in which it could not be had, or that
// is over.
#include "ems_model/internal/file_survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/sha256.h"
#include "common/thread_pool.h"
#include "model_files/format/file_sum.h"
#include "tests/support/eventually.h"

namespace ems::model::internal {
namespace {

using ::testing::HasSubstr;

const std::string kContent = "0123456789abcdefghij";

class FakeSource final : public WeightSource {
 public:
  Result<std::vector<SourceFile>> List(Deadline) override { return std::vector<SourceFile>(); }
  Status Read(const SourceFile&, uint64_t offset, MutableBytes into, Deadline) override {
    std::memcpy(into.data(), kContent.data() + offset, into.size());
    if (reads.fetch_add(1) < damaged) into[0] ^= std::byte{1};
    if (on_read) on_read();
    return fault;
  }
  SourceCounters counters() const override { return {}; }
  std::atomic<int> reads{0};
  int damaged = 0;
  Status fault;
  std::function<void()> on_read;
};

class FileSurveyTest : public ::testing::Test {
 protected:
  FileSurveyTest() {
    manifest_.files = {{"other", 5, "t"}, {"w", 20, "t"}};
    manifest_.files[1].sum = "md5:" + ToHex(*Md5(AsBytes(kContent)));
    manifest_.blocks.push_back({0, 0, 5, {}});
    for (uint32_t i = 0; i < 4; ++i) manifest_.blocks.push_back({1, i * uint64_t{5}, 5, {}});
  }
  Result<BlockDigest> DigestOf(uint32_t block,
                               Deadline deadline = Deadline::After(std::chrono::seconds(20))) {
    return survey_.DigestOf(block,
                            {.source = [this]() -> Result<WeightSource*> { return &source_; },
                             .over = [this] { return over_.IsSet(); },
                             .deadline = deadline,
                             .source_bytes = &bytes_});
  }
  // What all blocks of the file give, asked for at once.
  std::vector<Status> AskForAll() {
    std::vector<Status> answers(4);
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < 4; ++i)
      threads.emplace_back("asks", [&, i] { answers[i] = DigestOf(i + 1).status(); });
    threads.clear();
    return answers;
  }

  Manifest manifest_;
  FakeSource source_;
  FileSurvey survey_{&manifest_};
  std::atomic<uint64_t> bytes_{0};
  StopFlag over_;
};

TEST_F(FileSurveyTest, AFileIsReadOnceForAllWhoAsk) {
  {
    std::vector<Thread> threads;
    for (uint32_t block = 1; block <= 4; ++block) {
      threads.emplace_back("asks", [this, block] {
        const auto digest = DigestOf(block);
        ASSERT_TRUE(digest.ok()) << digest.status();
        EXPECT_EQ(*digest,
                  Sha256().Digest(AsBytes(kContent).subspan(uint64_t{5} * (block - 1), 5)));
      });
    }
  }
  EXPECT_EQ(source_.reads, 4);
  EXPECT_EQ(bytes_, 20U);
}

TEST_F(FileSurveyTest, WhatWasDamagedIsReadOnceMore) {
  source_.damaged = 1;
  const auto digest = DigestOf(1);
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_EQ(*digest, Sha256().Digest(AsBytes(kContent).first(5)));
  EXPECT_EQ(bytes_, 40U);
}

TEST_F(FileSurveyTest, WhatStaysDamagedIsAnError) {
  source_.damaged = 1000;
  const Status status = DigestOf(2).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("w: damaged"));
  EXPECT_THAT(std::string(Message(status)), HasSubstr(manifest_.files[1].sum.substr(4)));
  EXPECT_EQ(bytes_, 20 * kFileReadsMax);
}

TEST_F(FileSurveyTest, WhatCouldNotBeHadIsReadByNobodyElseOfTheLoad) {
  source_.damaged = 1000;
  for (const Status& answer : AskForAll()) EXPECT_EQ(answer.code(), StatusCode::kDataLoss);
  EXPECT_EQ(bytes_, 20 * kFileReadsMax);
  source_.damaged = 0;
  EXPECT_EQ(DigestOf(3).status().code(), StatusCode::kDataLoss) << "nor later";
  EXPECT_EQ(bytes_, 20 * kFileReadsMax);
  survey_.Begin();
  EXPECT_TRUE(DigestOf(2).ok()) << "the next load tries again";
}

TEST_F(FileSurveyTest, ASourceThatFailsIsAskedOnceForAll) {
  source_.fault = Error(StatusCode::kUnavailable, "gone");
  for (const Status& answer : AskForAll()) EXPECT_EQ(answer.code(), StatusCode::kUnavailable);
  EXPECT_EQ(source_.reads, 1);
  source_.fault = OkStatus();
  EXPECT_TRUE(ems::testing::Eventually([&] { return DigestOf(2).ok(); }))
      << "this load, too, once it is there again";
}

TEST_F(FileSurveyTest, ALoadThatIsOverReadsNoMore) {
  source_.on_read = [this] { over_.Set(); };
  for (const Status& answer : AskForAll()) EXPECT_EQ(answer.code(), StatusCode::kCancelled);
  EXPECT_EQ(source_.reads, 1);
}

TEST_F(FileSurveyTest, WhoWaitsForAnotherEndsWithTheLoad) {
  StopFlag reading, go_on;
  source_.on_read = [&] {
    reading.Set();
    go_on.WaitFor(std::chrono::seconds(20));
  };
  Status read, waited;
  Thread reads("reads", [&] { read = DigestOf(1).status(); });
  ASSERT_TRUE(reading.WaitFor(std::chrono::seconds(20)));
  Thread waits("waits", [&] { waited = DigestOf(2).status(); });
  over_.Set();
  waits.Join();
  EXPECT_FALSE(go_on.IsSet()) << "the source holds the other one up";
  go_on.Set();
  reads.Join();
  EXPECT_EQ(waited.code(), StatusCode::kCancelled);
  EXPECT_EQ(read.code(), StatusCode::kCancelled);
  EXPECT_EQ(source_.reads, 1);
}

TEST_F(FileSurveyTest, NothingIsReadAfterTheDeadline) {
  const Status late = DigestOf(1, Deadline(TimePoint{})).status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(source_.reads, 0);
}

}  // namespace
}  // namespace ems::model::internal
