// What must hold: pages follow each other to the end by their cursors; a request that cannot be
// meant is refused; cursors may be anything.
#include "mp_server/key_scan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "proto/key_page.h"
#include "tests/mp_server/session_fixture.h"

namespace ems::server {
namespace {

using wire::KeyPage;
using wire::Op;
using wire::ScanBody;
using wire::ScanCursor;
using wire::WireStatus;

class KeyScanTest : public SessionFixture {
 protected:
  KeyScanTest() : SessionFixture("key_scan") { Serve(store_.get()); }
  void PutMany(int count) {
    for (int i = 0; i < count; ++i) ASSERT_EQ(Put(fmt::format("k{}", i), "value"), WireStatus::kOk);
  }
  WireStatus Scan(const ScanBody& scan, std::string_view prefix = {}) {
    std::string body(AsText(wire::RawBytes(scan)));
    body += prefix;
    session_->Sent();  // the answer before
    fabric::Outcome outcome;
    EXPECT_TRUE(ems::testing::Eventually([&] {
      do {
        answer_.Clear();
        outcome = session_->Handle(Header(Op::kScan, 0), {}, AsBytes(body), &answer_);
      } while (outcome.again);
      return outcome.wait == Duration::zero();
    }));
    return outcome.status;
  }
  KeyPage Page(const ScanBody& scan, std::string_view prefix = {}) {
    EXPECT_EQ(Scan(scan, prefix), WireStatus::kOk) << session_->ErrorText();
    Result<KeyPage> page = wire::ParseKeyPage(answer_.body);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? *std::move(page) : KeyPage();
  }
};

TEST_F(KeyScanTest, PagesFollowEachOtherToTheEnd) {
  PutMany(1000);
  ASSERT_EQ(Put("other", "value"), WireStatus::kOk);
  std::set<std::string> seen;
  ScanBody scan{.items_max = 30};
  for (int pages = 0; pages < 1000; ++pages) {
    const KeyPage page = Page(scan, "k");
    for (const wire::ListedKey& one : page.keys) seen.insert(one.key);
    if (!page.next) break;
    ASSERT_NE(*page.next, scan.cursor);
    scan.cursor = *page.next;
  }
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_FALSE(seen.contains("other"));
}

TEST_F(KeyScanTest, ACursorOfAnotherLifeOfTheServerIsRefused) {
  PutMany(200);
  const KeyPage page = Page({.items_max = 10});
  ASSERT_TRUE(page.next);
  ScanCursor other = *page.next;
  other[0] ^= 1;  // of its boot id
  EXPECT_EQ(Scan({.cursor = other}), WireStatus::kInvalid);
  EXPECT_NE(session_->ErrorText().find("restarted"), std::string::npos);
  EXPECT_EQ(Scan({.cursor = *page.next}), WireStatus::kOk);
}

TEST_F(KeyScanTest, NumbersOfKeysOutOfRangeAreRefused) {
  EXPECT_EQ(Scan({.items_max = 0}), WireStatus::kInvalid);
  EXPECT_EQ(Scan({.items_max = wire::kScanItemsMax + 1}), WireStatus::kInvalid);
  EXPECT_EQ(Scan({.items_max = wire::kScanItemsMax, .bytes_max = UINT32_MAX}), WireStatus::kOk);
  EXPECT_EQ(Scan({.items_max = 1, .bytes_max = 0}), WireStatus::kOk);
}

TEST_F(KeyScanTest, AnyCursorIsAnswered) {
  PutMany(300);
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    ScanCursor cursor = {random(), random(), random()};
    if (i % 4 != 0) cursor[0] = (cursor[0] & ~uint64_t{0xffffffff}) | 55;  // this boot
    if (i % 2 == 0) cursor[0] &= (uint64_t{0x8000001f} << 32) | uint64_t{0xffffffff};
    if (i % 3 == 0) cursor[1] &= 0x000001ff'000001ff;
    const WireStatus status = Scan({.cursor = cursor});
    EXPECT_TRUE(status == WireStatus::kOk || status == WireStatus::kInvalid);
    if (status != WireStatus::kOk) continue;
    EXPECT_TRUE(wire::ParseKeyPage(answer_.body).ok());
    EXPECT_LE(answer_.body.size(), wire::kScanAnswerBytesMax);
  }
}

TEST_F(KeyScanTest, ALargePageStaysWithinWhatAnAnswerMayHave) {
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(Put(fmt::format("{:0512}", i), "v"), WireStatus::kOk);
  const KeyPage page = Page({});
  EXPECT_GE(page.keys.size(), 500U);
  EXPECT_LE(answer_.body.size(), wire::kScanAnswerBytesMax);
  const KeyPage small = Page({.bytes_max = 4 * 512});  // as the client asks, and the buckets begun
  EXPECT_GE(small.keys.size(), 4U);
  EXPECT_LE(small.keys.size(), 30U);
}

TEST_F(KeyScanTest, WhatMayChangeIsNotListedWithoutALease) {
  PutMany(3);
  clock_.Advance(std::chrono::seconds(200));
  EXPECT_EQ(Scan({}), WireStatus::kFenced);
}

TEST_F(KeyScanTest, OtherConnectionsHaveTheirTurnInALongScan) {
  PutMany(6000);
  session_->Sent();
  std::string body(AsText(wire::RawBytes(ScanBody())));
  body += "no-such";
  int turns = 0;
  answer_.Clear();
  while (session_->Handle(Header(Op::kScan, 0), {}, AsBytes(body), &answer_).again) ++turns;
  EXPECT_GE(turns, 15);
  EXPECT_LE(turns, 16 + 16);
}

}  // namespace
}  // namespace ems::server
