// What must hold: whichever way a block is read (straight, by ranges, beside and copied; pool or
// source), the wanted bytes and no others get to their places.
#include "ems_model/internal/block_reader.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "model_files/format/file_sum.h"
#include "tests/ems_model/fake_pool.h"

namespace ems::model::internal {
namespace {

// Wants the ranges that it is told of one file, at the same offsets of its memory.
class RangesTarget final : public LoadTarget {
 public:
  RangesTarget(uint64_t bytes, std::vector<std::pair<uint64_t, uint64_t>> ranges)
      : memory(bytes, '.'), ranges_(std::move(ranges)) {}
  Status Begin(std::span<const LoadFile>) override { return OkStatus(); }
  uint64_t Wants(uint32_t, uint64_t offset, uint64_t bytes) override {
    std::vector<LoadRange> ranges;
    EXPECT_TRUE(Place(0, offset, bytes, &ranges).ok());
    uint64_t sum = 0;
    for (const LoadRange& range : ranges) sum += range.into.size();
    return sum;
  }
  Status Place(uint32_t, uint64_t offset, uint64_t bytes, std::vector<LoadRange>* out) override {
    for (const auto& [at, size] : ranges_) {
      const uint64_t from = std::max(at, offset);
      const uint64_t to = std::min(at + size, offset + bytes);
      if (from >= to) continue;
      out->push_back({.offset = from,
                      .into = std::as_writable_bytes(std::span(memory)).subspan(from, to - from)});
    }
    return OkStatus();
  }
  Status Arrived(uint32_t, uint64_t, uint64_t) override { return OkStatus(); }
  Status End(const Status&) override { return OkStatus(); }
  std::string memory;

 private:
  const std::vector<std::pair<uint64_t, uint64_t>> ranges_;
};

struct Case {
  std::string name;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // of a file of 4 blocks of 256 KiB
  bool by_ranges;                                     // whether the pool is asked for ranges
};

class BlockReaderTest : public ::testing::TestWithParam<Case> {};

TEST_P(BlockReaderTest, TheWantedBytesAndNoOthersArrive) {
  for (const bool from_pool : {true, false}) {
    for (const bool known : {true, false}) {
      if (from_pool && !known) continue;
      SCOPED_TRACE(fmt::format("pool {} known {}", from_pool, known));
      FakeModel model({{"f", testing::MakeValue("n", "f", 1, kMiB)}}, 256 * kKiB);
      ASSERT_EQ(model.blocks(), 4U);
      if (known) model.BringAll();
      if (!from_pool) {
        model.pool.gate = [](std::string_view) { return Error(StatusCode::kUnavailable, "no"); };
        model.catalog.on_start = [](FakeCatalog* catalog) {
          catalog->job.state = JobState::kFailed;
          catalog->job.error = Error(StatusCode::kInternal, "no");
        };
      }
      RangesTarget target(kMiB, GetParam().ranges);
      std::string expected(kMiB, '.');
      for (const auto& [at, size] : GetParam().ranges)
        expected.replace(at, size, model.files["f"].substr(at, size));
      const Result<LoadStats> stats = model.Load(&target);
      ASSERT_TRUE(stats.ok()) << stats.status();
      EXPECT_TRUE(target.memory == expected);
      if (from_pool) {
        EXPECT_EQ(model.pool.ranges_read > 0, GetParam().by_ranges);
      }
    }
  }
}

// No block is known, and the pool is of no help: all is read from the source.
class UnknownBlocksTest : public ::testing::Test {
 protected:
  UnknownBlocksTest() {
    model_.catalog.on_start = [](FakeCatalog* catalog) {
      catalog->job.state = JobState::kFailed;
      catalog->job.error = Error(StatusCode::kInternal, "no");
    };
    // Each block, the first `damaged_` times that it is read.
    model_.source_damage = [this](const std::string&, uint64_t offset, MutableBytes into) {
      auto reads = reads_.Lock();
      const int before = (*reads)[offset / (256 * kKiB)]++;
      if (before < damaged_) into[static_cast<size_t>(before)] ^= std::byte{1};
    };
  }
  Result<LoadStats> Load(std::vector<std::pair<uint64_t, uint64_t>> ranges) {
    target_.emplace(kMiB, std::move(ranges));
    return model_.Load(&*target_);
  }

