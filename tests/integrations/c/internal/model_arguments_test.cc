#include "integrations/c/internal/model_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::capi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModelArgumentsTest, DefaultsAreTakenAsTheyAre) {
  const ems_model_load_options options = DefaultModelLoadOptions();
  const Result<LoadChoice> choice = ToLoadChoice(&options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_TRUE(choice->all && choice->sync && choice->options.fallback_to_source);
  EXPECT_EQ(choice->timeout, std::chrono::minutes(10));
  EXPECT_EQ(choice->options.pool_patience, std::chrono::seconds(10));
  EXPECT_TRUE(choice->Wants("any"));
}

TEST(ModelArgumentsTest, FlagsAndFilesOfALoad) {
  ems_model_load_options options = DefaultModelLoadOptions();
  const char* const files[] = {"a", "b/c"};
  options.files = files;
  options.file_count = 2;
  options.flags = EMS_MODEL_POOL_ONLY | EMS_MODEL_NO_SYNC | EMS_MODEL_VERIFY_DIGESTS;
  options.timeout_ms = 20;
  const Result<LoadChoice> choice = ToLoadChoice(&options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->files, ElementsAre("a", "b/c"));
  EXPECT_TRUE(choice->Wants("b/c"));
  EXPECT_FALSE(choice->Wants("b"));
  EXPECT_FALSE(choice->sync || choice->options.fallback_to_source);
  EXPECT_TRUE(choice->options.verify_digests);
  EXPECT_EQ(choice->timeout, std::chrono::milliseconds(20));
}

TEST(ModelArgumentsTest, WhatIsOutOfRangeIsNamed) {
  ems_model_load_options options = DefaultModelLoadOptions();
  options.flags = 8;
  EXPECT_THAT(std::string(Message(ToLoadChoice(&options).status())), HasSubstr("flags is 8"));
  options = DefaultModelLoadOptions();
  options.file_count = 1;
  EXPECT_THAT(std::string(Message(ToLoadChoice(&options).status())), HasSubstr("files is NULL"));
  ems_models_options models = DefaultModelsOptions();
  models.async_threads = 0;
  EXPECT_THAT(std::string(Message(MakeModels(&models).status())), HasSubstr("async_threads is 0"));
  EXPECT_EQ(ToModelName("a@@b").status().code(), StatusCode::kInvalidArgument);
}

TEST(ModelArgumentsTest, FirstReadsAreVerifiedByDefaultAndAsAskedFor) {
  EXPECT_EQ(ToAddOptions(nullptr)->verify, model::SourceVerify::kAuto);
  ems_model_add_options options = DefaultModelAddOptions();
  EXPECT_EQ(options.verify, static_cast<uint32_t>(EMS_MODEL_VERIFY_AUTO));
  options.verify = EMS_MODEL_VERIFY_ALWAYS;
  EXPECT_EQ(ToAddOptions(&options)->verify, model::SourceVerify::kAlways);
  options.verify = EMS_MODEL_VERIFY_NEVER;
  EXPECT_EQ(ToAddOptions(&options)->verify, model::SourceVerify::kNever);
  options.verify = 3;
  EXPECT_THAT(std::string(Message(ToAddOptions(&options).status())), HasSubstr("verify is 3"));
}

TEST(ModelArgumentsTest, TextsThatAreTooLongAreCut) {
  model::ModelInfo info;
  info.source.first_read = model::FirstRead::kTwiceUnlessChecked;
  info.name = {.model = "m", .version = "v"};
  info.job.error = Error(StatusCode::kUnavailable, std::string(1000, 'x'));
  ems_model_info out;
  Tell(info, &out);
  EXPECT_EQ(std::string(out.job_error), std::string(EMS_MODEL_TEXT_MAX, 'x'));
  EXPECT_EQ(out.job_code, EMS_UNAVAILABLE);
  EXPECT_STREQ(out.model, "m");
  EXPECT_EQ(out.first_read, static_cast<uint32_t>(EMS_MODEL_READ_TWICE_UNLESS_CHECKED));
}

}  // namespace
}  // namespace ems::capi
