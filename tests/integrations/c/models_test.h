#pragma once
// What the tests of models through ems.h share: a cluster whose servers read folders below `root_`,
// a handle, and a model in two shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "integrations/c/ems.h"
#include "tests/support/cluster.h"
#include "tests/support/memory_model.h"

namespace ems::capi {

// Threading: one thread.
class ModelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = ::testing::TempDir() + "ems_c_models_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    auto started = testing::Cluster::Start(
        {.servers = 2,
         .controller_flags = {},
         .server_flags = {"--set", "models.file_root=" + root_, "--set", "dram.bytes=256MiB"}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = std::move(*started);
    tensors_ = {{.name = "layer.0", .shape = {512, 256}}, {.name = "layer.1", .shape = {512, 256}}};
    files_ = {{"config.json", "{}"},
              {"empty", ""},
              {"model-1.safetensors", testing::TensorFile(tensors_)},
              {"model-2.safetensors", testing::TensorFile({{.name = "head", .shape = {64, 32}}})}};
    testing::WriteFiles(Folder("source"), files_);
  }
  static void TearDownTestSuite() {
    cluster_.reset();
    std::error_code error;
    std::filesystem::remove_all(root_, error);
  }

  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    ems_models_options options;
    ASSERT_EQ(ems_models_options_init(&options, sizeof(options)), EMS_OK);
    options.controller = cluster_->controller_address().c_str();
    ASSERT_EQ(ems_models_create(&options, &models_), EMS_OK) << ems_last_error();
  }
  void TearDown() override { ems_models_destroy(models_); }

  static std::string Folder(const std::string& name) { return root_ + "/" + name; }
  // A version of the files.
  void Add(const std::string& name) {
    ASSERT_EQ(ems_models_add(models_, name.c_str(), Folder("source").c_str(), nullptr, 0, nullptr),
              EMS_OK)
        << ems_last_error();
  }
  static uint64_t Bytes() {
    uint64_t sum = 0;
    for (const auto& [path, bytes] : files_) sum += bytes.size();
    return sum;
  }

  static inline std::string root_;
  static inline std::unique_ptr<testing::Cluster> cluster_;
  static inline std::vector<testing::MadeTensor> tensors_;
  static inline testing::ModelFiles files_;
  ems_models* models_ = nullptr;
};

}  // namespace ems::capi
