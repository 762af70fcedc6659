// What must hold: equal configs make equal bytes, for ever; the seed and nothing else changes
// values; files are good safetensors.
#include "pdc/engine/weight_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/bytes.h"
#include "common/hash.h"
#include "model_files/format/safetensors.h"
#include "pdc/engine/model_weights.h"
#include "tests/support/temp_path.h"

namespace ems::pdc {
namespace {

model::TensorTable TableOf(const std::vector<std::byte>& file) {
  auto parse = model::ParseSafetensors(file, file.size(), "made");
  EXPECT_TRUE(parse.ok()) << parse.status();
  return parse->table;
}

// Known values: a machine or a compiler that makes others makes other models.
TEST(WeightMakerTest, BytesAreKnown) {
  ModelConfig config;
  const std::vector<std::byte> bf16 = *MakeWeights(config);
  config.weights = WeightDtype::kInt8;
  const std::vector<std::byte> int8 = *MakeWeights(config);
  config.weights = WeightDtype::kF32;
  const std::vector<std::byte> f32 = *MakeWeights(config);
  EXPECT_EQ(Hash64(bf16), 3194294209661230500U);
  EXPECT_EQ(Hash64(int8), 16481618208454234395U);
  EXPECT_EQ(Hash64(f32), 3373070311003907334U);
}

TEST(WeightMakerTest, SeedAndNameDecideValues) {
  ModelConfig config;
  const std::vector<std::byte> one = *MakeWeights(config);
  EXPECT_EQ(*MakeWeights(config), one);
  config.seed = 2;
  EXPECT_NE(*MakeWeights(config), one);
  // More layers leave those that were there as they are.
  config.seed = 1;
  config.layers = 4;
  const std::vector<std::byte> more = *MakeWeights(config);
  const std::string name = "model.layers.2.self_attn.o_proj.weight";
  std::vector<ConstBytes> found;
  for (const auto* file : {&one, &more})
    for (const model::TensorInfo& info : TableOf(*file).tensors)
      if (info.name == name) found.push_back(ConstBytes(*file).subspan(info.offset, info.bytes));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(AsText(found[0]) == AsText(found[1]));
}

TEST(WeightMakerTest, ValuesHaveTheSpreadTheyShould) {
  ModelConfig config;
  config.weights = WeightDtype::kF32;
  const ModelWeights weights = *ModelWeights::Make(config);
  const ConstBytes bytes = weights.tensor("model.embed_tokens.weight").bytes;
  double sum = 0, squares = 0;
  const size_t count = bytes.size() / sizeof(float);
  for (size_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    sum += static_cast<double>(value);
    squares += static_cast<double>(value * value);
  }
  EXPECT_NEAR(sum / static_cast<double>(count), 0, 0.03);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 1, 0.03);
}

TEST(WeightMakerTest, AFileIsTheSameBytes) {
  const ::ems::testing::TempPath file("weights.safetensors");
  const std::string& path = file.path();
  ASSERT_TRUE(WriteWeights(ModelConfig{}, path).ok());
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::vector<std::byte> made = *MakeWeights(ModelConfig{});
  EXPECT_TRUE(text.str() == AsText(made));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  EXPECT_EQ(TableOf(made).metadata.at(kConfigKey), ToJson(ModelConfig{}));
  EXPECT_EQ(WriteWeights(ModelConfig{}, "/no/such/folder/x").code(), StatusCode::kInternal);
}

TEST(WeightMakerTest, BadConfigIsRefused) {
  ModelConfig config;
  config.heads = 0;
  EXPECT_EQ(MakeWeights(config).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
