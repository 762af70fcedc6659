// What must hold: a file, and a version that ems_model brings, load back to the bytes that were
// made; a file that is not what its config says is refused, by the tensor's name.
#include "pdc/engine/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model_files/format/safetensors.h"
#include "pdc/engine/weight_maker.h"
#include "tests/ems_model/fake_pool.h"
#include "tests/support/temp_path.h"

namespace ems::pdc {
namespace {

using ::testing::HasSubstr;

std::string Text(const ModelConfig& config = {}) {
  return std::string(AsText(*MakeWeights(config)));
}

Result<ModelWeights> Parse(std::string_view text) {
  const ConstBytes bytes = AsBytes(text);
  return ModelWeights::FromBytes(std::vector<std::byte>(bytes.begin(), bytes.end()), "x");
}

// The message that a file with `from` replaced by as many bytes `to` is refused with.
std::string Refused(std::string text, std::string_view from, std::string_view to) {
  EXPECT_EQ(from.size(), to.size());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto parsed = Parse(text);
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return std::string(Message(parsed.status()));
}

TEST(ModelWeightsTest, AFileLoadsBackToItsBytes) {
  const ::ems::testing::TempPath file("weights.safetensors");
  const std::string& path = file.path();
  ModelConfig config;
  config.weights = WeightDtype::kInt8;
  config.mtp = true;
  ASSERT_TRUE(WriteWeights(config, path).ok());
  const auto loaded = ModelWeights::FromFile(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config(), config);
  const std::string text = Text(config);
  const auto parse = *model::ParseSafetensors(AsBytes(text), text.size(), "x");
  for (const model::TensorInfo& info : parse.table.tensors)
    EXPECT_TRUE(AsText(loaded->tensor(info.name).bytes) == text.substr(info.offset, info.bytes));
  EXPECT_EQ(loaded->digest(), ModelWeights::Make(config)->digest());
  EXPECT_EQ(ModelWeights::FromFile("/no/such").status().code(), StatusCode::kNotFound);
}

TEST(ModelWeightsTest, LoadsThroughThePool) {
  model::FakeModel version({{"config.json", "{}"}, {"model.safetensors", Text()}});
  version.BringAll();
  const auto loaded = ModelWeights::FromLoad(
      [&](model::LoadTarget* target) { return version.Load(target).status(); });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(version.opened, 0);  // the source was not needed
  const ModelWeights made = *ModelWeights::Make(ModelConfig{});
  EXPECT_EQ(loaded->digest(), made.digest());
  EXPECT_TRUE(AsText(loaded->tensor("lm_head.weight").bytes) ==
              AsText(made.tensor("lm_head.weight").bytes));
}

TEST(ModelWeightsTest, AVersionNeedsOneFileOfWeights) {
  for (const ems::testing::ModelFiles& files : std::vector<ems::testing::ModelFiles>{
           {{"config.json", "{}"}}, {{"a.safetensors", Text()}, {"b.safetensors", Text()}}}) {
    model::FakeModel version(files);
    version.BringAll();
    const auto loaded = ModelWeights::FromLoad(
        [&](model::LoadTarget* target) { return version.Load(target).status(); });
    EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument) << loaded.status();
  }
  const auto failed = ModelWeights::FromLoad(
      [](model::LoadTarget*) { return Error(StatusCode::kDeadlineExceeded, "late"); });
  EXPECT_EQ(failed.status().code(), StatusCode::kDeadlineExceeded);
}

TEST(ModelWeightsTest, OtherTensorsAreRefusedByName) {
  EXPECT_THAT(Refused(Text(), "\"lm_head.weight\"", "\"lm_hard.weight\""),
              HasSubstr("no tensor lm_head.weight"));
  EXPECT_THAT(Refused(Text(), "[264,64]", "[64,264]"),
              HasSubstr("model.embed_tokens.weight is BF16 [64, 264]"));
  EXPECT_THAT(Refused(Text(), "\"BF16\"", "\"F16\" "), HasSubstr("asks for BF16"));
  EXPECT_THAT(Refused(Text(), "ems_config", "ems_contig"), HasSubstr("ems_config"));
  EXPECT_THAT(Refused(Text(), "\\\"layers\\\":3", "\\\"layers\\\":2"), HasSubstr("tensors"));
  EXPECT_THAT(Refused(Text(), "\\\"layers\\\":3", "\\\"layers\\\":x"), HasSubstr("config"));
  const std::string text = Text();
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, text.size() - 1})
    EXPECT_FALSE(Parse(text.substr(0, size)).ok()) << size;
}

TEST(ModelWeightsTest, TheDigestCoversEveryByte) {
  const std::string good = Text();
  std::string bad = good;
  bad.back() = static_cast<char>(bad.back() ^ 1);
  EXPECT_NE(Parse(bad)->digest(), Parse(good)->digest());
}

}  // namespace
}  // namespace ems::pdc
