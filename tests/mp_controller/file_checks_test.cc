// What must hold: a file counts as checked when its blocks, in order, add up to what its source
// says, and with the digests of these very bytes; late and foreign reports change nothing; damage
// begins a new round, and three in vain end it.
#include "mp_controller/file_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "common/sha256.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using model::FileHasher;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kStarted = 77;
const std::string kContent = "0123456789";

// Two files of five blocks of two bytes; the second has a sum.
model::Manifest Sample() {
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
  v1::FileCheck State(uint32_t file = 1) {
    v1::FileCheck out;
    EXPECT_EQ(checks_.Fill(file, &out), OkStatus());
    return out;
  }
  // What a server says that goes on from `state` with `bytes`, in blocks of two.
  static v1::ReportCheckRequest Report(const v1::FileCheck& state, std::string_view bytes) {
    FileHasher hasher(model::FileSum{});
    EXPECT_EQ(hasher.Restore(state.state(), uint64_t{2} * (state.next() - 5)), OkStatus());
    hasher.Update(AsBytes(bytes));
    v1::ReportCheckRequest report;
    report.set_model_id(7);
    report.set_file(state.file());
    report.set_started(state.started());
    report.set_round(state.round());
    report.set_first(state.next());
    report.set_state(hasher.Save());
    for (size_t at = 0; at < bytes.size(); at += 2)
      report.mutable_digests()->append(AsText(DigestOf(bytes.substr(at, 2))));
    return report;
  }
  FileChecks::Step Take(const v1::ReportCheckRequest& report) {
    const auto step = checks_.Take(report, ++number_, now_);
    EXPECT_TRUE(step.ok()) << step.status();
    return step.value_or(FileChecks::Step());
  }
  bool Fill(uint64_t since, bool digests, v1::FollowChecksReply* reply) {
    uint64_t room = FileChecks::kReplyBytesMax;
    return checks_.Fill(since, 0, digests, &room, reply);
  }
  FileChecks::Step GoOn(std::string_view bytes) { return Take(Report(State(), bytes)); }

  const model::Manifest manifest_ = Sample();
  FileChecks checks_{7, manifest_, kStarted};
  uint64_t number_ = 100;
  TimePoint now_{};
};

TEST_F(FileChecksTest, AFileIsCheckedWhenAllOfItAddsUp) {
  EXPECT_FALSE(checks_.Pending(0));
  EXPECT_TRUE(checks_.Pending(1));
  EXPECT_EQ(State().next(), 5U);
  EXPECT_FALSE(GoOn("0123").finished);
  EXPECT_EQ(State().next(), 7U);
  EXPECT_EQ(checks_.checked_bytes(), 4U);
  const FileChecks::Step last = GoOn("456789");
  EXPECT_TRUE(last.finished);
  EXPECT_EQ(last.file, 1U);
  EXPECT_EQ(checks_.first_block(1), 5U);
  ASSERT_EQ(checks_.digests(1).size(), 5U);
  EXPECT_EQ(checks_.digests(1)[4], DigestOf("89"));
  EXPECT_TRUE(checks_.Pending(1)) << "until the digests are stored";
  checks_.Known(1, ++number_);
  EXPECT_FALSE(checks_.Pending(1));
  EXPECT_TRUE(checks_.all_checked());
  EXPECT_EQ(checks_.checked_bytes(), 10U);
  EXPECT_TRUE(State().checked());
}

TEST_F(FileChecksTest, TheLastStepIsTakenAgainWhenItsDigestsCouldNotBeStored) {
  GoOn("0123");
  const auto last = Report(State(), "456789");
  EXPECT_TRUE(Take(last).finished);
  EXPECT_TRUE(Take(last).finished);
  EXPECT_EQ(checks_.digests(1).size(), 5U);
}

