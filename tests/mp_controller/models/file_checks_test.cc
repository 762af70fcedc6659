// What must hold: a file counts as compared when bytes with exactly the digests that are told add
// up to what its source says; foreign and late sums change nothing; damage drops all digests of the
// file, and three reads in vain end it.
#include "mp_controller/models/file_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/sha256.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kLog = 77;
const std::string kContent = "0123456789";

// Two files of five blocks of two bytes; the second has a sum.
model::Manifest TwoFiles() {
  model::Manifest manifest;
  manifest.model = "m";
  manifest.version = "v1";
  manifest.files = {{"plain", 10, "t"}, {"summed", 10, "t"}};
  manifest.files[1].sum = "md5:" + ToHex(*Md5(AsBytes(kContent)));
  for (uint32_t i = 0; i < 10; ++i) manifest.blocks.push_back({i / 5, i % 5 * uint64_t{2}, 2, {}});
  return manifest;
}

BlockDigest DigestOf(std::string_view bytes) { return Sha256().Digest(AsBytes(bytes)); }

class FileChecksTest : public ::testing::Test {
 protected:
  // What a server says that has read `bytes`.
  static v1::ReportSumRequest Sum(std::string_view bytes, uint32_t file = 1) {
    v1::ReportSumRequest report;
    report.set_file(file);
    report.set_sum(ToHex(*Md5(AsBytes(bytes))));
    for (size_t at = 0; at < bytes.size(); at += 2)
      report.mutable_digests()->append(AsText(DigestOf(bytes.substr(at, 2))));
    return report;
  }
  bool Take(const v1::ReportSumRequest& report) {
    const auto right = checks_.Take(report, now_);
    EXPECT_TRUE(right.ok()) << right.status();
    return right.value_or(false);
  }
  void Tell(std::string_view bytes) {
    for (uint32_t i = 0; i < 5; ++i) checks_.Tell(5 + i, DigestOf(bytes.substr(size_t{2} * i, 2)));
  }
  bool ReadAndTake(std::string_view bytes) {
    Tell(bytes);
    return Take(Sum(bytes));
  }
  v1::FollowUnverifiedReply Follow(uint64_t log = 0, uint32_t since = 0) {
    v1::FollowUnverifiedRequest request;
    request.set_log(log);
    request.set_since(since);
    v1::FollowUnverifiedReply reply;
    news_ = checks_.Fill(request, &reply);
    return reply;
  }

  const model::Manifest manifest_ = TwoFiles();
  FileChecks checks_{manifest_, kLog};
  TimePoint now_{};
  bool news_ = false;
};

TEST_F(FileChecksTest, AFileIsComparedWhenItsBytesAddUp) {
  EXPECT_FALSE(checks_.Pending(0));
  EXPECT_TRUE(checks_.Pending(1));
  EXPECT_EQ(checks_.first_block(1), 5U);
  EXPECT_TRUE(ReadAndTake(kContent));
  EXPECT_TRUE(checks_.Pending(1)) << "until the digests are stored";
  EXPECT_TRUE(Take(Sum(kContent))) << "again, when they could not be";
  checks_.Known(1);
  EXPECT_FALSE(checks_.Pending(1));
  EXPECT_TRUE(checks_.all_checked());
  EXPECT_EQ(checks_.checked_bytes(), 10U);
  EXPECT_FALSE(Take(Sum(kContent)));
}

// What was told last of a block may be of another read than what was added up.
TEST_F(FileChecksTest, ARightSumIsRightWhateverWasToldOfTheBlocks) {
  Tell("xxxxxxxxxx");
  EXPECT_TRUE(Take(Sum(kContent)));
}

TEST_F(FileChecksTest, AWrongSumOfOtherBytesThanThoseToldLastChangesNothing) {
  const std::string damaged = "01x3456789";
  const auto too_early = [&] { return checks_.Take(Sum(damaged), now_).status().code(); };
  EXPECT_EQ(too_early(), StatusCode::kFailedPrecondition) << "its digests are on the way";
  EXPECT_FALSE(ReadAndTake(damaged));
  EXPECT_EQ(too_early(), StatusCode::kFailedPrecondition) << "two who had the same file";
  Tell(kContent);
  EXPECT_EQ(too_early(), StatusCode::kFailedPrecondition) << "it was read again meanwhile";
  EXPECT_EQ(Follow().digests().substr(size_t{14} * 32), AsText(DigestOf("89")));
  for (uint32_t reads = 1; reads < FileChecks::kReadsMax; ++reads) {
    EXPECT_EQ(checks_.damaged(), OkStatus()) << "it counts once";
    ReadAndTake(damaged);
  }
  EXPECT_EQ(checks_.damaged().code(), StatusCode::kDataLoss);
}

