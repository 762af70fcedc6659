// What must hold: whichever way a block is read (straight, by ranges, beside and copied; pool or
// source), the wanted bytes and no others get to their places.
#include "ems_model/internal/block_reader.h"

#include <gtest/gtest.h>

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
