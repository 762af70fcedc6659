#include "model_files/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/model_files.h"

namespace ems::model {
namespace {

using ems::testing::Packed;
using ems::testing::SafetensorsBuilder;
using ems::testing::SafetensorsFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view file) {
  const auto parse = ParseSafetensors(AsBytes(file), file.size(), "m.safetensors");
  if (!parse.ok()) return ToString(parse.status());
  return parse->done() ? "parsed" : "needs more";
}

TEST(SafetensorsTest, ReadsTensorsWithTheirPlacesInTheFile) {
  const std::string file = SafetensorsBuilder()
                               .Entry("__metadata__", R"({"format":"pt","note":"Größe"})")
                               .Add("model.embed", "BF16", {8, 4}, 64)
                               .Add("scalar", "F32", {}, 4)
                               .Add("nothing", "I64", {3, 0}, 0)
                               .Add("packed", "F4", {2, 3}, 3)
                               .Build();
  const auto parse = ParseSafetensors(AsBytes(file), file.size(), "m.safetensors");
  ASSERT_TRUE(parse.ok()) << ToString(parse.status());
  ASSERT_TRUE(parse->done());
  const TensorTable& table = parse->table;
  EXPECT_EQ(table.data_begin, file.size() - 71);
  EXPECT_EQ(table.metadata,
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "Größe"}}));
  const uint64_t at = table.data_begin;
  EXPECT_EQ(
      table.tensors,
      (std::vector<TensorInfo>{
          {.name = "model.embed",
           .dtype = DType::kBF16,
           .shape = {8, 4},
           .offset = at,
           .bytes = 64},
          {.name = "scalar", .dtype = DType::kF32, .shape = {}, .offset = at + 64, .bytes = 4},
          {.name = "nothing", .dtype = DType::kI64, .shape = {3, 0}, .offset = at + 68, .bytes = 0},
          {.name = "packed", .dtype = DType::kF4, .shape = {2, 3}, .offset = at + 68, .bytes = 3},
      }));
}

TEST(SafetensorsTest, OrderOfTheHeaderPaddingAndUnknownFieldsDoNotMatter) {
  const std::string file =
      SafetensorsFile(R"({"z":{"data_offsets":[4,6],"extra":{"shape":[9],"deep":[[1]]},)"
                      R"("shape":[2],"dtype":"U8","more":[1,"a"]},)"
                      R"("a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}       )",
                      6);
  const auto parse = ParseSafetensors(AsBytes(file), file.size(), "m");
  ASSERT_TRUE(parse.ok()) << ToString(parse.status());
  ASSERT_EQ(parse->table.tensors.size(), 2u);
  EXPECT_EQ(parse->table.tensors[0].name, "a");
  EXPECT_EQ(parse->table.tensors[1].shape, std::vector<uint64_t>{2});
}

TEST(SafetensorsTest, FilesWithoutTensorsAreFine) {
  EXPECT_EQ(ErrorOf(SafetensorsFile("{}", 0)), "parsed");
  EXPECT_EQ(ErrorOf(SafetensorsFile(R"({"__metadata__":{}}  )", 0)), "parsed");
}

TEST(SafetensorsTest, EachTypeOfTheFormatIsKnown) {
  for (const DTypeTraits& traits : AllDTypes()) {
    const uint64_t elements = traits.block_elements;
    const std::string file =
        SafetensorsBuilder().Add("t", traits.name, {elements}, traits.block_bytes).Build();
    if (traits.dtype < DType::kQ1_0) {
      EXPECT_EQ(ErrorOf(file), "parsed") << traits.name;
    } else {
      EXPECT_THAT(ErrorOf(file), HasSubstr("unknown dtype")) << traits.name;
    }
  }
}

TEST(SafetensorsTest, AsksForTheLengthThenForTheWholeHeader) {
  const std::string file = SafetensorsBuilder().Add("t", "U8", {5}, 5).Build();
  for (uint64_t given = 0; given < file.size(); ++given) {
    const auto parse = ParseSafetensors(AsBytes(file).first(given), file.size(), "m");
    ASSERT_TRUE(parse.ok()) << given;
    const uint64_t needed = given < 8 ? 8 : given < file.size() - 5 ? file.size() - 5 : 0;
    EXPECT_EQ(parse->bytes_needed, needed) << given;
  }
}

