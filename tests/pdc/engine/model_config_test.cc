// What must hold: a config survives the way to JSON and back, and what cannot be a model is refused
// with the field's name.
#include "pdc/engine/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace ems::pdc {
namespace {

using ::testing::HasSubstr;

TEST(ModelConfigTest, JsonAndBackIsTheSame) {
  for (const std::string_view name : PresetNames()) {
    ModelConfig config = *PresetConfig(name);
    EXPECT_EQ(config.name, name);
    ASSERT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
    config.mtp = true;
    config.weights = WeightDtype::kInt8;
    config.router = RouterKind::kSoftmax;
    config.seed = 0xFEDCBA9876543210;
    config.rope_base = 1234.5F;
    const auto parsed = ParseConfig(ToJson(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config);
    EXPECT_EQ(ToJson(*parsed), ToJson(config));
  }
}

TEST(ModelConfigTest, UnknownPresetSaysWhichThereAre) {
  const auto none = PresetConfig("huge");
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(none.status())), HasSubstr("tiny, small, base, large"));
}

TEST(ModelConfigTest, ImpossibleShapesAreRefusedByName) {
  const auto message = [](const std::function<void(ModelConfig*)>& change) {
    ModelConfig config;
    change(&config);
    const Status status = CheckConfig(config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return std::string(Message(status));
  };
  EXPECT_THAT(message([](ModelConfig* c) { c->hidden = 40; }), HasSubstr("hidden is 40"));
  EXPECT_THAT(message([](ModelConfig* c) { c->layers = 0; }), HasSubstr("layers"));
  EXPECT_THAT(message([](ModelConfig* c) { c->rope_dim = 3; }), HasSubstr("rope_dim"));
  EXPECT_THAT(message([](ModelConfig* c) { c->vocab = 256; }), HasSubstr("vocab"));
  EXPECT_THAT(message([](ModelConfig* c) { c->experts_per_token = 9; }), HasSubstr("8 experts"));
  EXPECT_THAT(message([](ModelConfig* c) { c->dense_layers = 4; }), HasSubstr("dense_layers"));
  EXPECT_THAT(message([](ModelConfig* c) { c->norm_epsilon = 0; }), HasSubstr("norm_epsilon"));
  EXPECT_THAT(message([](ModelConfig* c) { c->name.clear(); }), HasSubstr("name"));
}

TEST(ModelConfigTest, BadJsonIsRefused) {
  const std::string good = ToJson(ModelConfig{});
  const auto refused = [&](std::string_view from, std::string_view to) {
    std::string bad = good;
    const size_t at = bad.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    const auto parsed = ParseConfig(bad);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << bad;
    return std::string(Message(parsed.status()));
  };
  EXPECT_THAT(refused("\"hidden\":64", "\"hidden\":-64"), HasSubstr("hidden"));
  EXPECT_THAT(refused("\"hidden\":64", "\"hidden\":\"64\""), HasSubstr("hidden"));
  EXPECT_THAT(refused("\"hidden\":64", "\"hidden\":63"), HasSubstr("multiple"));
  EXPECT_THAT(refused("\"hidden\":64,", ""), HasSubstr("fields"));
  EXPECT_THAT(refused("\"hidden\"", "\"hiden\""), HasSubstr("hiden"));
  EXPECT_THAT(refused("\"bf16\"", "\"fp4\""), HasSubstr("weights"));
  EXPECT_THAT(refused("\"sigmoid\"", "\"relu\""), HasSubstr("router"));
  EXPECT_THAT(refused("\"mtp\":false", "\"mtp\":0"), HasSubstr("mtp"));
  for (const char* text : {"", "{", "[]", "null", "{}"}) EXPECT_FALSE(ParseConfig(text).ok());
}

}  // namespace
}  // namespace ems::pdc
