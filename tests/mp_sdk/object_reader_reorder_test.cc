// What must hold: however the lines of a read are ordered, and wherever the server goes on between
// them, a hit is one whole value of the key that was asked for. That the tester can tell is shown
// by readers that are wrong on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/object_key.h"
#include "mp_sdk/internal/object_reader.h"
#include "tests/support/pool_image.h"
#include "tests/support/reordering_memory.h"
#include "tests/support/self_verifying.h"

namespace ems::internal {
namespace {

using shm::ChunkState;
using testing::MakeValue;
using testing::PoolImage;
using testing::ReorderingMemory;
using testing::VerifyValue;

constexpr std::string_view kNames[] = {"alpha", "beta"};

// A server with one chunk, which holds now one key's value and now another's. Each turn takes one
// small step of what a server does, in its order.
class RecyclingServer final {
 public:
  RecyclingServer(PoolImage* image, std::mt19937_64* random) : image_(image), random_(random) {
    image_->Put(kAt, kNames[0], MakeValue("ns", kNames[0], 1, kValueBytes), 1);
  }
  // One turn in so many is a step. An object stands for kStands times as long.
  void set_one_in(uint64_t one_in) { one_in_ = one_in; }
  void Turn() {
    if ((*random_)() % (step_ == 0 ? kStands * one_in_ : one_in_) == 0) Step();
    if ((*random_)() % kPreempted != 0) return;
    for (uint64_t steps = (*random_)() % 40; steps > 0; --steps) Step();  // the reader lost its CPU
  }
  uint64_t generation() const { return generation_; }

 private:
  static constexpr uint64_t kStands = 8;
  static constexpr uint64_t kPreempted = 100;
  static constexpr uint64_t kAt = 128;
  static constexpr size_t kValueBytes = 700;

  void Step() {
    switch (step_) {
      case 0:
        image_->Unlink(kNames[key_], generation_);
        break;
      case 1:
        image_->SetState(kAt, generation_, ChunkState::kRetired);
        BeginNext();
        break;
      case 2:  // the chunk is another's now: header, key and payload in any order, line by line
        std::memcpy(image_->segment_file().bytes().data() + kAt + lines_.back() * 64,
                    next_.data() + lines_.back() * 64, 64);
        lines_.pop_back();
        if (!lines_.empty()) return;
        break;
      case 3:
        image_->SetState(kAt, generation_, ChunkState::kValid);
        break;
      default:
        image_->Link(kNames[key_], kAt, generation_);
        step_ = 0;
        return;
    }
    ++step_;
  }
  void BeginNext() {
    ++generation_;
    key_ = (*random_)() % 2;
    next_ = PoolImage::Lay(kNames[key_], MakeValue("ns", kNames[key_], generation_, kValueBytes),
                           generation_);
    lines_.resize(next_.size() / 64);
    std::iota(lines_.begin(), lines_.end(), uint64_t{0});
    std::shuffle(lines_.begin(), lines_.end(), *random_);
  }

