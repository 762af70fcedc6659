// What must hold, with real daemons: a version is added, prefetched, checked and loaded whole, into
// each target, while servers and the controller come and go; what two versions share is kept once.
#include "ems_model/model_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/thread_pool.h"
#include "ems_model/file_target.h"
#include "ems_model/host_target.h"
#include "ems_model/tensor_stream.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_model.h"

namespace ems::model {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::MadeTensor;
using testing::MakeValue;
using testing::ModelFiles;

Deadline Soon() { return Deadline::After(seconds(60)); }

std::vector<MadeTensor> Tensors(int count, uint64_t rows, uint64_t seed_of_first = 1) {
  std::vector<MadeTensor> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({.name = fmt::format("layers.{:03}.weight", i),
                       .shape = {rows, 256},
                       .seed = i == 0 ? seed_of_first : 1});
  }
  return tensors;
}

ModelFiles TwoShards() {
  return {{"config.json", "{\"a\": 1}"},
          {"model-1.safetensors", testing::TensorFile(Tensors(12, 512))},
          {"model-2.safetensors", testing::TensorFile({{.name = "head", .shape = {1024, 512}},
                                                       {.name = "norm", .shape = {512}}})},
          {"tokenizer/vocab.bin", MakeValue("file", "vocab", 1, 700'000)}};
}

// Memory that takes no second block before something has happened.
class HeldTarget final : public LoadTarget {
 public:
  explicit HeldTarget(StopFlag* until) : until_(until) {}
  Status Begin(std::span<const LoadFile> files) override { return host.Begin(files); }
  uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) override {
    return host.Wants(file, offset, bytes);
  }
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override {
    return host.Place(file, offset, bytes, ranges);
  }
  Status Arrived(uint32_t, uint64_t, uint64_t) override {
    if (arrived_.fetch_add(1) > 0) {
      EXPECT_TRUE(until_->WaitFor(seconds(30)));
    }
    return OkStatus();
  }
  Status End(const Status& load) override { return host.End(load); }
  HostTarget host;

 private:
  StopFlag* const until_;
  std::atomic<int> arrived_{0};
};

class ModelCacheTest : public ::testing::Test {
 protected:
  void Start(int servers, std::vector<std::string> flags = {},
             std::vector<std::string> controller_flags = {}) {
    root_ = ::testing::TempDir() + "ems_models_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    flags.insert(flags.end(), {"--set", "models.file_root=" + root_, "--set", "dram.bytes=192MiB"});
    Result<std::unique_ptr<Cluster>> cluster =
        Cluster::Start({.servers = servers,
                        .controller_flags = std::move(controller_flags),
                        .server_flags = std::move(flags)});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = std::move(*cluster);
    cache_ = std::make_unique<ModelCache>(
        ModelCacheOptions{.controller = cluster_->controller_address()});
  }
  ~ModelCacheTest() override {
    cache_.reset();
    cluster_.reset();
    std::error_code error;
    if (!root_.empty()) std::filesystem::remove_all(root_, error);
  }
  std::string Folder(const std::string& name) const { return root_ + "/" + name; }
  ModelInfo Add(const ModelName& name, const ModelFiles& files, AddOptions options = {}) {
    const std::string folder = Folder(name.version);
    testing::WriteFiles(folder, files);
    if (options.block_bytes == kBlockBytesDefault) options.block_bytes = kMiB;
    const Result<ModelInfo> added = cache_->Add(name, folder, options, Soon());
    EXPECT_TRUE(added.ok()) << added.status();
    return added.value_or(ModelInfo{});
  }
  void Prefetch(const ModelName& name) {
    ASSERT_TRUE(cache_->Prefetch(name, 0, Soon()).ok());
    const auto done = cache_->WaitPrefetched(name, Soon());
    ASSERT_TRUE(done.ok()) << done.status();
  }
  static void ExpectFiles(const HostTarget& target, const ModelFiles& files) {
    for (const auto& [path, bytes] : files) {
      const Result<ConstBytes> loaded = target.file(path);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_TRUE(AsText(*loaded) == bytes) << path;
    }
  }
  // Bytes of values that all servers hold in DRAM.
  uint64_t BytesInDram() {
    const auto client = cluster_->Connect();
    EXPECT_TRUE(client.ok()) << client.status();
    uint64_t sum = 0;
    for (int i = 0; client.ok() && i < cluster_->server_count(); ++i) {
      const auto text = (*client)->ServerStats(Cluster::ServerName(i), seconds(5));
      EXPECT_TRUE(text.ok()) << text.status();
      if (!text.ok()) continue;
      const auto stats = nlohmann::json::parse(*text);
      for (const auto& one : stats["namespaces"]) sum += one["value_bytes"].get<uint64_t>();
    }
    return sum;
  }

  std::string root_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<ModelCache> cache_;
  const ModelName v1_{.model = "m", .version = "v1"};
};

TEST_F(ModelCacheTest, AddPrefetchCheckLoadIntoEachTarget) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  const ModelFiles files = TwoShards();
  const ModelInfo added = Add(v1_, files);
  const Result<ModelInfo> again = cache_->Add(v1_, Folder("v1"), {.block_bytes = kMiB}, Soon());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id, added.id);

  Result<CheckResult> check = cache_->Check(v1_, Soon());
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->absent_bytes, added.bytes);

  ASSERT_TRUE(cache_->Prefetch(v1_, 0, Soon()).ok());
  uint64_t seen = 0;
  const auto done = cache_->WaitPrefetched(v1_, Soon(), [&](const PrefetchProgress& progress) {
    EXPECT_GE(progress.info.job.bytes_done, seen);
    seen = progress.info.job.bytes_done;
  });
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->info.job.bytes_done, added.bytes);
  EXPECT_EQ(done->info.job.source_bytes, added.bytes) << "each byte once";
  EXPECT_EQ(seen, added.bytes);

  check = cache_->Check(v1_, Soon());
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->dram_bytes, added.bytes);
  EXPECT_EQ(check->absent_blocks + check->unreachable_blocks + check->ssd_blocks, 0U);

  HostTarget host;
  Result<LoadStats> stats = cache_->Load(v1_, &host, {}, Soon());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectFiles(host, files);
  EXPECT_EQ(stats->dram_bytes, added.bytes);
  EXPECT_EQ(stats->source_bytes, 0U);

  FileTarget to_files({.folder = Folder("out")});
  LoadOptions verify;
  verify.verify_digests = true;
  stats = cache_->Load({.model = "m"}, &to_files, verify, Soon());
  ASSERT_TRUE(stats.ok()) << stats.status();
  for (const auto& [path, bytes] : files)
    EXPECT_TRUE(testing::ReadFile(Folder("out") + "/" + path) == bytes) << path;

  // Each of two ranks gets half of the columns of the head.
  const std::string head = (MadeTensor{.name = "head", .shape = {1024, 512}}).data();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    TensorStream::Options options;
    options.choose = [&](std::string_view, const TensorInfo& info) {
      return info.name == "head" ? std::optional(SliceSpec{.axis = 1, .rank = rank, .ranks = 2})
                                 : std::nullopt;
    };
    std::string expected;
    for (size_t row = 0; row < 1024; ++row) expected += head.substr(row * 1024 + rank * 512, 512);
    std::string got;
    TensorStream stream(options, [&](const LoadedTensor& tensor) {
      got = AsText(tensor.bytes);
      return OkStatus();
    });
    stats = cache_->Load(v1_, &stream, {}, Soon());
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_TRUE(got == expected);
    EXPECT_LT(stats->dram_bytes, head.size() + 100'000) << "other tensors are not read";
  }
}