  FakeModel model_{{{"f", testing::MakeValue("n", "f", 1, kMiB)}}, 256 * kKiB};
  int damaged_ = 1;
  Guarded<std::map<uint64_t, int>> reads_;  // by block
  std::optional<RangesTarget> target_;
};

TEST_F(UnknownBlocksTest, OfASourceThatIsReadTwiceHaveToBeTheSameTwice) {
  model_.manifest.source.first_read = FirstRead::kTwiceUnlessChecked;
  const auto stats = Load({{0, kMiB}});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(target_->memory == model_.files["f"]);
  EXPECT_EQ(stats->source_bytes, 3 * kMiB) << "a damaged read, and two that are the same";
  EXPECT_EQ(model_.opened, 2) << "on two connections";
  const auto part = Load({{300'000, 1000}});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(target_->memory.substr(300'000, 1000), model_.files["f"].substr(300'000, 1000));
  damaged_ = 1000;
  EXPECT_EQ(Load({{0, kMiB}}).status().code(), StatusCode::kDataLoss);
}

TEST_F(UnknownBlocksTest, ThatHaveBeenComparedWithAChecksumAreReadOnceUnlessTwiceIsAskedFor) {
  damaged_ = 0;
  model_.source_compares = true;
  model_.manifest.source.first_read = FirstRead::kTwiceUnlessChecked;
  const auto once = Load({{0, kMiB}});
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->source_bytes, kMiB);
  model_.manifest.source.first_read = FirstRead::kTwice;
  const auto twice = Load({{0, kMiB}});
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_EQ(twice->source_bytes, 2 * kMiB);
}

TEST_F(UnknownBlocksTest, OfASourceThatIsReadOnceAreTakenAsTheyCome) {
  ASSERT_EQ(model_.manifest.source.first_read, FirstRead::kOnce);
  const auto stats = Load({{0, kMiB}});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->source_bytes, kMiB);
  EXPECT_FALSE(target_->memory == model_.files["f"]) << "which is what is asked for with it";
}

TEST_F(UnknownBlocksTest, OfAFileWithASumAreComparedWithThatFirst) {
  model_.manifest.files[0].sum = "md5:" + ToHex(*Md5(AsBytes(model_.files["f"])));
  const auto stats = Load({{300'000, 1000}});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(target_->memory.substr(300'000, 1000), model_.files["f"].substr(300'000, 1000));
  EXPECT_EQ(stats->source_bytes, 2 * kMiB + 256 * kKiB) << "the file, again, and the block";
  damaged_ = 1000;
  {
    auto reads = reads_.Lock();
    reads->clear();
  }
  const auto damaged = Load({{0, kMiB}});
  EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(target_->memory, std::string(kMiB, '.')) << "not a byte of it";
  int reads = 0;
  auto all = reads_.Lock();
  for (const auto& [block, times] : *all) reads += times;
  EXPECT_EQ(reads, 4 * static_cast<int>(kFileReadsMax)) << "by one for all threads";
}

// Two damaged reads, each in its own way, were taken for other bytes of the source.
TEST_F(UnknownBlocksTest, ThatAreKnownMeanAnotherSourceOnlyIfTheSameOthersComeTwice) {
  model_.BringAll();
  model_.pool.gate = [](std::string_view) { return Error(StatusCode::kUnavailable, "no"); };
  damaged_ = 3;
  const auto stats = Load({{0, kMiB}});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(target_->memory == model_.files["f"]);
  EXPECT_EQ(stats->source_bytes, 4 * kMiB);
  EXPECT_EQ(model_.opened, 1) << "what is read once has one stream";
  damaged_ = 1000;
  EXPECT_EQ(Load({{0, kMiB}}).status().code(), StatusCode::kDataLoss);
  model_.source_damage = [](const std::string&, uint64_t, MutableBytes into) {
    into[0] ^= std::byte{1};
  };
  EXPECT_EQ(Load({{0, kMiB}}).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(UnknownBlocksTest, AndKnownOnesUseBothStreamsWhereEachHasHalfOfTheRate) {
  model_.BringAll();
  model_.pool.gate = [](std::string_view) { return Error(StatusCode::kUnavailable, "no"); };
  damaged_ = 0;
  model_.manifest.source.first_read = FirstRead::kTwiceUnlessChecked;
  const auto stats = Load({{0, kMiB}});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->source_bytes, kMiB);
  EXPECT_EQ(model_.opened, 2);
}

std::vector<std::pair<uint64_t, uint64_t>> Every(uint64_t step, uint64_t size) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (uint64_t at = 0; at < kMiB; at += step) ranges.emplace_back(at, size);
  return ranges;
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BlockReaderTest,
    ::testing::Values(Case{"whole", {{0, kMiB}}, false},
                      Case{"whole_in_parts", Every(kMiB / 16, kMiB / 16), false},
                      Case{"whole_in_many_parts", Every(1024, 1024), false},
                      Case{"one_range", {{300'000, 100'000}}, true},
                      Case{"one_byte", {{kMiB - 1, 1}}, true},
                      Case{"thin_ranges", Every(1024, 100), false},
                      Case{"long_ranges", {{0, 64 * kKiB}, {128 * kKiB, 64 * kKiB}}, true},
                      Case{"most_of_it", {{0, 130'000}, {131'072, 131'072}}, false}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace ems::model::internal
