// Versions of models and their jobs through ems.h, against real daemons.
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "tests/integrations/c/models_test.h"

namespace ems::capi {
namespace {

using ::testing::HasSubstr;

class ModelsApiTest : public ModelsTest {};

TEST_F(ModelsApiTest, AVersionIsAddedListedPrefetchedCheckedAndRemoved) {
  ems_model_info info;
  ASSERT_EQ(ems_models_add(models_, "c/round@v1", Folder("source").c_str(), nullptr, 0, &info),
            EMS_OK)
      << ems_last_error();
  EXPECT_STREQ(info.model, "c/round");
  EXPECT_STREQ(info.version, "v1");
  EXPECT_EQ(info.bytes, Bytes());
  EXPECT_EQ(info.files, 4u);
  EXPECT_EQ(info.job_state, static_cast<uint32_t>(EMS_MODEL_JOB_NONE));
  EXPECT_EQ(ems_models_wait(models_, "c/round", 1000, nullptr, nullptr, &info),
            EMS_FAILED_PRECONDITION);

  ems_model_check check;
  ASSERT_EQ(ems_models_check(models_, "c/round", 0, &check), EMS_OK) << ems_last_error();
  EXPECT_EQ(check.absent_bytes, Bytes());
  ASSERT_EQ(ems_models_prefetch(models_, "c/round", 3, 0, nullptr), EMS_OK) << ems_last_error();
  uint64_t seen = 0;
  const auto look = [](void* user, const ems_model_progress* progress) {
    *static_cast<uint64_t*>(user) = progress->bytes;
    return 0;
  };
  ASSERT_EQ(ems_models_wait(models_, "c/round", 0, look, &seen, &info), EMS_OK) << ems_last_error();
  EXPECT_EQ(seen, Bytes());
  EXPECT_EQ(info.job_state, static_cast<uint32_t>(EMS_MODEL_JOB_DONE));
  EXPECT_EQ(info.job_bytes_done, Bytes());
  ASSERT_EQ(ems_models_check(models_, "c/round", 0, &check), EMS_OK);
  EXPECT_EQ(check.dram_bytes, Bytes());
  ems_model_progress progress;
  ASSERT_EQ(ems_models_progress(models_, "c/round", 0, &progress), EMS_OK);
  EXPECT_EQ(progress.bytes_done, Bytes());

  ASSERT_EQ(ems_models_pin(models_, "c/round", 0, &info), EMS_OK);
  EXPECT_EQ(info.pinned, 1u);
  EXPECT_EQ(ems_models_remove(models_, "c/round@v1", 0), EMS_FAILED_PRECONDITION);
  ASSERT_EQ(ems_models_unpin(models_, "c/round", 0, &info), EMS_OK);
  EXPECT_EQ(info.pinned, 0u);
  EXPECT_EQ(ems_models_remove(models_, "c/round@v1", 0), EMS_OK);
  EXPECT_EQ(ems_models_get(models_, "c/round", 0, &info), EMS_NOT_FOUND);
}

TEST_F(ModelsApiTest, ListsSayHowManyThereAre) {
  Add("c/list@v1");
  Add("c/list@v2");
  std::array<ems_model_info, 64> infos;
  size_t count = 0;
  ASSERT_EQ(ems_models_list(models_, 0, infos.data(), infos.size(), &count), EMS_OK);
  ASSERT_GE(count, 2u);
  EXPECT_STREQ(infos[count - 1].version, "v2");
  EXPECT_EQ(ems_models_list(models_, 0, infos.data(), 1, &count), EMS_OUT_OF_RANGE);
  EXPECT_GE(count, 2u);
  std::array<ems_model_file, 4> files;
  ASSERT_EQ(ems_models_files(models_, "c/list@v1", 0, files.data(), files.size(), &count), EMS_OK);
  ASSERT_EQ(count, 4u);
  size_t i = 0;
  for (const auto& [path, bytes] : files_) {
    EXPECT_EQ(files[i].path, path);
    EXPECT_EQ(files[i++].bytes, bytes.size());
  }
  EXPECT_EQ(ems_models_files(models_, "c/list@v1", 0, nullptr, 0, &count), EMS_OUT_OF_RANGE);
  EXPECT_EQ(count, 4u);
}

TEST_F(ModelsApiTest, OptionsChooseFilesAndADamagedHeaderIsNamed) {
  ems_model_add_options options;
  ASSERT_EQ(ems_model_add_options_init(&options, sizeof(options)), EMS_OK);
  const char* const patterns[] = {"*.json"};
  options.include = patterns;
  options.include_count = 1;
  ems_model_info info;
  ASSERT_EQ(ems_models_add(models_, "c/chosen@v1", Folder("source").c_str(), &options, 0, &info),
            EMS_OK)
      << ems_last_error();
  EXPECT_EQ(info.files, 1u);
  EXPECT_EQ(info.first_read, static_cast<uint32_t>(EMS_MODEL_READ_ONCE)) << "a folder";
  options.verify = EMS_MODEL_VERIFY_ALWAYS;
  ASSERT_EQ(ems_models_add(models_, "c/chosen@v1", Folder("source").c_str(), &options, 0, &info),
            EMS_OK)
      << ems_last_error();
  EXPECT_EQ(info.first_read, static_cast<uint32_t>(EMS_MODEL_READ_TWICE));
  EXPECT_EQ(ems_models_add(models_, "c/chosen@v1", Folder("source").c_str(), nullptr, 0, nullptr),
            EMS_ALREADY_EXISTS);
  testing::WriteFiles(Folder("damaged"), {{"bad.safetensors", "not what it says it is at all"}});
  EXPECT_EQ(ems_models_add(models_, "c/bad@v1", Folder("damaged").c_str(), nullptr, 0, nullptr),
            EMS_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("bad.safetensors"));
}

TEST_F(ModelsApiTest, AWaitCanBeLeftAndAJobCancelled) {
  testing::WriteFiles(Folder("slow"), {{"slow.bin", testing::MakeValue("slow", "slow", 1, kMiB)}});
  ems_model_add_options options;
  ASSERT_EQ(ems_model_add_options_init(&options, sizeof(options)), EMS_OK);
  options.bytes_per_s_max = 64 * kKiB;
  options.block_bytes = 64 * kKiB;
  ASSERT_EQ(ems_models_add(models_, "c/slow@v1", Folder("slow").c_str(), &options, 0, nullptr),
            EMS_OK)
      << ems_last_error();
  ASSERT_EQ(ems_models_prefetch(models_, "c/slow", 0, 0, nullptr), EMS_OK) << ems_last_error();
  const auto leave = [](void*, const ems_model_progress*) { return 1; };
  EXPECT_EQ(ems_models_wait(models_, "c/slow", 0, leave, nullptr, nullptr), EMS_CANCELLED);
  EXPECT_EQ(ems_models_wait(models_, "c/slow", 50, nullptr, nullptr, nullptr),
            EMS_DEADLINE_EXCEEDED);
  ems_model_info info;
  ASSERT_EQ(ems_models_cancel(models_, "c/slow", 0, &info), EMS_OK) << ems_last_error();
  EXPECT_EQ(ems_models_wait(models_, "c/slow", 0, nullptr, nullptr, nullptr), EMS_CANCELLED);
}

TEST_F(ModelsApiTest, BadArgumentsAreNamed) {
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  ems_model_info info;
  size_t count = 0;
  refused(ems_models_get(nullptr, "a@b", 0, &info), "models is NULL");
  refused(ems_models_get(models_, nullptr, 0, &info), "name is NULL");
  refused(ems_models_get(models_, "a b", 0, &info), "a b");
  refused(ems_models_add(models_, "a@b", nullptr, nullptr, 0, &info), "url is NULL");
  refused(ems_models_add(models_, "a", Folder("source").c_str(), nullptr, 0, &info), "version");
  refused(ems_models_list(models_, 0, &info, 1, nullptr), "count is NULL");
  refused(ems_models_check(models_, "a@b", 0, nullptr), "check is NULL");
  refused(ems_models_progress(models_, "a@b", 0, nullptr), "progress is NULL");
  refused(ems_models_prefetch(models_, "a@b", 1001, 0, nullptr), "priority is 1001");
  refused(ems_models_create(nullptr, nullptr), "models is NULL");
  refused(ems_models_options_init(nullptr, sizeof(ems_models_options)), "options is NULL");
  refused(ems_model_add_options_init(nullptr, 8), "options is NULL");
  ems_models* models = models_;
  ems_models_options options{};
  refused(ems_models_create(&options, &models), "ems_models_options of 0 bytes");
  EXPECT_EQ(models, nullptr);
  ems_models_destroy(nullptr);
  EXPECT_EQ(ems_models_files(models_, "no/body@v1", 0, nullptr, 0, &count), EMS_NOT_FOUND);
}

TEST_F(ModelsApiTest, ADeadControllerIsSaid) {
  ems_models_options options;
  ASSERT_EQ(ems_models_options_init(&options, sizeof(options)), EMS_OK);
  options.controller = "127.0.0.1:1";  // nobody listens there
  ems_models* models = nullptr;
  ASSERT_EQ(ems_models_create(&options, &models), EMS_OK);
  ems_model_info info;
  const ems_status code = ems_models_get(models, "a@b", 500, &info);
  EXPECT_TRUE(code == EMS_UNAVAILABLE || code == EMS_DEADLINE_EXCEEDED) << code;
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("127.0.0.1:1"));
  ems_models_destroy(models);
}

TEST_F(ModelsApiTest, AChildIsToldToConnectAgain) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // whatever waits for a thread of its parent ends here
    const bool told = ems_models_get(models_, "a@b", 0, nullptr) == EMS_FAILED_PRECONDITION;
    ems_models_destroy(models_);
    ::_exit(told ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
}

TEST(ModelsLayoutTest, SizesAndOffsetsStay) {
  EXPECT_EQ(sizeof(ems_models_options), 96u);
  EXPECT_EQ(sizeof(ems_model_add_options), 72u);
  EXPECT_EQ(sizeof(ems_model_load_options), 72u);
  EXPECT_EQ(sizeof(ems_model_tensors), 48u);
  EXPECT_EQ(sizeof(ems_model_info), 584u);
  EXPECT_EQ(offsetof(ems_model_info, job_error), 328u);
  EXPECT_EQ(sizeof(ems_model_file), 1040u);
  EXPECT_EQ(sizeof(ems_model_check), 64u);
  EXPECT_EQ(sizeof(ems_model_progress), 32u);
  EXPECT_EQ(sizeof(ems_model_stats), 320u);
  EXPECT_EQ(sizeof(ems_model_buffer), 24u);
  EXPECT_EQ(sizeof(ems_model_tensor), 64u);
  EXPECT_EQ(sizeof(ems_model_slice), 16u);
}

}  // namespace
}  // namespace ems::capi