TEST(SafetensorsTest, LengthsThatCannotBeAreRefusedBeforeAnythingIsRead) {
  const std::string huge = Packed<uint64_t>(100'000'001);
  EXPECT_EQ(ToString(ParseSafetensors(AsBytes(huge), 1ull << 40, "m").status()),
            "INVALID_ARGUMENT: m: a header of 100000001 bytes; at most 100000000");
  const std::string all = Packed<uint64_t>(UINT64_MAX);
  EXPECT_THAT(ToString(ParseSafetensors(AsBytes(all), UINT64_MAX, "m").status()),
              HasSubstr("at most 100000000"));
  const std::string longer = Packed<uint64_t>(93);
  EXPECT_EQ(ToString(ParseSafetensors(AsBytes(longer), 100, "m").status()),
            "INVALID_ARGUMENT: m: a header of 93 bytes in a file of 100");
  EXPECT_EQ(ParseSafetensors(AsBytes(Packed<uint64_t>(92)), 100, "m")->bytes_needed, 100u);
  EXPECT_THAT(ToString(ParseSafetensors({}, 7, "m").status()),
              HasSubstr("m: 7 bytes are no safetensors file"));
}

struct WrongHeader {
  std::string json;
  uint64_t data_bytes;
  const char* message;
};
void ExpectRefused(const std::vector<WrongHeader>& headers) {
  for (const auto& [json, data_bytes, message] : headers) {
    EXPECT_THAT(ErrorOf(SafetensorsFile(json, data_bytes)),
                AllOf(HasSubstr("INVALID_ARGUMENT: m.safetensors: "), HasSubstr(message)))
        << json;
  }
}

// A header's entry, of JSON that need not be right.
std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":{},"shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}
std::string Tensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "{" + Entry("a", dtype, shape, offsets) + "}";
}
std::string U8s(std::string_view a_shape, std::string_view a, std::string_view b_shape,
                std::string_view b) {
  return "{" + Entry("a", R"("U8")", a_shape, a) + "," + Entry("b", R"("U8")", b_shape, b) + "}";
}

TEST(SafetensorsTest, AHeaderThatIsNoObjectOfObjectsIsRefused) {
  ExpectRefused({
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{}}", 0, "no valid JSON"},
      {"{\"a\":", 0, "no valid JSON"},
      {"{\"\xC3\":{}}", 0, "no valid JSON"},
      {R"({"a":1})", 0, "'a' is no JSON object"},
      {R"({"a":[1]})", 0, "'a' is no JSON object"},
      {R"({"__metadata__":"x"})", 0, "'__metadata__' is no JSON object"},
      {R"({"__metadata__":[]})", 0, "'__metadata__' is no JSON object"},
      {R"({"__metadata__":{"n":1}})", 0, "metadata 'n' is no text"},
      {R"({"__metadata__":{"n":{}}})", 0, "metadata 'n' is no text"},
      {R"({"__metadata__":{"n":["x"]}})", 0, "metadata 'n' is no text"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "JSON key '__metadata__' appears twice"},
      {R"({"a":{"x":[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}})", 0, "nested deeper"},
  });
}

