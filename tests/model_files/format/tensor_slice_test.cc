#include "model_files/format/tensor_slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ems::model {
namespace {

using ::testing::HasSubstr;

TensorInfo Tensor(DType dtype, std::vector<uint64_t> shape) {
  TensorInfo tensor{
      .name = "t", .dtype = dtype, .shape = std::move(shape), .offset = 4096, .bytes = 0};
  tensor.bytes = *TensorBytes(tensor.dtype, tensor.shape);
  return tensor;
}

std::string ErrorOf(const TensorInfo& tensor, const SliceSpec& spec) {
  return ToString(SliceTensor(tensor, spec).status());
}

TEST(TensorSliceTest, TheOuterAxisIsOneRange) {
  const auto slice = SliceTensor(Tensor(DType::kBF16, {8, 6}), {.axis = 0, .rank = 3, .ranks = 4});
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->shape, (std::vector<uint64_t>{2, 6}));
  EXPECT_EQ(slice->ranges, 1u);
  EXPECT_EQ(slice->Range(0), (SliceRange{.offset = 72, .bytes = 24, .destination = 0}));
}

TEST(TensorSliceTest, AnInnerAxisIsOneRangeARow) {
  const auto slice = SliceTensor(Tensor(DType::kBF16, {3, 8}), {.axis = 1, .rank = 1, .ranks = 2});
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->shape, (std::vector<uint64_t>{3, 4}));
  ASSERT_EQ(slice->ranges, 3u);
  EXPECT_EQ(slice->bytes, 24u);
  EXPECT_EQ(slice->Range(0), (SliceRange{.offset = 8, .bytes = 8, .destination = 0}));
  EXPECT_EQ(slice->Range(2), (SliceRange{.offset = 40, .bytes = 8, .destination = 16}));
}

TEST(TensorSliceTest, RangesThatTouchAreJoined) {
  const auto all = SliceTensor(Tensor(DType::kF32, {4, 5, 6}), {.axis = 2, .rank = 0, .ranks = 1});
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->ranges, 1u);
  EXPECT_EQ(all->Range(0), (SliceRange{.offset = 0, .bytes = 480, .destination = 0}));
  const auto inner =
      SliceTensor(Tensor(DType::kF32, {1, 1, 6}), {.axis = 2, .rank = 1, .ranks = 2});
  ASSERT_TRUE(inner.ok());
  ASSERT_EQ(inner->ranges, 1u);
  EXPECT_EQ(inner->Range(0), (SliceRange{.offset = 12, .bytes = 12, .destination = 0}));
}

TEST(TensorSliceTest, TensorsWithoutBytesHaveNoRanges) {
  const auto slice =
      SliceTensor(Tensor(DType::kF32, {0, 1ull << 33, 4}), {.axis = 2, .rank = 1, .ranks = 2});
  ASSERT_TRUE(slice.ok()) << ToString(slice.status());
  EXPECT_EQ(slice->ranges, 0u);
  EXPECT_EQ(slice->bytes, 0u);
  EXPECT_EQ(slice->shape, (std::vector<uint64_t>{0, 1ull << 33, 2}));
}

TEST(TensorSliceTest, QuantisedTypesAreCutBetweenBlocksOnly) {
  const TensorInfo tensor = Tensor(DType::kQ4K, {6, 1024});
  EXPECT_EQ(SliceTensor(tensor, {.axis = 1, .rank = 2, .ranks = 4})->Range(5),
            (SliceRange{.offset = 3168, .bytes = 144, .destination = 720}));
  EXPECT_EQ(ErrorOf(tensor, {.axis = 1, .rank = 0, .ranks = 8}),
            "INVALID_ARGUMENT: tensor 't' of shape [6, 1024]: axis 1 for 8 ranks cuts runs of 128 "
            "elements, "
            "through Q4_K's blocks of 256");
  EXPECT_TRUE(SliceTensor(tensor, {.axis = 0, .rank = 5, .ranks = 6}).ok());
  EXPECT_THAT(ErrorOf(Tensor(DType::kF4, {2, 2}), {.axis = 1, .rank = 0, .ranks = 2}),
              HasSubstr("cuts runs of 1 elements, through F4's blocks of 2"));
}

TEST(TensorSliceTest, WhatCannotBeCutIsSaidWithTheNumbers) {
  const TensorInfo tensor = Tensor(DType::kF16, {8, 10});
  EXPECT_EQ(ErrorOf(tensor, {.axis = 1, .rank = 0, .ranks = 4}),
            "INVALID_ARGUMENT: tensor 't' of shape [8, 10]: axis 1 has 10 elements, which 4 ranks "
            "cannot share evenly");
  EXPECT_EQ(ErrorOf(tensor, {.axis = 2, .rank = 0, .ranks = 2}),
            "INVALID_ARGUMENT: tensor 't' has no axis 2: its shape is [8, 10]");
  EXPECT_EQ(ErrorOf(tensor, {.axis = 0, .rank = 2, .ranks = 2}),
            "INVALID_ARGUMENT: tensor 't': rank 2 of 2 ranks");
  EXPECT_EQ(ErrorOf(tensor, {.axis = 0, .rank = 0, .ranks = 0}),
            "INVALID_ARGUMENT: tensor 't': rank 0 of 0 ranks");
  EXPECT_THAT(ErrorOf(Tensor(DType::kF32, {}), {}), HasSubstr("has no axis 0: its shape is []"));
  TensorInfo wrong = tensor;
  wrong.bytes = 159;
  EXPECT_EQ(ErrorOf(wrong, {}),
            "INVALID_ARGUMENT: tensor 't' has 159 bytes, but F16 of shape [8, 10] needs 160");
}

