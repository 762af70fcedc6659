// What must hold: look-ups arrive once and in their order, a ring that overflowed is given up as a
// whole, and no content of a session page makes the server take more than it asked for.
#include "mp_server/index/sample_rings.h"

#include <gtest/gtest.h>

#include <new>

namespace ems::server {
namespace {

class SampleRingsTest : public ::testing::Test {
 protected:
  shm::SessionPage* AddPage(uint64_t session) {
    auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    EXPECT_TRUE(made.ok()) << made.status();
    auto* page = new (made->bytes().data()) shm::SessionPage;
    rings_.Add(session, std::make_shared<const fabric::ShmSegment>(*std::move(made)));
    return page;
  }
  static void Write(shm::SessionPage* page, uint64_t number) {
    const uint64_t at = page->sample_count.load();
    page->samples[at % shm::kSamplesMax].hash_lo = number;
    page->samples[at % shm::kSamplesMax].hash_hi = ~number;
    page->sample_count = at + 1;
  }
  std::vector<Hash128> Take(size_t most) {
    std::vector<Hash128> hashes(most);
    const SampleRings::Taken taken = rings_.Take(hashes);
    lost_ += taken.lost;
    EXPECT_LE(taken.hashes, most);
    hashes.resize(taken.hashes);
    return hashes;
  }
  SampleRings rings_;
  uint64_t lost_ = 0;
};

TEST_F(SampleRingsTest, LookUpsArriveOnceAndInTheirOrder) {
  EXPECT_TRUE(rings_.empty());
  shm::SessionPage* first = AddPage(1);
  shm::SessionPage* second = AddPage(2);
  for (uint64_t i = 0; i < 5; ++i) Write(first, i);
  Write(second, 77);
  const std::vector<Hash128> some = Take(3), rest = Take(8);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some[2], (Hash128{2, ~uint64_t{2}}));
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0].lo, 3u);
  EXPECT_EQ(rest[2].lo, 77u);
  EXPECT_TRUE(Take(8).empty());
  rings_.Remove(1);
  EXPECT_FALSE(rings_.empty());
  rings_.Remove(2);
  EXPECT_TRUE(rings_.empty());
  EXPECT_EQ(lost_, 0u);
}

TEST_F(SampleRingsTest, AFullRingIsTakenAndOneThatOverflowedIsGivenUp) {
  shm::SessionPage* page = AddPage(1);
  for (uint64_t i = 0; i < shm::kSamplesMax; ++i) Write(page, i);
  EXPECT_EQ(Take(2 * shm::kSamplesMax).size(), shm::kSamplesMax);
  EXPECT_EQ(lost_, 0u);
  for (uint64_t i = 0; i <= shm::kSamplesMax; ++i) Write(page, i);
  EXPECT_TRUE(Take(2 * shm::kSamplesMax).empty());
  EXPECT_EQ(lost_, shm::kSamplesMax);
  Write(page, 5);
  EXPECT_EQ(Take(8).size(), 1u);
}

TEST_F(SampleRingsTest, ACountThatIsNonsenseIsBelievedForOneRing) {
  shm::SessionPage* page = AddPage(1);
  page->sample_count = UINT64_MAX;
  EXPECT_TRUE(Take(8).empty());
  page->sample_count = 0;  // one more, as the count goes round
  EXPECT_EQ(Take(8), (std::vector<Hash128>{{0, 0}}));
  page->sample_count = uint64_t{1} << 63;
  EXPECT_TRUE(Take(8).empty());
  page->sample_count = 7;
  EXPECT_TRUE(Take(8).empty());
  EXPECT_EQ(lost_, 3 * shm::kSamplesMax);
}

}  // namespace
}  // namespace ems::server