TEST_F(FileChecksTest, LateAndForeignReportsChangeNothing) {
  const auto first = Report(State(), "01");
  auto other_start = first;
  other_start.set_started(kStarted - 1);
  auto other_round = first;
  other_round.set_round(9);
  Take(other_start);
  Take(other_round);
  EXPECT_EQ(State().next(), 5U);
  Take(first);
  EXPECT_EQ(State().next(), 6U);
  Take(first);
  EXPECT_EQ(State().next(), 6U) << "two who had the same block";
  auto no_sum = first;
  no_sum.set_file(0);
  EXPECT_EQ(checks_.Take(no_sum, 1, now_).status().code(), StatusCode::kNotFound);
  for (const std::string& digests : {std::string(), std::string(31, 'x'), std::string(160, 'x')}) {
    auto bad = Report(State(), "23");
    bad.set_digests(digests);
    EXPECT_EQ(checks_.Take(bad, 1, now_).status().code(), StatusCode::kInvalidArgument);
  }
  auto bad_state = Report(State(), "23");
  bad_state.set_state("short");
  EXPECT_EQ(checks_.Take(bad_state, 1, now_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(State().next(), 6U);
}

TEST_F(FileChecksTest, DamageBeginsARoundAndThreeInVainEndIt) {
  for (uint32_t reads = 1; reads <= FileChecks::kReadsMax; ++reads) {
    EXPECT_EQ(State().round(), reads);
    GoOn("0123");
    EXPECT_EQ(checks_.checked_bytes(), 4U);
    EXPECT_FALSE(GoOn("45x789").finished);
    EXPECT_EQ(checks_.checked_bytes(), 0U);
    EXPECT_EQ(checks_.damaged().ok(), reads < FileChecks::kReadsMax);
    EXPECT_EQ(State().next(), 5U);
    if (checks_.damaged().ok()) continue;
    EXPECT_EQ(checks_.damaged().code(), StatusCode::kDataLoss);
    const std::string text(Message(checks_.damaged()));
    EXPECT_THAT(text, HasSubstr("summed: damaged"));
    EXPECT_THAT(text, HasSubstr(ToHex(*Md5(AsBytes("012345x789")))));
    EXPECT_THAT(text, HasSubstr(manifest_.files[1].sum.substr(4)));
  }
  EXPECT_TRUE(State().stopped());
  EXPECT_TRUE(checks_.Pending(1));
  Take(Report(State(), "01"));
  EXPECT_EQ(State().next(), 5U) << "given up";
  EXPECT_TRUE(checks_.Again(++number_));
  EXPECT_FALSE(State().stopped());
  EXPECT_EQ(checks_.damaged(), OkStatus());
  EXPECT_TRUE(GoOn(kContent).finished);
}

TEST_F(FileChecksTest, APinnedVersionIsTriedAgainEverMoreSeldom) {
  const auto in_vain = [&] {
    while (checks_.damaged().ok()) GoOn("xxxxxxxxxx");
  };
  in_vain();
  EXPECT_FALSE(checks_.Retry(++number_, now_ + seconds(9)));
  EXPECT_TRUE(checks_.Retry(++number_, now_ += seconds(10)));
  const uint64_t round = State().round();
  in_vain();
  EXPECT_EQ(State().round(), round + 1) << "one try at a time";
  EXPECT_FALSE(checks_.Retry(++number_, now_ + seconds(19)));
  EXPECT_TRUE(checks_.Retry(++number_, now_ + seconds(20)));
}

// One of a restart: nobody has added it up in this life of the controller.
TEST_F(FileChecksTest, AFileThatIsKnownCountsAsCheckedWhateverHadBecomeOfIt) {
  GoOn("0123");
  checks_.Known(1, ++number_);
  EXPECT_EQ(checks_.checked_bytes(), 10U);
  checks_.Known(1, ++number_);
  checks_.Known(0, ++number_);
  EXPECT_EQ(checks_.checked_bytes(), 10U);
  EXPECT_EQ(checks_.damaged(), OkStatus());
}

TEST_F(FileChecksTest, AStateOfOtherBytesThanThoseAddedIsRefused) {
  auto more = Report(State(), "0123");
  more.mutable_digests()->resize(32);  // of one block alone
  EXPECT_EQ(checks_.Take(more, ++number_, now_).status().code(), StatusCode::kInvalidArgument);
  auto less = Report(State(), "01");
  less.mutable_digests()->append(AsText(DigestOf("23")));
  EXPECT_EQ(checks_.Take(less, ++number_, now_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(State().next(), 5U);
  EXPECT_EQ(checks_.checked_bytes(), 0U);
}

// As in FIPS mode: asked for what is approved alone, libcrypto has no MD5 here.
TEST_F(FileChecksTest, WithoutMd5NothingIsAddedAndTheReasonIsSaid) {
  const auto report = Report(State(), kContent);
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const Status refused = checks_.Take(report, ++number_, now_).status();
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("FIPS"));
  EXPECT_EQ(State().next(), 5U);
}

// Answers may overtake each other.
TEST_F(FileChecksTest, EachChangeOfAFileHasALargerNumber) {
  uint64_t before = State().number();
  const auto changed = [&] { return std::exchange(before, State().number()) < before; };
  GoOn("01");
  EXPECT_TRUE(changed());
  while (checks_.damaged().ok()) {
    GoOn(State().next() == 5 ? "xxxxxxxxxx" : "xxxxxxxx");
    EXPECT_TRUE(changed());
  }
  EXPECT_TRUE(checks_.Retry(++number_, now_ + seconds(10)));
  EXPECT_TRUE(changed());
  checks_.Known(1, ++number_);
  EXPECT_TRUE(changed());
}

TEST_F(FileChecksTest, ChangesAreToldSinceANumber) {
  v1::FollowChecksReply all;
  EXPECT_TRUE(Fill(0, false, &all));
  ASSERT_EQ(all.files_size(), 1);
  EXPECT_EQ(all.files(0).model_id(), 7U);
  EXPECT_EQ(all.files(0).file(), 1U);
  v1::FollowChecksReply none;
  EXPECT_FALSE(Fill(number_, false, &none));
  const uint64_t before = number_;
  GoOn("01");
  v1::FollowChecksReply change, with_digests;
  EXPECT_TRUE(Fill(before, false, &change));
  EXPECT_EQ(change.files(0).next(), 6U);
  EXPECT_TRUE(change.files(0).digests().empty());
  EXPECT_TRUE(Fill(0, true, &with_digests));
  EXPECT_EQ(with_digests.files(0).digests(), AsText(DigestOf("01")));
}

}  // namespace
}  // namespace ems::controller
