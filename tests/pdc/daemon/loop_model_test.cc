// What must hold: processes with the same configuration compute with the same model, whether it was
// made up or read from a file; what cannot be is said, and not served.
#include "pdc/daemon/loop_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "pdc/engine/weight_maker.h"
#include "tests/pdc/daemon/loop_testing.h"
#include "tests/support/temp_path.h"

namespace ems::pdc {
namespace {

using test::TinyLoop;
using ::testing::HasSubstr;

std::string FingerprintOf(const std::vector<std::string>& more) {
  const auto model = LoadLoopModel(TinyLoop(more));
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? (*model)->Fingerprint(KvStorage::kBf16) : "";
}

class LoopModelTest : public ::testing::Test {
 protected:
  LoopModelTest() { std::filesystem::create_directories(folder_); }
  const ems::testing::TempPath path_{"loop_model"};
  const std::string& folder_ = path_.path();
};

TEST_F(LoopModelTest, APresetIsAFunctionOfItsOptions) {
  const std::string tiny = FingerprintOf({});
  EXPECT_EQ(FingerprintOf({}), tiny);
  EXPECT_NE(FingerprintOf({"model.seed=2"}), tiny);
  EXPECT_NE(FingerprintOf({"model.dtype=f32"}), tiny);
  EXPECT_NE(FingerprintOf({"model.mtp=on"}), tiny);
  const auto model = LoadLoopModel(TinyLoop({"model.positions_max=100"}));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().positions_max, 100U);
}

TEST_F(LoopModelTest, AFileIsTheModelThatWasWritten) {
  ModelConfig config = *PresetConfig("tiny");
  config.seed = 5;
  const std::string path = folder_ + "/of-mine.safetensors";
  ASSERT_EQ(WriteWeights(config, path), OkStatus());
  const auto wanted = Model::Make(*ModelWeights::Make(config));
  EXPECT_EQ(FingerprintOf({"model.file=" + path}), wanted->Fingerprint(KvStorage::kBf16));
  EXPECT_EQ(ServedModelName(TinyLoop({"model.file=" + path})), "of-mine");
}

TEST_F(LoopModelTest, TheDemoModelComputesTheSameKvWithAndWithoutGuesses) {
  const auto with = LoadLoopModel(TinyLoop({"model.preset=demo", "model.mtp=on"}));
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_TRUE((*with)->config().mtp);
  const auto without = LoadLoopModel(TinyLoop({"model.preset=demo"}));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE((*without)->config().mtp);
  EXPECT_EQ((*with)->Fingerprint(KvStorage::kBf16), (*without)->Fingerprint(KvStorage::kBf16));
  EXPECT_EQ(ServedModelName(TinyLoop({"model.preset=demo"})), "ems-demo");
}

TEST_F(LoopModelTest, NamesForClients) {
  EXPECT_EQ(ServedModelName(TinyLoop()), "ems-tiny");
  EXPECT_EQ(ServedModelName(TinyLoop({"model.ems=team/name@v3"})), "team/name");
  EXPECT_EQ(ServedModelName(TinyLoop({"model.ems=name"})), "name");
}

TEST_F(LoopModelTest, WhatCannotBeIsSaid) {
  const std::string torn = folder_ + "/torn.safetensors";
  std::ofstream(torn) << "no tensors";
  const struct {
    std::vector<std::string> more;
    StatusCode code;
    const char* says;
  } cases[] = {
      {{"model.file=" + torn, "model.ems=x"}, StatusCode::kInvalidArgument, "both set"},
      {{"model.file=" + torn}, StatusCode::kInvalidArgument, "torn.safetensors"},
      {{"model.file=/nowhere/m.safetensors"}, StatusCode::kNotFound, "/nowhere/m.safetensors"},
      {{"model.ems=x"}, StatusCode::kInvalidArgument, "pool.controller is not set"},
      {{"model.ems=a b", "pool.controller=127.0.0.1:1"}, StatusCode::kInvalidArgument, "a b"},
      {{"model.ems=x@v1", "pool.controller=127.0.0.1:1"}, StatusCode::kUnavailable, "127.0.0.1:1"},
  };
  for (const auto& [more, code, says] : cases) {
    const Status status = LoadLoopModel(TinyLoop(more)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(ToString(status), HasSubstr(says));
  }
}

}  // namespace
}  // namespace ems::pdc