TEST_F(FileChecksTest, ReportsThatMakeNoSenseAreRefused) {
  EXPECT_EQ(checks_.Take(Sum(kContent, 0), now_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(checks_.Take(Sum(kContent, 9), now_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(checks_.Take(Sum("01"), now_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(checks_.Take(Sum("0123456789ab"), now_).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileChecksTest, DamageDropsAllDigestsAndThreeReadsInVainEndIt) {
  for (uint32_t reads = 1; reads <= FileChecks::kReadsMax; ++reads) {
    EXPECT_FALSE(ReadAndTake("012345x789"));
    const v1::FollowUnverifiedReply heard = Follow();
    const std::string last = heard.digests().substr(heard.digests().size() - 32);
    EXPECT_EQ(checks_.damaged().ok(), reads < FileChecks::kReadsMax);
    EXPECT_EQ(last == std::string(32, '\0'), checks_.damaged().ok())
        << "what is given up is not read before it is tried again";
  }
  const std::string text(Message(checks_.damaged()));
  EXPECT_THAT(text, HasSubstr("summed: damaged"));
  EXPECT_THAT(text, HasSubstr(ToHex(*Md5(AsBytes("012345x789")))));
  EXPECT_THAT(text, HasSubstr(manifest_.files[1].sum.substr(4)));
  EXPECT_TRUE(checks_.Pending(1));
  checks_.Again();
  EXPECT_EQ(checks_.damaged(), OkStatus());
  const v1::FollowUnverifiedReply heard = Follow();
  EXPECT_EQ(heard.digests().substr(heard.digests().size() - 32), std::string(32, '\0'));
  EXPECT_TRUE(ReadAndTake(kContent));
}

TEST_F(FileChecksTest, APinnedVersionIsTriedAgainEverMoreSeldom) {
  const auto in_vain = [&] {
    int reads = 0;
    for (; checks_.damaged().ok(); ++reads) ReadAndTake("xxxxxxxxxx");
    return reads;
  };
  EXPECT_EQ(in_vain(), 3);
  checks_.Retry(now_ + seconds(9));
  EXPECT_FALSE(checks_.damaged().ok());
  checks_.Retry(now_ += seconds(10));
  EXPECT_EQ(in_vain(), 1) << "one try at a time";
  checks_.Retry(now_ + seconds(19));
  EXPECT_FALSE(checks_.damaged().ok());
  checks_.Retry(now_ + seconds(20));
  EXPECT_TRUE(checks_.damaged().ok());
}

// One of a restart: nobody has added it up in this life of the controller.
TEST_F(FileChecksTest, AFileThatIsKnownCountsAsComparedWhateverHadBecomeOfIt) {
  Tell("xxxxxxxxxx");
  checks_.Known(1);
  checks_.Known(1);
  checks_.Known(0);
  EXPECT_EQ(checks_.checked_bytes(), 10U);
  EXPECT_EQ(checks_.damaged(), OkStatus());
  EXPECT_EQ(Follow().blocks_size(), 0);
}

TEST_F(FileChecksTest, ChangesAreToldSinceAnAnswerBefore) {
  const uint64_t log = Follow().log();
  EXPECT_TRUE(news_) << "of another log";
  (void)Follow(log);
  EXPECT_FALSE(news_);
  checks_.Tell(6, DigestOf("a"));
  checks_.Tell(7, DigestOf("b"));
  const v1::FollowUnverifiedReply two = Follow(log);
  EXPECT_TRUE(news_);
  EXPECT_THAT(two.blocks(), ElementsAre(6, 7));
  checks_.Tell(7, DigestOf("b"));
  (void)Follow(log, two.next());
  EXPECT_FALSE(news_) << "it was so before";
  checks_.Tell(6, std::nullopt);
  const v1::FollowUnverifiedReply dropped = Follow(log, two.next());
  EXPECT_THAT(dropped.blocks(), ElementsAre(6));
  EXPECT_EQ(dropped.digests(), std::string(32, '\0'));
  EXPECT_THAT(Follow(log + 9, 2).blocks(), ElementsAre(6, 7, 6)) << "of another one all";
}

// As of a file that is damaged for months, and tried every two minutes.
TEST_F(FileChecksTest, TheLogIsBoundedAndAnotherOneSaysHowAllBlocksAre) {
  const uint64_t log = Follow().log();
  for (size_t i = 0; i < FileChecks::kLogRoom + 100; ++i)
    checks_.Tell(6, DigestOf(std::to_string(i)));
  const v1::FollowUnverifiedReply heard = Follow(log, 3);
  EXPECT_NE(heard.log(), log);
  EXPECT_LE(heard.blocks_size(), 110);
  EXPECT_EQ(heard.blocks(0), 5U);
  EXPECT_EQ(heard.digests().substr(0, 32), std::string(32, '\0'));
}

}  // namespace
}  // namespace ems::controller