TEST_F(ModelCacheTest, ALoadOfWhatIsNotThereHasItBroughtIn) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  const ModelFiles files = TwoShards();
  const ModelInfo added = Add(v1_, files);
  // Many instances at once: each block is read from the source once.
  std::atomic<uint64_t> from_source{0};
  {
    std::vector<Thread> instances;
    for (int i = 0; i < 4; ++i) {
      instances.emplace_back("instance", [&] {
        ModelCache cache({.controller = cluster_->controller_address()});
        HostTarget target;
        const Result<LoadStats> stats = cache.Load(v1_, &target, {}, Soon());
        ASSERT_TRUE(stats.ok()) << stats.status();
        from_source += stats->source_bytes;
        ExpectFiles(target, files);
      });
    }
  }
  EXPECT_EQ(from_source, 0U);
  const auto done = cache_->WaitPrefetched(v1_, Soon());
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->info.job.source_bytes, added.bytes);
}

TEST_F(ModelCacheTest, AServerThatDiesInMidLoadIsNoticedByNobody) {
  ASSERT_NO_FATAL_FAILURE(Start(3, {}, {"--set", "lease_ms=2000"}));
  const ModelFiles files = {{"model.safetensors", testing::TensorFile(Tensors(60, 2048))}};
  Add(v1_, files);
  ASSERT_NO_FATAL_FAILURE(Prefetch(v1_));
  StopFlag killed;
  HeldTarget target(&killed);
  LoadOptions options;
  options.threads = 1;
  options.batch_bytes = 2 * kMiB;
  options.fallback_to_source = false;
  options.on_progress = [&](const LoadProgress&) {
    if (killed.IsSet()) return;
    cluster_->server(1).Kill();
    killed.Set();
  };
  const Result<LoadStats> stats = cache_->Load(v1_, &target, options, Soon());
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_GT(stats->jobs, 0U) << "its blocks are to be brought in again";
  ExpectFiles(target.host, files);
}

