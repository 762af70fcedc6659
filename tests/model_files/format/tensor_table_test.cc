#include "model_files/format/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/bytes.h"

namespace ems::model {
namespace {

using ::testing::HasSubstr;

TEST(TensorTableTest, EachTypeIsFoundByItsNameAndNoNameIsUsedTwice) {
  std::set<std::string_view> names;
  for (const DTypeTraits& traits : AllDTypes()) {
    EXPECT_EQ(DTypeByName(traits.name), traits.dtype) << traits.name;
    EXPECT_EQ(&TraitsOf(traits.dtype), &traits);
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
  }
  EXPECT_EQ(DTypeByName("F33"), std::nullopt);
  EXPECT_EQ(DTypeByName(""), std::nullopt);
}

TEST(TensorTableTest, BytesAreElementsTimesTheirSize) {
  EXPECT_EQ(*TensorBytes(DType::kF32, std::vector<uint64_t>{3, 5}), 60u);
  EXPECT_EQ(*TensorBytes(DType::kBF16, std::vector<uint64_t>{7, 3}), 42u);
  EXPECT_EQ(*TensorBytes(DType::kF64, {}), 8u);  // a scalar
  EXPECT_EQ(*TensorBytes(DType::kI8, std::vector<uint64_t>{4, 0, 9}), 0u);
  EXPECT_EQ(*TensorBytes(DType::kF4, std::vector<uint64_t>{6}), 3u);
  EXPECT_EQ(*TensorBytes(DType::kF6E2M3, std::vector<uint64_t>{8}), 6u);
  EXPECT_EQ(*TensorBytes(DType::kQ4K, std::vector<uint64_t>{2, 512}), 4u * 144);
  EXPECT_EQ(*TensorBytes(DType::kQ8_0, std::vector<uint64_t>{32}), 34u);
  EXPECT_EQ(*TensorBytes(DType::kU8, std::vector<uint64_t>{UINT64_MAX}), UINT64_MAX);
}

TEST(TensorTableTest, SizesThatOverflowOrCutABlockAreErrorsWithTheNumbers) {
  const auto text = [](DType dtype, const std::vector<uint64_t>& shape) {
    const auto bytes = TensorBytes(dtype, shape);
    return bytes.ok() ? std::string("ok") : ToString(bytes.status());
  };
  EXPECT_THAT(text(DType::kU8, {1ull << 32, 1ull << 32}), HasSubstr("more than 2^64 - 1 elements"));
  EXPECT_THAT(text(DType::kU16, {1ull << 63}), HasSubstr("of U16 has more than 2^64 - 1 bytes"));
  EXPECT_THAT(text(DType::kF4, {3}), HasSubstr("[3] has 3 elements, which is no multiple of 2"));
  EXPECT_THAT(text(DType::kQ4_0, {2, 8}), HasSubstr("Q4_0 stores that many together"));
}

TensorInfo Bytes(std::string name, uint64_t offset, uint64_t bytes) {
  return {.name = std::move(name),
          .dtype = DType::kU8,
          .shape = {bytes},
          .offset = offset,
          .bytes = bytes};
}

TEST(TensorTableTest, SortsByOffsetAndEmptyTensorsGoBeforeTheOneThatBeginsThere) {
  TensorTable table;
  table.data_begin = 10;
  table.tensors = {Bytes("c", 20, 5), Bytes("b", 10, 10), Bytes("empty", 20, 0), Bytes("a", 10, 0)};
  ASSERT_TRUE(SortAndCheck(25, &table).ok());
  std::string order;
  for (const TensorInfo& tensor : table.tensors) order += tensor.name + " ";
  EXPECT_EQ(order, "a b empty c ");
}

TEST(TensorTableTest, RefusesOverlapBytesBeyondTheEndAndNamesTwice) {
  const auto check = [](std::vector<TensorInfo> tensors) {
    TensorTable table;
    table.data_begin = 10;
    table.tensors = std::move(tensors);
    return ToString(SortAndCheck(100, &table));
  };
  EXPECT_EQ(check({Bytes("a", 10, 50), Bytes("b", 60, 40)}), "OK");
  EXPECT_THAT(check({Bytes("a", 10, 51), Bytes("b", 60, 40)}),
              HasSubstr("tensor 'b' begins at byte 60, inside tensor 'a' that ends at byte 61"));
  EXPECT_THAT(check({Bytes("a", 9, 5)}),
              HasSubstr("tensor 'a' begins at byte 9, inside the header"));
  EXPECT_THAT(check({Bytes("a", 60, 41)}),
              HasSubstr("tensor 'a' has 41 bytes from byte 60 on, but the file ends at byte 100"));
  EXPECT_THAT(check({Bytes("a", 20, UINT64_MAX)}), HasSubstr("the file ends at byte 100"));
  EXPECT_THAT(check({Bytes("a", 10, 5), Bytes("a", 20, 5)}),
              HasSubstr("tensor 'a' is listed twice"));
}

TEST(TensorTableTest, Utf8IsTakenAndNothingElse) {
  for (const std::string_view good :
       {"", "plain", "Gewicht ü", "層", "\xF0\x9F\x98\x80", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF",
        "\xED\x9F\xBF", "\xE0\xA0\x80"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  // Tails alone, overlong, surrogates, beyond U+10FFFF, cut off.
  for (const std::string_view bad :
       {"\x80", "a\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98",
        "\xC3\x28"}) {
    EXPECT_FALSE(IsUtf8(bad)) << ToHex(AsBytes(bad));
  }
}

}  // namespace
}  // namespace ems::model