// The naive way: each element of the slice, found by its indices. `unit`: bytes of what is never
// divided.
std::vector<uint8_t> NaiveSlice(const std::vector<uint8_t>& data,
                                const std::vector<uint64_t>& units_shape, const SliceSpec& spec,
                                uint64_t unit) {
  std::vector<uint8_t> slice;
  for (uint64_t number = 0; number < data.size() / unit; ++number) {
    uint64_t rest = number;
    std::vector<uint64_t> index(units_shape.size());
    for (size_t axis = units_shape.size(); axis-- > 0; rest /= units_shape[axis]) {
      index[axis] = rest % units_shape[axis];
    }
    if (index[spec.axis] / (units_shape[spec.axis] / spec.ranks) != spec.rank) continue;
    const auto from = data.begin() + static_cast<ptrdiff_t>(number * unit);
    slice.insert(slice.end(), from, from + static_cast<ptrdiff_t>(unit));
  }
  return slice;
}

TEST(TensorSliceTest, SlicesOfRandomTensorsAreThoseOfANaiveIndexWalkAndMakeUpTheTensor) {
  const uint32_t seed = 20260711;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr DType kTypes[] = {DType::kU8,  DType::kBF16, DType::kF32,
                              DType::kF64, DType::kF4,   DType::kQ8_0};
  for (int round = 0; round < 500; ++round) {
    const DTypeTraits& traits = TraitsOf(kTypes[random() % std::size(kTypes)]);
    const uint32_t ranks = 1 + random() % 4;
    std::vector<uint64_t> shape(1 + random() % 4);
    for (uint64_t& extent : shape) extent = 1 + random() % 4;
    const auto axis = static_cast<uint32_t>(random() % shape.size());
    shape[axis] *= ranks;
    const std::vector<uint64_t> units_shape = shape;  // the last dimension in blocks
    shape.back() *= traits.block_elements;
    const TensorInfo tensor = Tensor(traits.dtype, shape);
    std::vector<uint8_t> data(tensor.bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());

    std::vector<uint8_t> covered(tensor.bytes, 0);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const SliceSpec spec{.axis = axis, .rank = rank, .ranks = ranks};
      const auto slice = SliceTensor(tensor, spec);
      ASSERT_TRUE(slice.ok()) << ToString(slice.status());
      ASSERT_EQ(*TensorBytes(tensor.dtype, slice->shape), slice->bytes);
      std::vector<uint8_t> gathered(slice->bytes);
      uint64_t end = 0;
      for (uint64_t i = 0; i < slice->ranges; ++i) {
        const SliceRange range = slice->Range(i);
        ASSERT_TRUE(i == 0 || range.offset > end) << "ranges that touch are one";
        ASSERT_LE(end = range.offset + range.bytes, tensor.bytes);
        ASSERT_LE(range.destination + range.bytes, slice->bytes);
        std::copy_n(data.begin() + static_cast<ptrdiff_t>(range.offset), range.bytes,
                    gathered.begin() + static_cast<ptrdiff_t>(range.destination));
        for (uint64_t at = range.offset; at < end; ++at) ++covered[at];
      }
      ASSERT_EQ(gathered, NaiveSlice(data, units_shape, spec, traits.block_bytes))
          << ShapeText(shape);
    }
    ASSERT_EQ(covered, std::vector<uint8_t>(tensor.bytes, 1)) << ShapeText(shape);
  }
}

TEST(TensorSliceTest, ARangeOfAnAxisLiesAtEqualDistances) {
  TensorInfo tensor{
      .name = "t", .dtype = DType::kF16, .shape = {4, 10, 3}, .offset = 0, .bytes = 240};
  auto slice = SliceTensor(tensor, {.axis = 1, .range = AxisRange{2, 7}});
  ASSERT_TRUE(slice.ok()) << slice.status();
  EXPECT_EQ(slice->shape, (std::vector<uint64_t>{4, 5, 3}));
  EXPECT_EQ(slice->bytes, 120u);
  ASSERT_EQ(slice->ranges, 4u);
  EXPECT_EQ(slice->Range(1), (SliceRange{.offset = 72, .bytes = 30, .destination = 30}));
  slice = SliceTensor(tensor, {.axis = 1, .range = AxisRange{0, 10}});
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->ranges, 1u);  // all of it
  slice = SliceTensor(tensor, {.axis = 0, .range = AxisRange{3, 3}});
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->bytes, 0u);
  for (const AxisRange wrong : {AxisRange{0, 11}, AxisRange{5, 4}}) {
    EXPECT_EQ(SliceTensor(tensor, {.axis = 1, .range = wrong}).status().code(),
              StatusCode::kInvalidArgument);
  }
  tensor = {.name = "q", .dtype = DType::kQ8_0, .shape = {2, 64}, .offset = 0, .bytes = 136};
  EXPECT_TRUE(SliceTensor(tensor, {.axis = 1, .range = AxisRange{32, 64}}).ok());
  EXPECT_FALSE(SliceTensor(tensor, {.axis = 1, .range = AxisRange{16, 48}}).ok());
}

}  // namespace
}  // namespace ems::model