TEST_F(ModelCacheTest, AServerThatHangsInMidLoadHoldsNobodyUp) {
  ASSERT_NO_FATAL_FAILURE(Start(3, {}, {"--set", "lease_ms=2000"}));
  const ModelFiles files = {{"model.safetensors", testing::TensorFile(Tensors(60, 2048))}};
  Add(v1_, files);
  ASSERT_NO_FATAL_FAILURE(Prefetch(v1_));
  StopFlag stopped;
  HeldTarget target(&stopped);
  LoadOptions options;
  options.threads = 1;
  options.batch_bytes = 2 * kMiB;
  options.fallback_to_source = false;
  options.on_progress = [&](const LoadProgress&) {
    if (stopped.IsSet()) return;
    cluster_->server(1).Signal(SIGSTOP);
    stopped.Set();
  };
  const Result<LoadStats> stats = cache_->Load(v1_, &target, options, Soon());
  cluster_->server(1).Signal(SIGCONT);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectFiles(target.host, files);
}

TEST_F(ModelCacheTest, TheControllerMayRestartInMidLoad) {
  ASSERT_NO_FATAL_FAILURE(Start(2, {"--set", "models.pulls_max=1"}));
  const ModelFiles files = {{"model.safetensors", testing::TensorFile(Tensors(40, 2048))}};
  AddOptions slow;
  slow.bytes_per_s_max = 16 * kMiB;  // of each server: the load takes about a second
  Add(v1_, files, slow);
  std::atomic<bool> begun{false};
  std::atomic<bool> over{false};
  Result<LoadStats> stats = LoadStats{};
  HostTarget target;
  {
    Thread loads("loads", [&] {
      LoadOptions options;
      options.fallback_to_source = false;
      options.on_progress = [&](const LoadProgress& progress) {
        if (progress.bytes_done > 0) begun = true;
      };
      stats = cache_->Load(v1_, &target, options, Soon());
      over = true;
    });
    EXPECT_TRUE(ems::testing::Eventually([&] { return begun || over; }, seconds(30)));
    EXPECT_FALSE(over) << "the controller is to stop before the end";
    cluster_->controller().Kill();
    ASSERT_TRUE(cluster_->RestartController().ok());
  }
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectFiles(target, files);
}

TEST_F(ModelCacheTest, ASourceThatChangesIsNeverDelivered) {
  ASSERT_NO_FATAL_FAILURE(Start(2, {}, {"--set", "damping_ms=0"}));
  ModelFiles files = TwoShards();
  Add(v1_, files);
  ASSERT_NO_FATAL_FAILURE(Prefetch(v1_));
  // The pool forgets, and the source has other bytes now.
  for (int i = 0; i < 2; ++i) {
    cluster_->server(i).Kill();
    ASSERT_TRUE(cluster_->RestartServer(i).ok());
  }
  ASSERT_TRUE(cluster_->WaitForServers(2, seconds(30)).ok());
  std::string& vocab = files["tokenizer/vocab.bin"];
  vocab[1000] = static_cast<char>(vocab[1000] + 1);
  testing::WriteFiles(Folder("v1"), {{"tokenizer/vocab.bin", vocab}});
  HostTarget target;
  const Status status = cache_->Load(v1_, &target, {}, Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(ToString(status), HasSubstr("tokenizer/vocab.bin"));
  EXPECT_FALSE(target.file("tokenizer/vocab.bin").ok());
}

TEST_F(ModelCacheTest, ServersThatMayNotReadTheSourceAreGoneAround) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  char folder[] = "/tmp/ems_elsewhere_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const ModelFiles files = {{"a.bin", MakeValue("file", "a", 1, 300'000)}};
  testing::WriteFiles(folder, files);
  ASSERT_TRUE(cache_->Add(v1_, folder, {}, Soon()).ok());
  HostTarget target;
  const Result<LoadStats> stats = cache_->Load(v1_, &target, {}, Soon());
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectFiles(target, files);
  EXPECT_EQ(stats->source_bytes, 300'000U);
  EXPECT_THAT(ToString(stats->detour), HasSubstr("models.file_root"));
  const Status waited = cache_->WaitPrefetched(v1_, Soon()).status();
  EXPECT_EQ(waited.code(), StatusCode::kPermissionDenied) << waited;
}

TEST_F(ModelCacheTest, WithoutServersTheSourceIsRead) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  const ModelFiles files = TwoShards();
  Add(v1_, files);
  cluster_->server(0).Kill();
  LoadOptions options;
  options.pool_patience = milliseconds(500);
  HostTarget target;
  const Result<LoadStats> stats = cache_->Load(v1_, &target, options, Soon());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectFiles(target, files);
  EXPECT_GT(stats->source_bytes, 0U);

  options.fallback_to_source = false;
  const TimePoint begin = Clock::System().Now();
  const Status late = cache_->Load(v1_, &target, options, Deadline::After(seconds(1))).status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late;
  EXPECT_LT(Clock::System().Now() - begin, seconds(10));
}

