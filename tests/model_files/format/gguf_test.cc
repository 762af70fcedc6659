#include "model_files/format/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/model_files.h"

namespace ems::model {
namespace {

using namespace ems::testing;  // NOLINT(google-build-using-namespace): the builders
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ6_K = 14;  // ggml's numbers

std::string ErrorOf(std::string_view file) {
  const auto parse = ParseGguf(AsBytes(file), file.size(), "m.gguf");
  if (!parse.ok()) return ToString(parse.status());
  return parse->done() ? "parsed" : "needs more";
}

// Parses as a caller does: from few bytes on, with what it is told to read.
Result<TensorTable> ReadTable(std::string_view file, uint64_t first) {
  for (uint64_t given = first;;) {
    auto parse = ParseGguf(AsBytes(file).first(given), file.size(), "m.gguf");
    if (!parse.ok()) return parse.status();
    if (parse->done()) return std::move(parse->table);
    EXPECT_GT(parse->bytes_needed, given);
    EXPECT_LE(parse->bytes_needed, file.size());
    given = parse->bytes_needed;
  }
}

GgufBuilder Sample() {
  GgufBuilder builder;
  builder.Pair("general.architecture", kGgufString, GgufText("llama"))
      .Pair("u8", kGgufUint8, Packed<uint8_t>(200))
      .Pair("i8", kGgufInt8, Packed<int8_t>(-100))
      .Pair("u16", kGgufUint16, Packed<uint16_t>(60000))
      .Pair("i16", kGgufInt16, Packed<int16_t>(-30000))
      .Pair("u32", kGgufUint32, Packed<uint32_t>(4000000000))
      .Pair("i32", kGgufInt32, Packed<int32_t>(-2000000000))
      .Pair("f32", kGgufFloat32, Packed(0.5f))
      .Pair("yes", kGgufBool, Packed<uint8_t>(1))
      .Pair("no", kGgufBool, Packed<uint8_t>(0))
      .Pair("u64", kGgufUint64, Packed<uint64_t>(UINT64_MAX))
      .Pair("i64", kGgufInt64, Packed<int64_t>(INT64_MIN))
      .Pair("f64", kGgufFloat64, Packed(-2.25))
      .Pair("list", kGgufArray, GgufList(kGgufInt32, {Packed<int32_t>(1), Packed<int32_t>(-2)}))
      .Pair("none", kGgufArray, GgufList(kGgufString, {}))
      .Pair("words", kGgufArray,
            GgufList(kGgufString, std::vector<std::string>(17, GgufText("tok"))))
      .Pair("long", kGgufArray,
            GgufList(kGgufUint16, std::vector<std::string>(40, Packed<uint16_t>(7))))
      .Pair("nested", kGgufArray,
            GgufList(kGgufArray, {GgufList(kGgufBool, {Packed<uint8_t>(1)}),
                                  GgufList(kGgufString, {GgufText("a")})}))
      .Add("norm", {5}, kF32, 20)
      .Add("weight", {512, 3, 2}, kQ6_K, uint64_t{12} * 210)
      .Add("scalar", {}, kF32, 4)
      .Add("empty", {0, 4}, kF32, 0)
      .Add("last", {32}, kQ4_0, 18);
  return builder;
}

void ExpectSample(const TensorTable& table) {
  EXPECT_EQ(table.metadata, (std::map<std::string, std::string>{{"general.architecture", "llama"},
                                                                {"u8", "200"},
                                                                {"i8", "-100"},
                                                                {"u16", "60000"},
                                                                {"i16", "-30000"},
                                                                {"u32", "4000000000"},
                                                                {"i32", "-2000000000"},
                                                                {"f32", "0.5"},
                                                                {"yes", "true"},
                                                                {"no", "false"},
                                                                {"u64", "18446744073709551615"},
                                                                {"i64", "-9223372036854775808"},
                                                                {"f64", "-2.25"},
                                                                {"list", "[1, -2]"},
                                                                {"none", "[]"},
                                                                {"words", "[17 x string]"},
                                                                {"long", "[40 x uint16]"},
                                                                {"nested", "[[true], [a]]"}}));
  const uint64_t at = table.data_begin;
  EXPECT_EQ(
      table.tensors,
      (std::vector<TensorInfo>{
          {.name = "norm", .dtype = DType::kF32, .shape = {5}, .offset = at, .bytes = 20},
          {.name = "weight",
           .dtype = DType::kQ6K,
           .shape = {2, 3, 512},
           .offset = at + 32,
           .bytes = 2520},
          {.name = "scalar", .dtype = DType::kF32, .shape = {}, .offset = at + 2560, .bytes = 4},
          {.name = "empty", .dtype = DType::kF32, .shape = {4, 0}, .offset = at + 2592, .bytes = 0},
          {.name = "last", .dtype = DType::kQ4_0, .shape = {32}, .offset = at + 2592, .bytes = 18},
      }));
}

TEST(GgufTest, ReadsMetadataAndTensorsWithTheirPlacesInTheFile) {
  for (const uint32_t version : {2u, 3u}) {
    for (const bool pad_end : {true, false}) {
      GgufBuilder builder = Sample();
      builder.version = version;
      builder.pad_end = pad_end;
      const std::string file = builder.Build();
      const auto table = ReadTable(file, 0);
      ASSERT_TRUE(table.ok()) << ToString(table.status());
      EXPECT_EQ(table->data_begin, RoundUp(builder.Header().size(), 32));
      ExpectSample(*table);
    }
  }
}

TEST(GgufTest, AnyFirstBytesGiveTheSameTableInTheEnd) {
  const std::string file = Sample().Build();
  const uint64_t header_bytes = Sample().Header().size();
  for (uint64_t given = 0; given <= header_bytes; ++given) {
    const auto parse = ParseGguf(AsBytes(file).first(given), file.size(), "m.gguf");
    ASSERT_TRUE(parse.ok()) << given << ": " << ToString(parse.status());
    EXPECT_EQ(parse->done(), given == header_bytes) << given;
    const auto table = ReadTable(file, given);
    ASSERT_TRUE(table.ok()) << given;
    ExpectSample(*table);
  }
}

TEST(GgufTest, AskedFirstBytesGrowByDoublingAndStopAtTheFilesEnd) {
  GgufBuilder builder;
  builder.Pair("vocabulary", kGgufArray,
               GgufList(kGgufString, std::vector<std::string>(50'000, GgufText("token"))));
  const std::string file = builder.Build();  // 650 KB
  std::vector<uint64_t> asked;
  for (uint64_t given = 0;;) {
    const auto parse = ParseGguf(AsBytes(file).first(given), file.size(), "m.gguf");
    ASSERT_TRUE(parse.ok());
    if (parse->done()) break;
    asked.push_back(given = parse->bytes_needed);
  }
  EXPECT_EQ(asked,
            (std::vector<uint64_t>{64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, file.size()}));
}

TEST(GgufTest, TheFilesOwnAlignmentCounts) {
  GgufBuilder builder;
  builder.alignment = 4096;
  builder.Pair("general.alignment", kGgufUint32, Packed<uint32_t>(4096))
      .Add("a", {1}, kF32, 4)
      .Add("b", {1}, kF32, 4);
  const auto table = ReadTable(builder.Build(), 0);
  ASSERT_TRUE(table.ok()) << ToString(table.status());
  EXPECT_EQ(table->data_begin, 4096u);
  EXPECT_EQ(table->tensors[1].offset, 8192u);
  EXPECT_EQ(table->metadata.at("general.alignment"), "4096");
}

TEST(GgufTest, AFileWithoutTensorsMayEndWithItsHeader) {
  GgufBuilder builder;
  builder.Pair("general.architecture", kGgufString, GgufText("x"));
  const std::string header = builder.Header();
  const auto table = ReadTable(header, 0);
  ASSERT_TRUE(table.ok()) << ToString(table.status());
  EXPECT_EQ(table->data_begin, header.size());
}

TEST(GgufTest, TensorsMayBeListedInAnyOrderAndLeaveGaps) {
  GgufBuilder builder;
  builder.AddAt("b", {2}, kF32, 128).AddAt("a", {2}, kF32, 32).Data(200);
  const auto table = ReadTable(builder.Build(), 0);
  ASSERT_TRUE(table.ok()) << ToString(table.status());
  EXPECT_EQ(table->tensors[0].name, "a");
  EXPECT_EQ(table->tensors[0].offset, table->data_begin + 32);
}

// Sizes from struct definitions in ggml-common.h: element count and bytes of a block, by ggml's
// number.
TEST(GgufTest, EachTypeOfGgmlHasItsSize) {
  const struct {
    uint32_t type;
    uint64_t elements, bytes;
    const char* name;
  } kTypes[] = {
      {0, 1, 4, "F32"},         {1, 1, 2, "F16"},         {2, 32, 18, "Q4_0"},
      {3, 32, 20, "Q4_1"},      {6, 32, 22, "Q5_0"},      {7, 32, 24, "Q5_1"},
      {8, 32, 34, "Q8_0"},      {9, 32, 36, "Q8_1"},      {10, 256, 84, "Q2_K"},
      {11, 256, 110, "Q3_K"},   {12, 256, 144, "Q4_K"},   {13, 256, 176, "Q5_K"},
      {14, 256, 210, "Q6_K"},   {15, 256, 292, "Q8_K"},   {16, 256, 66, "IQ2_XXS"},
      {17, 256, 74, "IQ2_XS"},  {18, 256, 98, "IQ3_XXS"}, {19, 256, 50, "IQ1_S"},
      {20, 32, 18, "IQ4_NL"},   {21, 256, 110, "IQ3_S"},  {22, 256, 82, "IQ2_S"},
      {23, 256, 136, "IQ4_XS"}, {24, 1, 1, "I8"},         {25, 1, 2, "I16"},
      {26, 1, 4, "I32"},        {27, 1, 8, "I64"},        {28, 1, 8, "F64"},
      {29, 256, 56, "IQ1_M"},   {30, 1, 2, "BF16"},       {34, 256, 54, "TQ1_0"},
      {35, 256, 66, "TQ2_0"},   {39, 32, 17, "MXFP4"},    {40, 64, 36, "NVFP4"},
      {41, 128, 18, "Q1_0"},    {42, 64, 18, "Q2_0"},
  };
  for (const auto& [type, elements, bytes, name] : kTypes) {
    const auto table =
        ReadTable(GgufBuilder().Add("t", {3 * elements, 5}, type, 15 * bytes).Build(), 0);
    ASSERT_TRUE(table.ok()) << name << ": " << ToString(table.status());
    EXPECT_EQ(table->tensors[0].bytes, 15 * bytes) << name;
    EXPECT_EQ(TraitsOf(table->tensors[0].dtype).name, name);
    if (elements == 1) continue;
    EXPECT_THAT(
        ErrorOf(GgufBuilder().Add("t", {elements / 2, 2}, type, bytes).Build()),
        HasSubstr(fmt::format("tensor 't' has rows of {} elements, no multiple of {}'s block of {}",
                              elements / 2, name, elements)));
  }
}

TEST(GgufTest, TypesThatAreGoneOrUnknownAreNamed) {
  const auto with = [](uint32_t type) {
    return ErrorOf(GgufBuilder().Add("t", {256}, type, 4096).Build());
  };
  EXPECT_EQ(with(4),
            "UNIMPLEMENTED: m.gguf: tensor 't' has ggml type 4 (Q4_2), which ggml removed");
  EXPECT_THAT(with(31), HasSubstr("(Q4_0_4_4), which ggml removed"));
  EXPECT_THAT(with(38), HasSubstr("(IQ4_NL_8_8), which ggml removed"));
  EXPECT_EQ(with(43), "UNIMPLEMENTED: m.gguf: tensor 't' has unknown ggml type 43");
  EXPECT_THAT(with(UINT32_MAX), HasSubstr("unknown ggml type 4294967295"));
}

TEST(GgufTest, OtherVersionsAndByteOrdersAreRefusedByName) {
  const auto with = [](uint32_t version) {
    GgufBuilder builder;
    builder.version = version;
    return ErrorOf(builder.Build());
  };
  EXPECT_THAT(with(1),
              HasSubstr("UNIMPLEMENTED: m.gguf: GGUF version 1; versions 2 and 3 are understood"));
  EXPECT_THAT(with(4), HasSubstr("INVALID_ARGUMENT: m.gguf: GGUF version 4"));
  EXPECT_THAT(with(0), HasSubstr("GGUF version 0"));
  EXPECT_THAT(with(0x03000000), HasSubstr("UNIMPLEMENTED: m.gguf: big-endian GGUF"));
  EXPECT_THAT(ErrorOf("FUGG" + std::string(40, '\0')),
              HasSubstr("no GGUF file: it begins with 'FUGG'"));
  EXPECT_THAT(ErrorOf("GGU"),
              HasSubstr("the file ends at byte 3, within the magic number at byte 0"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("the file ends at byte 0"));
}

TEST(GgufTest, EachWayAHeaderCanBeWrongHasItsMessage) {
  const auto pair = [](uint32_t type, std::string_view value, std::string_view key = "k") {
    return GgufBuilder().Pair(key, type, value).Build() + std::string(64, '\0');
  };
  const auto tensor = [](const std::vector<uint64_t>& dims, uint64_t offset,
                         std::string_view name = "t") {
    return GgufBuilder().AddAt(name, dims, kF32, offset).Data(64).Build();
  };
  const auto counts = [](uint64_t tensors, uint64_t pairs) {
    return "GGUF" + Packed<uint32_t>(3) + Packed(tensors) + Packed(pairs) + std::string(100, '\0');
  };
  const auto array = [](uint32_t type, uint64_t count) { return Packed(type) + Packed(count); };
  std::string deep = Packed<uint32_t>(kGgufUint8) + Packed<uint64_t>(0);
  for (int i = 0; i < 4; ++i) deep = GgufList(kGgufArray, {deep});
  const struct {
    std::string file;
    const char* message;
  } kCases[] = {
      {counts(1'000'001, 0), "1000001 tensors; at most 1000000"},
      {counts(UINT64_MAX, 0), "18446744073709551615 tensors; at most 1000000"},
      {counts(0, 100'001), "100001 metadata pairs; at most 100000"},
      {counts(5, 0), "the file ends at byte 124, within 0 metadata pairs and 5 tensors at byte 24"},
      {pair(13, ""), "metadata 'k' has unknown value type 13"},
      {pair(kGgufBool, Packed<uint8_t>(2)), "metadata 'k' is a bool of 2; 0 or 1"},
      {pair(kGgufString, GgufText("\xFF")), "metadata 'k' is no UTF-8: '\\xff'"},
      {pair(kGgufString, Packed<uint64_t>(1000)), "within metadata 'k' at byte"},
      {pair(kGgufString, Packed<uint64_t>(UINT64_MAX)),
       "the header is longer than 268435456 bytes: metadata 'k'"},
      {pair(kGgufArray, array(13, 1)), "metadata 'k' has unknown value type 13"},
      {pair(kGgufArray, array(kGgufUint8, UINT64_MAX)), "array of 18446744073709551615 elements"},
      {pair(kGgufArray, array(kGgufUint64, 1ull << 61)),
       "array of 2305843009213693952 elements; more than a header holds"},
      {pair(kGgufArray, array(kGgufString, 100)), "within metadata 'k' at byte"},
      {pair(kGgufArray, deep), "metadata 'k' is nested deeper than 4 arrays"},
      {pair(kGgufArray, GgufList(kGgufString, {GgufText("\xC3")})), "metadata 'k' is no UTF-8"},
      {pair(kGgufUint8, Packed<uint8_t>(1), ""),
       "metadata key 0 '' of 0 bytes is no text of 1 to 65535 bytes"},
      {pair(kGgufUint8, Packed<uint8_t>(1), "\x80"),
       "metadata key 0 '\\x80' of 1 bytes is no text"},
      {pair(kGgufUint8, Packed<uint8_t>(1), std::string(65536, 'k')),
       "of 65536 bytes is no text of 1 to 65535 bytes"},
      {GgufBuilder().Pair("k", kGgufUint8, "1").Pair("k", kGgufUint8, "2").Build(),
       "metadata 'k' is listed twice"},
      {pair(kGgufUint64, Packed<uint64_t>(32), "general.alignment"),
       "is of type uint64; it has to be uint32"},
      {pair(kGgufUint32, Packed<uint32_t>(0), "general.alignment"),
       "is 0; it has to be a power of two, at least 8"},
      {pair(kGgufUint32, Packed<uint32_t>(24), "general.alignment"),
       "is 24; it has to be a power of two"},
      {pair(kGgufUint32, Packed<uint32_t>(4), "general.alignment"),
       "is 4; it has to be a power of two, at least 8"},
      {tensor({1}, 0, ""), "the name of tensor 0 '' of 0 bytes is no text of 1 to 4096 bytes"},
      {tensor({1}, 0, "\xE0\x80"), "the name of tensor 0 '\\xe0\\x80' of 2 bytes is no text"},
      {tensor({1}, 0, std::string(4097, 't')), "of 4097 bytes is no text of 1 to 4096 bytes"},
      {tensor(std::vector<uint64_t>(65, 1), 0), "tensor 't' has 65 dimensions; at most 64"},
      {tensor({1ull << 40, 1ull << 40}, 0),
       "tensor 't': shape [1099511627776, 1099511627776] has more than 2^64 - 1"},
      {tensor({1ull << 63}, 0),
       "tensor 't': shape [9223372036854775808] of F32 has more than 2^64 - 1 bytes"},
      {tensor({1}, 8), "tensor 't' begins at 8, no multiple of the alignment 32"},
      {tensor({1}, 96), "tensor 't' has 4 bytes from byte"},
      {tensor({17}, 0), "tensor 't' has 68 bytes from byte 64 on, but the file ends at byte 128"},
      {tensor({1}, UINT64_MAX - 31), "tensor 't' begins beyond 2^64 - 1"},
      {GgufBuilder().AddAt("a", {9}, kF32, 0).AddAt("b", {1}, kF32, 32).Data(64).Build(),
       "tensor 'b' begins at byte 128, inside tensor 'a' that ends at byte 132"},
      {GgufBuilder().Add("a", {1}, kF32, 4).Add("a", {1}, kF32, 4).Build(),
       "tensor 'a' is listed twice"},
  };
  for (const auto& [file, message] : kCases) {
    EXPECT_THAT(ErrorOf(file), AllOf(HasSubstr("INVALID_ARGUMENT: m.gguf: "), HasSubstr(message)));
  }
}

TEST(GgufTest, AFileThatEndsWithinItsHeaderSaysSo) {
  const std::string header = Sample().Header();
  for (uint64_t bytes = 0; bytes < header.size(); ++bytes) {
    EXPECT_THAT(ErrorOf(std::string_view(header).substr(0, bytes)),
                AllOf(HasSubstr("INVALID_ARGUMENT: m.gguf: the file ends at byte")))
        << bytes;
  }
}

TEST(GgufTest, BytesBehindTheFilesEndAreNotRead) {
  const std::string file = Sample().Build();
  const auto parse = ParseGguf(AsBytes(file), 100, "m.gguf");
  EXPECT_THAT(ToString(parse.status()), HasSubstr("the file ends at byte 100"));
}

}  // namespace
}  // namespace ems::model