  PoolImage* image_;
  std::mt19937_64* random_;
  uint64_t one_in_ = 1;
  uint64_t generation_ = 1;
  uint64_t key_ = 0;
  int step_ = 0;
  std::vector<std::byte> next_;
  std::vector<uint64_t> lines_;
};

struct Tally {
  int hits = 0;
  int wrong = 0;
};

// A reader of the test's own making: true when it believes that `value` is the key's.
using Attempt = std::function<bool(const ObjectReader&, std::string_view key, std::string* value)>;

Tally Play(uint64_t seed, int rounds, const Attempt& attempt) {
  std::mt19937_64 random(seed);
  PoolImage image(64 * kKiB);
  RecyclingServer server(&image, &random);
  const auto turn = [&server] { server.Turn(); };
  const ReorderingMemory table(image.table_file().bytes(), &random, turn);
  const ReorderingMemory segment(image.segment_file().bytes(), &random, turn);
  image.seen_table = &table;
  image.seen_segment = &segment;
  const PoolIdentity identity = image.identity();
  const ObjectReader reader(&image, &identity, PoolImage::kView);
  Tally tally;
  for (int i = 0; i < rounds; ++i) {
    server.set_one_in(1 + random() % 40);  // from a step at each line to few in a read
    const std::string_view key = kNames[random() % 2];
    std::string value;
    if (!attempt(reader, key, &value)) continue;
    ++tally.hits;
    if (!VerifyValue("ns", key, value)) ++tally.wrong;
  }
  return tally;
}

bool ReadAsSpecified(const ObjectReader& reader, std::string_view key, std::string* value) {
  FoundObject found;
  const CopyRequest request{.into = {}, .grow = value, .verify = false};
  return reader.Read(key, KeyHash(key), request, &found) == ReadOutcome::kHit;
}

bool ReadWithoutCheckingAfterwards(const ObjectReader& reader, std::string_view key,
                                   std::string* value) {
  FoundObject found;
  if (reader.Find(key, KeyHash(key), &found) != ReadOutcome::kHit) return false;
  value->resize(found.payload_bytes);
  found.segment->Read(found.payload_at, std::as_writable_bytes(std::span(*value)));
  return true;
}

bool ReadTheLastLineAfterChecking(const ObjectReader& reader, std::string_view key,
                                  std::string* value) {
  FoundObject found;
  if (reader.Find(key, KeyHash(key), &found) != ReadOutcome::kHit) return false;
  value->resize(found.payload_bytes);
  const MutableBytes room = std::as_writable_bytes(std::span(*value));
  found.segment->Read(found.payload_at, room.first(room.size() - 64));
  if (!reader.StillThere(found)) return false;
  found.segment->Read(found.payload_at + room.size() - 64, room.last(64));
  return true;
}

class ReorderTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ReorderTest, OurReaderReturnsOnlyWholeValues) {
  const Tally tally = Play(GetParam(), 20'000, ReadAsSpecified);
  RecordProperty("hits", tally.hits);
  EXPECT_GT(tally.hits, 1000) << "the test has to get through at times";
  EXPECT_EQ(tally.wrong, 0);
}

TEST_P(ReorderTest, RangesAreWholeAndVerifiedByTheSumsOfTheirOwnValue) {
  const Tally tally = Play(
      GetParam(), 20'000, [](const ObjectReader& reader, std::string_view key, std::string* out) {
        FoundObject found;
        out->resize(700);
        const CopyRequest request{.into = std::as_writable_bytes(std::span(*out)),
                                  .grow = nullptr,
                                  .ranged = true,
                                  .offset = 0};
        const ReadOutcome outcome = reader.Read(key, KeyHash(key), request, &found);
        EXPECT_NE(outcome, ReadOutcome::kMismatch) << "what still stands matches its checksum";
        return outcome == ReadOutcome::kHit;
      });
  EXPECT_GT(tally.hits, 500);
  EXPECT_EQ(tally.wrong, 0);
}

TEST_P(ReorderTest, AReaderThatDoesNotCheckAfterwardsIsCaught) {
  EXPECT_GT(Play(GetParam(), 10'000, ReadWithoutCheckingAfterwards).wrong, 0);
}

TEST_P(ReorderTest, AReaderThatChecksTooEarlyIsCaught) {
  EXPECT_GT(Play(GetParam(), 10'000, ReadTheLastLineAfterChecking).wrong, 0);
}

// The server links the new value, then unlinks the old one: each at any moment of the look-up.
TEST(ReplacedUnderTheReaderTest, AValueIsFoundAtEveryMoment) {
  constexpr int kMoments = 30;
  for (int link_at = 0; link_at < kMoments; ++link_at) {
    for (int unlink_at = link_at; unlink_at < kMoments; ++unlink_at) {
      for (const bool moves_up : {false, true}) {
        PoolImage image(64 * kKiB);
        uint64_t old_generation = 1;
        image.Put(0, "key", "old", old_generation);
        if (moves_up) {  // the old entry further on than the first free one
          image.Put(1024, "key", "older", 2);
          image.Unlink("key", 1);
          old_generation = 2;
        }
        image.Write(2048, "key", "new", 3);
        std::mt19937_64 random(1);
        int moment = 0;
        const ReorderingMemory table(image.table_file().bytes(), &random, [&] {
          if (moment == link_at) image.Link("key", 2048, 3);
          if (moment == unlink_at) image.Unlink("key", old_generation);
          ++moment;
        });
        image.seen_table = &table;
        const PoolIdentity identity = image.identity();
        FoundObject found;
        EXPECT_EQ(
            ObjectReader(&image, &identity, PoolImage::kView).Find("key", KeyHash("key"), &found),
            ReadOutcome::kHit)
            << link_at << " " << unlink_at << " " << moves_up;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReorderTest, ::testing::Values(1, 2, 3, 20240817),
                         [](const auto& one) { return "seed" + std::to_string(one.param); });

}  // namespace
}  // namespace ems::internal
