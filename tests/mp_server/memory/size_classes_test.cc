#include "mp_server/memory/size_classes.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

const SizeClasses& classes = SizeClasses::Get();

uint64_t MemoryOf(const Footprint& footprint) {
  return footprint.is_run() ? footprint.pages * kPageBytes
                            : classes.at(footprint.size_class).chunk_bytes;
}

TEST(SizeClassesTest, ClassesAreAtMostAnEighthApart) {
  for (uint8_t i = 1; i < classes.count(); ++i) {
    const uint64_t step = classes.at(i).value_bytes - classes.at(i - 1).value_bytes;
    EXPECT_LE(step, std::max<uint64_t>(64, classes.at(i - 1).value_bytes / 8))
        << "class " << int{i};
  }
}

TEST(SizeClassesTest, PowersOfTwoWithOrdinaryKeysWasteNothingButTheHead) {
  for (uint64_t value = 64; value <= 256 * kKiB; value *= 2) {
    for (const uint64_t key : {32, 64}) {
      const Footprint footprint = classes.For(value, key);
      ASSERT_FALSE(footprint.is_run());
      EXPECT_EQ(classes.at(footprint.size_class).value_bytes, value) << "key of " << key;
    }
  }
  const uint64_t memory = MemoryOf(classes.For(16384, 64));
  EXPECT_LT(memory - (16384 + 64 + kObjectHeaderBytes), 16384u / 100);
}

TEST(SizeClassesTest, SlabsAndRunsOfUniformBlocksArePayloadToNinetyFivePercent) {
  for (const uint64_t value :
       {8 * kKiB, 16 * kKiB, 64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 4 * kMiB}) {
    const Footprint footprint = classes.For(value, 32);
    double share = static_cast<double>(value) / static_cast<double>(MemoryOf(footprint));
    if (!footprint.is_run()) {
      const SizeClass& shape = classes.at(footprint.size_class);
      share = static_cast<double>(SizeClasses::ChunksIn(shape, shape.slab_pages) * value) /
              static_cast<double>(shape.slab_pages * kPageBytes);
    }
    EXPECT_GE(share, 0.95) << value;
  }
}

// Whatever the size, the object fits where it is put.
TEST(SizeClassesTest, EveryValueAndKeyFitsItsFootprint) {
  for (uint8_t i = 0; i < classes.count(); ++i) {
    for (const int64_t off : {-1, 0, 1}) {
      for (const uint64_t key : {1, 64, 65, 224, 225, 512}) {
        const uint64_t value =
            static_cast<uint64_t>(static_cast<int64_t>(classes.at(i).value_bytes) + off);
        const Footprint footprint = classes.For(value, key);
        const uint64_t head = kObjectHeaderBytes + TableBytes(value) + key;
        if (footprint.is_run()) {
          EXPECT_GE(footprint.head_bytes, head);
          EXPECT_EQ(footprint.head_bytes % kDirectIoBytes, 0u);
          EXPECT_GE(footprint.pages * kPageBytes, footprint.head_bytes + value);
        } else if (const SizeClass& shape = classes.at(footprint.size_class); shape.paged) {
          EXPECT_GE(shape.value_bytes, value);
          EXPECT_LE(head, kPagedHeadBytes);
        } else {
          EXPECT_LE(head + value, shape.chunk_bytes);
          EXPECT_EQ(TableBytes(value), 0u);
        }
      }
    }
  }
}

TEST(SizeClassesTest, TinyAndHugeValues) {
  EXPECT_EQ(classes.For(0, 1).size_class, 0);
  EXPECT_EQ(classes.For(1, 1).size_class, 0);
  EXPECT_TRUE(classes.For(256 * kKiB + 1, 32).is_run());
  EXPECT_EQ(classes.For(64 * kMiB, 32).pages, 64 * kMiB / kPageBytes + 1);
  EXPECT_GT(uint64_t{classes.For(uint64_t{1} << 32, 32).pages} * kPageBytes, uint64_t{1} << 32);
}

TEST(SizeClassesTest, SlabsWasteAtMostTwoPercent) {
  for (uint8_t i = 0; i < classes.count(); ++i) {
    const SizeClass& shape = classes.at(i);
    const uint64_t bytes = shape.slab_pages * kPageBytes;
    EXPECT_LE(bytes, 2 * kMiB);
    EXPECT_LE((bytes - SizeClasses::ChunksIn(shape, shape.slab_pages) * shape.chunk_bytes) * 50,
              bytes)
        << int{i};
    EXPECT_GE(SizeClasses::ChunksIn(shape, shape.slab_pages_min), 1u);
  }
}

}  // namespace
}  // namespace ems::server