TEST_F(ModelCacheTest, VersionsThatDifferInOneTensorShareTheRest) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  const ModelName v2{.model = "m", .version = "v2"};
  const ModelInfo one = Add(v1_, {{"model.safetensors", testing::TensorFile(Tensors(100, 1024))}});
  ASSERT_NO_FATAL_FAILURE(Prefetch(v1_));
  const uint64_t before = BytesInDram();
  Add(v2, {{"model.safetensors", testing::TensorFile(Tensors(100, 1024, 2))}});
  ASSERT_NO_FATAL_FAILURE(Prefetch(v2));
  const uint64_t after = BytesInDram();
  EXPECT_GE(before, one.bytes);
  EXPECT_LE(after - before, one.bytes * 3 / 100) << one.bytes << " bytes a version";
  const Result<CheckResult> check = cache_->Check(v2, Soon());
  ASSERT_TRUE(check.ok());
  EXPECT_EQ(check->dram_bytes, check->info.bytes);
  HostTarget target;
  ASSERT_TRUE(cache_->Load(v2, &target, {}, Soon()).ok());
  EXPECT_TRUE(AsText(*target.file("model.safetensors")) ==
              testing::TensorFile(Tensors(100, 1024, 2)));
}

TEST_F(ModelCacheTest, PinsCancelsAndRemoves) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  Add(v1_, TwoShards());
  EXPECT_EQ(cache_->WaitPrefetched(v1_, Soon()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(cache_->Pin(v1_, Soon())->pinned);
  EXPECT_EQ(cache_->Remove(v1_, Soon()).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(cache_->Unpin(v1_, Soon())->pinned);
  ASSERT_TRUE(cache_->Cancel(v1_, Soon()).ok());
  EXPECT_EQ(cache_->List(Soon())->size(), 1U);
  EXPECT_EQ(cache_->GetManifest(v1_, Soon())->files.size(), 4U);
  ASSERT_TRUE(cache_->Remove(v1_, Soon()).ok());
  HostTarget target;
  EXPECT_EQ(cache_->Load(v1_, &target, {}, Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache_->Get(v1_, Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache_->Check({.model = "no spaces"}, Soon()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ModelCacheTest, BlocksOnTheSsdAreSeenAndLoaded) {
  ASSERT_NO_FATAL_FAILURE(
      Start(1, {"--set", "ssd.capacity_bytes=512MiB"}, {"--set", "damping_ms=0"}));
  const ModelFiles files = TwoShards();
  const ModelInfo added = Add(v1_, files);
  ASSERT_NO_FATAL_FAILURE(Prefetch(v1_));
  cluster_->server(0).Signal(SIGTERM);
  ASSERT_TRUE(cluster_->server(0).WaitExit(seconds(30)).ok());
  ASSERT_TRUE(cluster_->RestartServer(0).ok());
  ASSERT_TRUE(cluster_->WaitForServers(1, seconds(30)).ok());
  const Result<CheckResult> check = cache_->Check(v1_, Soon());
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->ssd_bytes, added.bytes);
  HostTarget target;
  LoadOptions options;
  options.fallback_to_source = false;
  const Result<LoadStats> stats = cache_->Load(v1_, &target, options, Soon());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectFiles(target, files);
  EXPECT_EQ(stats->ssd_bytes + stats->dram_bytes, added.bytes);
  EXPECT_GT(stats->ssd_bytes, 0U);
}

TEST_F(ModelCacheTest, AnotherClusterThanTheOneThatIsMeantIsRefused) {
  Start(1);
  EXPECT_EQ(cache_->cluster(), kNoCluster);
  const ModelInfo added = Add(v1_, {{"config.json", "{}"}});
  const ClusterId own = cache_->cluster();
  ASSERT_NE(own, kNoCluster);
  ModelCache other(
      {.controller = cluster_->controller_address(), .cluster = ClusterId(own.value() ^ 2)});
  for (const Status& refused :
       {other.List(Soon()).status(), other.Remove(added.name, Soon()),
        other.Add({.model = "m", .version = "v2"}, Folder("v1"), {}, Soon()).status()}) {
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(Message(refused)), HasSubstr(ClusterText(own)));
  }
  EXPECT_EQ(cache_->List(Soon())->size(), 1U);
}

}  // namespace
}  // namespace ems::model
