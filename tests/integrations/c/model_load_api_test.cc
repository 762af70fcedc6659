// Loads of models through ems.h, against real daemons: into memory, folders and tensors, now and
// later.
#include <poll.h>

#include <map>

#include "tests/integrations/c/models_test.h"

namespace ems::capi {
namespace {

using ::testing::HasSubstr;

using Memory = std::map<std::string, std::string>;

ems_status Room(void* user, const char* path, uint64_t bytes, void** memory) {
  std::string& room = (*static_cast<Memory*>(user))[path];
  room.resize(bytes);
  *memory = room.data();
  return EMS_OK;
}

struct Rank {
  uint32_t rank = 0, ranks = 1;
  std::map<std::string, std::string> tensors;
  ems_status answer = EMS_OK;  // to each tensor
};

ems_status Choose(void* user, const ems_model_tensor* tensor, ems_model_slice* slice) {
  const auto* rank = static_cast<Rank*>(user);
  if (std::string_view(tensor->name) == "head") return EMS_NOT_FOUND;
  *slice = {.axis = 1, .rank = rank->rank, .ranks = rank->ranks, .reserved = 0};
  return EMS_OK;
}

ems_status Take(void* user, const ems_model_tensor* tensor) {
  auto* rank = static_cast<Rank*>(user);
  EXPECT_STREQ(tensor->dtype, "BF16");
  rank->tensors[tensor->name] = std::string(static_cast<const char*>(tensor->data), tensor->bytes);
  if (tensor->dimensions == 2) {
    EXPECT_EQ(tensor->shape[0] * tensor->shape[1] * 2, tensor->bytes);
    EXPECT_EQ(tensor->shape[0], tensor->full_shape[0]);
  }
  return rank->answer;
}

// Columns [rank * n, (rank + 1) * n) of a tensor of BF16.
std::string Columns(const testing::MadeTensor& tensor, uint64_t rank, uint64_t ranks) {
  const std::string all = tensor.data();
  const uint64_t row = tensor.shape[1] * 2, part = row / ranks;
  std::string cut;
  for (uint64_t i = 0; i < tensor.shape[0]; ++i) cut += all.substr(i * row + rank * part, part);
  return cut;
}

class ModelLoadApiTest : public ModelsTest {
 protected:
  void SetUp() override {
    ModelsTest::SetUp();
    Add("c/load@v1");
    ASSERT_EQ(ems_model_load_options_init(&options_, sizeof(options_)), EMS_OK);
    options_.flags = EMS_MODEL_POOL_ONLY;
    options_.timeout_ms = 60'000;
    ASSERT_EQ(ems_model_tensors_init(&tensors_of_, sizeof(tensors_of_)), EMS_OK);
    tensors_of_.choose = &Choose;
    tensors_of_.on_tensor = &Take;
    tensors_of_.user = &rank_;
  }
  // The only completion of `queue`, once it is there.
  static ems_completion WaitFor(ems_cq* queue) {
    ems_completion done{};
    size_t count = 0;
    while (count == 0) {
      pollfd ready{.fd = ems_cq_fd(queue), .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&ready, 1, 60'000), 1);
      EXPECT_EQ(ems_cq_poll(queue, &done, 1, &count), EMS_OK);
      if (::testing::Test::HasFailure()) break;
    }
    return done;
  }

  ems_model_load_options options_;
  ems_model_tensors tensors_of_;
  ems_model_stats stats_;
  Rank rank_;
};

TEST_F(ModelLoadApiTest, BuffersRoomsAndFoldersHoldTheFilesBytes) {
  std::string config(files_.at("config.json").size(), '?');
  std::string shard(files_.at("model-2.safetensors").size(), '?');
  const ems_model_buffer buffers[] = {{"config.json", config.data(), config.size()},
                                      {"model-2.safetensors", shard.data(), shard.size()}};
  ASSERT_EQ(ems_models_load_buffers(models_, "c/load", buffers, 2, &options_, &stats_), EMS_OK)
      << ems_last_error();
  EXPECT_TRUE(config == files_.at("config.json") && shard == files_.at("model-2.safetensors"));
  EXPECT_EQ(stats_.bytes, config.size() + shard.size());
  EXPECT_EQ(stats_.source_bytes, 0u);
  EXPECT_STREQ(stats_.detour, "");

  Memory memory;
  ASSERT_EQ(ems_models_load_rooms(models_, "c/load@v1", &Room, &memory, &options_, nullptr), EMS_OK)
      << ems_last_error();
  memory["empty"];  // asks for no room
  EXPECT_TRUE(memory == files_);

  ASSERT_EQ(ems_models_load_folder(models_, "c/load", Folder("out").c_str(), &options_, &stats_),
            EMS_OK)
      << ems_last_error();
  for (const auto& [path, bytes] : files_)
    EXPECT_TRUE(testing::ReadFile(Folder("out") + "/" + path) == bytes) << path;

  const char* const only[] = {"config.json"};
  options_.files = only;
  options_.file_count = 1;
  ASSERT_EQ(ems_models_load_folder(models_, "c/load", Folder("one").c_str(), &options_, nullptr),
            EMS_OK);
  EXPECT_TRUE(std::filesystem::exists(Folder("one") + "/config.json"));
  EXPECT_FALSE(std::filesystem::exists(Folder("one") + "/empty"));
}

TEST_F(ModelLoadApiTest, TensorsComeWholeOrAsARanksSlices) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    rank_ = {.rank = rank, .ranks = 2, .tensors = {}, .answer = EMS_OK};
    ASSERT_EQ(ems_models_load_tensors(models_, "c/load", &tensors_of_, &options_, &stats_), EMS_OK)
        << ems_last_error();
    ASSERT_EQ(rank_.tensors.size(), 2u);  // not the head
    for (const testing::MadeTensor& tensor : tensors_)
      EXPECT_TRUE(rank_.tensors[tensor.name] == Columns(tensor, rank, 2)) << tensor.name;
  }
  tensors_of_.choose = nullptr;
  rank_.tensors.clear();
  ASSERT_EQ(ems_models_load_tensors(models_, "c/load", &tensors_of_, nullptr, nullptr), EMS_OK);
  ASSERT_EQ(rank_.tensors.size(), 3u);
  EXPECT_TRUE(rank_.tensors["layer.1"] == tensors_[1].data());
}

TEST_F(ModelLoadApiTest, TensorsGoIntoTheCallersMemory) {
  static Memory rooms;
  rooms.clear();
  tensors_of_.room = [](void*, const ems_model_tensor* tensor, void** memory) {
    return Room(&rooms, tensor->name, tensor->bytes, memory);
  };
  rank_.ranks = 4;
  ASSERT_EQ(ems_models_load_tensors(models_, "c/load", &tensors_of_, &options_, nullptr), EMS_OK)
      << ems_last_error();
  EXPECT_TRUE(rooms["layer.0"] == Columns(tensors_[0], 0, 4));
  EXPECT_EQ(rank_.tensors["layer.0"], rooms["layer.0"]);
}

TEST_F(ModelLoadApiTest, SubmittedLoadsAndWaitsComplete) {
  ems_client_options client_options;
  ASSERT_EQ(ems_client_options_init(&client_options, sizeof(client_options)), EMS_OK);
  client_options.controller = cluster_->controller_address().c_str();
  ems_client* client = nullptr;
  ASSERT_EQ(ems_connect(&client_options, &client), EMS_OK) << ems_last_error();
  ems_cq* queue = nullptr;
  ASSERT_EQ(ems_cq_create(client, 4, &queue), EMS_OK);
  const auto completed = [&](uint64_t tag) {
    const ems_completion done = WaitFor(queue);
    EXPECT_EQ(done.tag, tag);
    EXPECT_EQ(done.code, EMS_OK) << ems_last_error();
    return done.value;
  };

  ASSERT_EQ(ems_models_prefetch(models_, "c/load", 0, 0, nullptr), EMS_OK);
  ems_model_info info;
  ASSERT_EQ(ems_models_wait_submit(models_, queue, 1, "c/load", 0, nullptr, nullptr, &info),
            EMS_OK);
  completed(1);
  EXPECT_EQ(info.job_state, static_cast<uint32_t>(EMS_MODEL_JOB_DONE));
  Memory memory;
  ASSERT_EQ(
      ems_models_load_rooms_submit(models_, queue, 2, "c/load", &Room, &memory, &options_, &stats_),
      EMS_OK);
  EXPECT_EQ(completed(2), Bytes());
  EXPECT_TRUE(memory["model-1.safetensors"] == files_.at("model-1.safetensors"));
  ASSERT_EQ(ems_models_load_folder_submit(models_, queue, 3, "c/load", Folder("later").c_str(),
                                          &options_, nullptr),
            EMS_OK);
  completed(3);
  ASSERT_EQ(
      ems_models_load_tensors_submit(models_, queue, 4, "c/load", &tensors_of_, &options_, nullptr),
      EMS_OK);
  completed(4);
  EXPECT_EQ(rank_.tensors.size(), 2u);
  std::string config(2, '?');
  const ems_model_buffer buffer{"config.json", config.data(), config.size()};
  ASSERT_EQ(
      ems_models_load_buffers_submit(models_, queue, 5, "c/load", &buffer, 1, &options_, &stats_),
      EMS_OK);
  EXPECT_EQ(completed(5), 2u);
  EXPECT_EQ(config, "{}");

  EXPECT_EQ(ems_models_load_folder_submit(models_, queue, 6, "c/load", nullptr, nullptr, nullptr),
            EMS_INVALID_ARGUMENT);
  ems_cq_destroy(queue);
  ems_client_destroy(client);
}

TEST_F(ModelLoadApiTest, GivingTheModelsBackEndsWhatWasSubmitted) {
  testing::WriteFiles(Folder("slow"), {{"slow.bin", testing::MakeValue("slow", "slow", 1, kMiB)}});
  ems_model_add_options add;
  ASSERT_EQ(ems_model_add_options_init(&add, sizeof(add)), EMS_OK);
  add.bytes_per_s_max = 32 * kKiB;  // half a minute
  add.block_bytes = 64 * kKiB;
  ASSERT_EQ(ems_models_add(models_, "c/slow@v1", Folder("slow").c_str(), &add, 0, nullptr), EMS_OK)
      << ems_last_error();
  ems_client_options client_options;
  ASSERT_EQ(ems_client_options_init(&client_options, sizeof(client_options)), EMS_OK);
  client_options.controller = cluster_->controller_address().c_str();
  ems_client* client = nullptr;
  ASSERT_EQ(ems_connect(&client_options, &client), EMS_OK) << ems_last_error();
  ems_cq* queue = nullptr;
  ASSERT_EQ(ems_cq_create(client, 4, &queue), EMS_OK);
  Memory memory;
  for (uint64_t tag = 1; tag <= 3; ++tag) {  // one more than there are threads
    ASSERT_EQ(ems_models_load_rooms_submit(models_, queue, tag, "c/slow", &Room, &memory, &options_,
                                           nullptr),
              EMS_OK);
  }
  const TimePoint begin = Clock::System().Now();
  ems_models_destroy(models_);
  models_ = nullptr;
  EXPECT_LE(Clock::System().Now() - begin, std::chrono::seconds(10));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(WaitFor(queue).code, EMS_CANCELLED);
  ems_cq_destroy(queue);
  ems_client_destroy(client);
}

TEST_F(ModelLoadApiTest, WhatACallbackAnswersEndsTheLoad) {
  rank_.answer = EMS_RESOURCE_EXHAUSTED;
  EXPECT_EQ(ems_models_load_tensors(models_, "c/load", &tensors_of_, &options_, &stats_),
            EMS_RESOURCE_EXHAUSTED);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("on_tensor answered"));
  EXPECT_EQ(stats_.bytes, 0u);
  tensors_of_.choose = [](void*, const ems_model_tensor*, ems_model_slice*) -> ems_status {
    return EMS_ABORTED;
  };
  EXPECT_EQ(ems_models_load_tensors(models_, "c/load", &tensors_of_, &options_, nullptr),
            EMS_ABORTED);
  tensors_of_.choose = [](void*, const ems_model_tensor*, ems_model_slice* slice) -> ems_status {
    *slice = {.axis = 7, .rank = 0, .ranks = 2, .reserved = 0};
    return EMS_OK;
  };
  EXPECT_EQ(ems_models_load_tensors(models_, "c/load", &tensors_of_, &options_, nullptr),
            EMS_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("no axis 7"));
  const auto no_room = [](void*, const char*, uint64_t, void**) -> ems_status { return EMS_OK; };
  EXPECT_EQ(ems_models_load_rooms(models_, "c/load", no_room, nullptr, &options_, nullptr),
            EMS_INVALID_ARGUMENT);
}

