// What must hold: words and values of a policy correspond, only what was given changes, and errors
// name the flag.
#include "tools/emsctl/policy_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

TEST(PolicyWordsTest, WordsReadBackAsTheirValues) {
  for (const Durability d : {Durability::kDram, Durability::kSsd}) {
    EXPECT_EQ(ParseDurability(DurabilityWord(d)).value(), d);
  }
  for (const ChecksumPolicy c :
       {ChecksumPolicy::kAlways, ChecksumPolicy::kSampled, ChecksumPolicy::kNever}) {
    EXPECT_EQ(ParseChecksum(ChecksumWord(c)).value(), c);
  }
}

TEST(PolicyWordsTest, UnknownWordsAreRefusedWithTheKnownOnes) {
  const Status durability = ParseDurability("tape").status();
  EXPECT_EQ(durability.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(durability)), HasSubstr("dram, ssd and"));
  EXPECT_THAT(std::string(Message(ParseChecksum("").status())), HasSubstr("always, sampled"));
}

TEST(PolicyWordsTest, OnlyGivenFieldsChange) {
  NamespaceInfo info;
  info.dram_quota_bytes = 5 * kGiB;
  info.durability = Durability::kSsd;
  PolicyFlags flags;
  EXPECT_TRUE(flags.empty());
  flags.dram_reserved = "1GiB";
  flags.checksum = "never";
  EXPECT_FALSE(flags.empty());
  ASSERT_TRUE(ApplyPolicy(flags, &info).ok());
  EXPECT_EQ(info.dram_quota_bytes, 5 * kGiB);
  EXPECT_EQ(info.dram_reserved_bytes, kGiB);
  EXPECT_EQ(info.durability, Durability::kSsd);
  EXPECT_EQ(info.checksum, ChecksumPolicy::kNever);
}

TEST(PolicyWordsTest, BadByteCountNamesItsFlag) {
  NamespaceInfo info;
  const Status status = ApplyPolicy({.ssd_quota = "lots"}, &info);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("--ssd-quota"));
}

TEST(PolicyWordsTest, ReservationAboveTheQuotaIsRefusedUnlessThereIsNoQuota) {
  NamespaceInfo info;
  EXPECT_TRUE(ApplyPolicy({.dram_reserved = "2GiB"}, &info).ok());
  const Status status = ApplyPolicy({.dram_quota = "1GiB"}, &info);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("2 GiB reserved"));
}

}  // namespace
}  // namespace ems::emsctl