TEST(SafetensorsTest, ATensorWhoseFieldsAreMissingOrOfAnotherTypeIsRefused) {
  ExpectRefused({
      {R"({"a":{}})", 0, "tensor 'a' has no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a' has no shape"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "tensor 'a' has no data_offsets"},
      {Tensor(R"("U8")", "[1]", "[]"), 1, "tensor 'a' has no data_offsets"},
      {Tensor(R"("U8")", "[1]", "[0]"), 1, "tensor 'a' has no second number in data_offsets"},
      {Tensor(R"("U8")", "[1]", "[0,1,1]"), 1, "tensor 'a': data_offsets has more than 2 numbers"},
      {Tensor(R"("F33")", "[1]", "[0,1]"), 1, "tensor 'a': unknown dtype 'F33'"},
      {Tensor(R"("Q4_0")", "[32]", "[0,18]"), 18, "tensor 'a': unknown dtype 'Q4_0'"},
      {Tensor("8", "[1]", "[0,1]"), 1, "tensor 'a': dtype is no text"},
      {Tensor(R"(["U8"])", "[1]", "[0,1]"), 1, "tensor 'a': dtype is no text"},
      {Tensor(R"("U8")", "1", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", R"({"x":1})", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", "[[1]]", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", "[-1]", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", "[1.0]", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", R"(["1"])", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", "null", "[0,1]"), 1, "shape is no list of whole numbers"},
      {Tensor(R"("U8")", "[1]", "[0,18446744073709551617]"), 1,
       "data_offsets is no list of whole numbers"},
      {R"({"a":{"dtype":"U8","dtype":"I8"}})", 1, "JSON key 'dtype' appears twice"},
      {"{" + Entry("a", R"("U8")", "[1]", "[0,1]") + "," + Entry("a", R"("U8")", "[1]", "[1,2]") +
           "}",
       2, "JSON key 'a' appears twice"},
  });
}

TEST(SafetensorsTest, SizesThatDoNotFitTheTypeTheFileOrEachOtherAreRefused) {
  ExpectRefused({
      {Tensor(R"("U8")", "[2]", "[2,0]"), 2, "tensor 'a' begins at 2 and ends before that, at 0"},
      {Tensor(R"("F32")", "[2,3]", "[0,23]"), 23,
       "tensor 'a' has 23 bytes, but F32 of shape [2, 3] needs 24"},
      {Tensor(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0,
       "tensor 'a': shape [4294967296, 4294967296] has more than 2^64 - 1 elements"},
      {Tensor(R"("F32")", "[4611686018427387904]", "[0,0]"), 0, "more than 2^64 - 1 bytes"},
      {Tensor(R"("F6_E2M3")", "[3]", "[0,3]"), 3,
       "tensor 'a': shape [3] has 3 elements, which is no multiple of 4"},
      {Tensor(R"("U8")", "[18446744073709551615]", "[0,18446744073709551615]"), 1,
       "tensor 'a' ends at 18446744073709551615, beyond 2^64 - 1"},
      {Tensor(R"("U8")", "[9]", "[0,9]"), 8, "tensor 'a' has 9 bytes from byte"},
      {Tensor(R"("U8")", "[8]", "[0,8]"), 9, "the tensors end at byte"},
      {Tensor(R"("U8")", "[8]", "[1,9]"), 9, "1 bytes before tensor 'a'"},
      {U8s("[4]", "[0,4]", "[4]", "[3,7]"), 7, "tensor 'b' begins at byte"},
      {U8s("[4]", "[0,4]", "[4]", "[0,4]"), 4, "tensor 'b' begins at byte"},
      {U8s("[4]", "[0,4]", "[3]", "[5,8]"), 8, "1 bytes before tensor 'b'"},
  });
}

TEST(SafetensorsTest, NamesAndDimensionsAreBounded) {
  const std::string name(kTensorNameBytesMax, 'n');
  EXPECT_EQ(ErrorOf(SafetensorsBuilder().Add(name, "U8", {1}, 1).Build()), "parsed");
  EXPECT_THAT(ErrorOf(SafetensorsBuilder().Add(name + "n", "U8", {1}, 1).Build()),
              HasSubstr("has a name of 4097 bytes; at most 4096"));
  EXPECT_EQ(ErrorOf(SafetensorsBuilder().Add("a", "U8", std::vector<uint64_t>(64, 1), 1).Build()),
            "parsed");
  EXPECT_THAT(ErrorOf(SafetensorsBuilder().Add("a", "U8", std::vector<uint64_t>(65, 1), 1).Build()),
              HasSubstr("shape has more than 64 numbers"));
}

}  // namespace
}  // namespace ems::model