TEST_F(ModelLoadApiTest, BadArgumentsAreNamed) {
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  std::string room(2, '?');
  ems_model_buffer buffer{"config.json", room.data(), 1};
  refused(ems_models_load_buffers(models_, "c/load", &buffer, 1, nullptr, nullptr),
          "room of 1 bytes for config.json of 2");
  refused(ems_models_load_buffers(models_, "c/load", nullptr, 1, nullptr, nullptr),
          "buffers is NULL");
  refused(ems_models_load_buffers(models_, "c/load", &buffer, 0, nullptr, nullptr), "count is 0");
  refused(ems_models_load_rooms(models_, "c/load", nullptr, nullptr, nullptr, nullptr),
          "room is NULL");
  refused(ems_models_load_folder(models_, "c/load", nullptr, nullptr, nullptr), "folder is NULL");
  refused(ems_models_load_tensors(models_, "c/load", nullptr, nullptr, nullptr), "tensors is NULL");
  refused(ems_models_load_folder(nullptr, "c/load", "x", nullptr, nullptr), "models is NULL");
  refused(ems_models_load_folder(models_, nullptr, "x", nullptr, nullptr), "name is NULL");
  options_.threads = 65;
  refused(ems_models_load_folder(models_, "c/load", "x", &options_, nullptr), "threads is 65");
  tensors_of_.on_tensor = nullptr;
  refused(ems_models_load_tensors(models_, "c/load", &tensors_of_, nullptr, nullptr),
          "on_tensor is NULL");
  buffer.path = "nobody";
  EXPECT_EQ(ems_models_load_buffers(models_, "c/load", &buffer, 1, nullptr, nullptr),
            EMS_NOT_FOUND);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("no file nobody"));
}

}  // namespace
}  // namespace ems::capi
