// What must hold, with real daemons and a real folder as the source: a prefetch brings each block
// in once however many ask for it, goes on over the death of a server and of the controller, and
// what clients read afterwards are the files' bytes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "cluster/controller_client.h"
#include "cluster/models_client.h"
#include "common/hash.h"
#include "model_files/format/manifest.h"
#include "model_files/source/open_source.h"
#include "proto/model.pb.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"

namespace ems::testing {
namespace {

using model::BlockDigest;
using model::Manifest;
using std::chrono::seconds;

constexpr uint64_t kBlockBytes = 128 * kKiB;
const std::vector<std::string> kQuickServers = {"--set", "dram.bytes=256MiB", "--set",
                                                "models.file_root=" + ::testing::TempDir()};
const std::vector<std::string> kQuickController = {
    "--set", "lease_ms=1000", "--set", "heartbeat_ms=100", "--set", "damping_ms=0"};

Deadline Soon() { return Deadline::After(seconds(20)); }

// A folder of files with random bytes.
class Weights final {
 public:
  Weights(const std::string& folder, uint64_t seed, int files, uint64_t bytes) : folder_(folder) {
    std::filesystem::create_directories(folder);
    std::mt19937_64 random(seed);
    for (int i = 0; i < files; ++i) {
      std::string content(bytes, '\0');
      for (size_t at = 0; at + 8 <= content.size(); at += 8) {
        const uint64_t word = random();
        std::memcpy(content.data() + at, &word, sizeof(word));
      }
      const std::string name = fmt::format("part-{}.bin", i);
      std::ofstream(folder + "/" + name, std::ios::binary) << content;
      contents_.push_back(std::move(content));
    }
  }
  // Cut into blocks of kBlockBytes; `version` names it.
  Manifest MakeManifest(const std::string& version, uint64_t bytes_per_s_max = 0) const {
    Manifest manifest;
    manifest.model = "test/weights";
    manifest.version = version;
    manifest.name_space = "models";
    manifest.source = {
        .url = "file://" + folder_, .credentials = "", .bytes_per_s_max = bytes_per_s_max};
    manifest.block_bytes = kBlockBytes;
    auto source = model::OpenSource({.url = manifest.source.url});
    EXPECT_TRUE(source.ok()) << source.status();
    const auto files = (*source)->List(Soon());
    EXPECT_TRUE(files.ok()) << files.status();
    for (const model::SourceFile& file : *files) {
      const auto index = static_cast<uint32_t>(manifest.files.size());
      manifest.files.push_back({file.path, file.bytes, file.tag});
      for (uint64_t at = 0; at < file.bytes; at += kBlockBytes) {
        model::ManifestBlock block{index, at, std::min(kBlockBytes, file.bytes - at), {}};
        const Hash128 hash = HashTo128(AsBytes(fmt::format("{}/{}", file.path, at)));
        std::memcpy(block.route.data(), &hash, sizeof(hash));
        manifest.blocks.push_back(block);
      }
    }
    return manifest;
  }
  const std::string& content(uint32_t file) const { return contents_[file]; }
  uint64_t bytes() const { return contents_.size() * contents_[0].size(); }

 private:
  const std::string folder_;
  std::vector<std::string> contents_;
};

class ModelPrefetchTest : public ::testing::Test {
 protected:
  void Start(int servers) {
    auto started = Cluster::Start(
        {.servers = servers, .controller_flags = kQuickController, .server_flags = kQuickServers});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    models_ = std::make_unique<ModelsClient>(cluster_->controller_address());
    ControllerClient controller(cluster_->controller_address(), "test");
    NamespaceInfo ns;
    ns.name = "models";
    ASSERT_TRUE(controller.CreateNamespace(ns, Soon()).ok());
  }
  v1::ModelRef Add(const Manifest& manifest) {
    v1::ModelManifest proto;
    ToProto(manifest, &proto);
    v1::ModelStatus status;
    EXPECT_EQ(models_->Add(proto, &status, Soon()), OkStatus());
    return status.ref();
  }
  void Prefetch(const v1::ModelRef& ref) {
    v1::ModelStatus status;
    ASSERT_EQ(models_->Prefetch(ref, 0, &status, Soon()), OkStatus());
  }
  // The job as soon as `ready` of it, or when the time is over.
  v1::PullJob WaitFor(const v1::ModelRef& ref, const std::function<bool(const v1::PullJob&)>& ready,
                      Duration time = seconds(60)) {
    v1::ModelStatus status;
    (void)Eventually(
        [&] {
          return models_->Get(ref, &status, Deadline::After(seconds(2))).ok() &&
                 ready(status.job());
        },
        time);
    return status.job();
  }
  v1::PullJob WaitForEnd(const v1::ModelRef& ref) {
    return WaitFor(ref, [](const v1::PullJob& job) { return job.state() != v1::PULL_RUNNING; });
  }
  // Every block, through a client, is what the file says.
  void ExpectWhole(const v1::ModelRef& ref, const Manifest& manifest, const Weights& weights) {
    v1::GetDigestsRequest request;
    *request.mutable_ref() = ref;
    v1::GetDigestsReply digests;
    ASSERT_EQ(models_->GetDigests(request, &digests, Soon()), OkStatus());
    ASSERT_EQ(static_cast<size_t>(digests.blocks_size()), manifest.blocks.size());
    ClientOptions options;
    options.controller = cluster_->controller_address();
    options.name_space = "models";
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    size_t missing = 0;
    for (int i = 0; i < digests.blocks_size(); ++i) {
      const model::ManifestBlock& block = manifest.blocks[digests.blocks(i)];
      BlockDigest digest;
      std::memcpy(digest.data(), digests.digests().data() + digest.size() * static_cast<size_t>(i),
                  digest.size());
      const auto value =
          (*client)->Get(model::BlockKey(digest), {.route_key = model::RouteKey(block.route)});
      if (!value.ok()) {
        ++missing;
        continue;
      }
      ASSERT_TRUE(*value == weights.content(block.file).substr(block.offset, block.bytes)) << i;
    }
    EXPECT_EQ(missing, 0U) << "of " << manifest.blocks.size();
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<ModelsClient> models_;
};

TEST_F(ModelPrefetchTest, BringsEachBlockInOnceHoweverManyAsk) {
  Start(3);
  const Weights weights(cluster_->folder() + "/w", 1, 3, 5 * kMiB + 136);
  const Manifest manifest = weights.MakeManifest("v1");
  const v1::ModelRef ref = Add(manifest);
  for (int i = 0; i < 8; ++i) Prefetch(ref);
  const v1::PullJob job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_DONE) << job.error();
  EXPECT_EQ(job.number(), 1U);
  EXPECT_EQ(job.source_bytes(), weights.bytes());
  EXPECT_EQ(job.bytes_done(), weights.bytes());
  ExpectWhole(ref, manifest, weights);
  // Once more: everything is there.
  Prefetch(ref);
  const v1::PullJob again = WaitForEnd(ref);
  EXPECT_EQ(again.state(), v1::PULL_DONE);
  EXPECT_EQ(again.number(), 2U);
  EXPECT_EQ(again.source_bytes(), 0U);
}

TEST_F(ModelPrefetchTest, GoesOnOverTheDeathOfAServer) {
  Start(3);
  const Weights weights(cluster_->folder() + "/w", 2, 4, 8 * kMiB);
  const Manifest manifest = weights.MakeManifest("v1", 6 * kMiB);
  const v1::ModelRef ref = Add(manifest);
  Prefetch(ref);
  const uint64_t early = weights.bytes() / 5;
  WaitFor(ref, [&](const v1::PullJob& job) { return job.bytes_done() >= early; });
  cluster_->server(1).Kill();
  const v1::PullJob job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_DONE) << job.error();
  EXPECT_LE(static_cast<double>(job.source_bytes()), 1.1 * static_cast<double>(weights.bytes()));
  ExpectWhole(ref, manifest, weights);
}

TEST_F(ModelPrefetchTest, GoesOnOverARestartOfTheController) {
  Start(2);
  const Weights weights(cluster_->folder() + "/w", 3, 2, 8 * kMiB);
  const Manifest manifest = weights.MakeManifest("v1", 4 * kMiB);
  const v1::ModelRef ref = Add(manifest);
  Prefetch(ref);
  WaitFor(ref, [&](const v1::PullJob& job) { return job.bytes_done() > weights.bytes() / 4; });
  cluster_->controller().Kill();
  ASSERT_EQ(cluster_->RestartController(), OkStatus());
  const v1::PullJob job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_DONE) << job.error();
  EXPECT_EQ(job.source_bytes(), weights.bytes()) << "servers went on meanwhile";
  ExpectWhole(ref, manifest, weights);
}

TEST_F(ModelPrefetchTest, PinnedVersionsStayWhenThePoolIsFullAndOthersGo) {
  Start(2);
  const Weights pinned(cluster_->folder() + "/pinned", 4, 4, 16 * kMiB);
  const Manifest manifest = pinned.MakeManifest("pinned");
  const v1::ModelRef ref = Add(manifest);
  v1::ModelStatus status;
  ASSERT_EQ(models_->Pin(ref, true, &status, Soon()), OkStatus());
  Prefetch(ref);
  ASSERT_EQ(WaitForEnd(ref).state(), v1::PULL_DONE);
  // Twice what the pool has.
  for (int i = 0; i < 8; ++i) {
    const Weights other(cluster_->folder() + "/other", 100 + static_cast<uint64_t>(i), 4,
                        32 * kMiB);
    const v1::ModelRef next = Add(other.MakeManifest(fmt::format("other-{}", i)));
    Prefetch(next);
    const v1::PullJob job = WaitForEnd(next);
    EXPECT_EQ(job.state(), v1::PULL_DONE) << job.error();
  }
  ExpectWhole(ref, manifest, pinned);
}

TEST_F(ModelPrefetchTest, ASourceThatHasChangedOrGoneEndsTheJobWithTheReason) {
  Start(2);
  const std::string folder = cluster_->folder() + "/w";
  const Weights weights(folder, 5, 2, 4 * kMiB);
  const v1::ModelRef ref = Add(weights.MakeManifest("v1"));
  std::ofstream(folder + "/part-1.bin", std::ios::binary) << std::string(4 * kMiB, 'x');
  Prefetch(ref);
  v1::PullJob job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_NE(job.error().find("part-1.bin"), std::string::npos) << job.error();
  std::filesystem::remove_all(folder);
  Prefetch(ref);
  job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.number(), 2U);
}

TEST_F(ModelPrefetchTest, FoldersThatTheServersMayNotReadAreRefused) {
  Start(1);
  const Weights weights(cluster_->folder() + "/w", 7, 1, kMiB);
  Manifest manifest = weights.MakeManifest("v1");
  manifest.source.url = "file:///usr/share";
  const v1::ModelRef ref = Add(manifest);
  Prefetch(ref);
  const v1::PullJob job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_NE(job.error().find("models.file_root"), std::string::npos) << job.error();
  ASSERT_EQ(job.failures_size(), 1);
  EXPECT_EQ(job.error().find(fmt::format("server \"{}\": ", job.failures(0).server())), 0U)
      << job.error();
}

// A source that is too slow for the job's time.
TEST_F(ModelPrefetchTest, AJobEndsAtItsDeadlineAndTheNextOneGoesOn) {
  Start(2);
  const Weights weights(cluster_->folder() + "/w", 8, 2, 8 * kMiB);
  const Manifest manifest = weights.MakeManifest("v1", kMiB);
  const v1::ModelRef ref = Add(manifest);
  v1::ModelStatus status;
  ASSERT_EQ(models_->Prefetch(ref, 0, &status, Soon(), seconds(2)), OkStatus());
  const v1::PullJob job = WaitForEnd(ref);
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(job.failures_size(), 2) << job.error();
  EXPECT_GE(job.elapsed_ms(), 2000U);
  EXPECT_LT(job.elapsed_ms(), 4000U);
  Prefetch(ref);
  EXPECT_EQ(WaitForEnd(ref).state(), v1::PULL_DONE);
  ExpectWhole(ref, manifest, weights);
}

TEST_F(ModelPrefetchTest, CancellingStopsReading) {
  Start(2);
  const Weights weights(cluster_->folder() + "/w", 6, 2, 16 * kMiB);
  const v1::ModelRef ref = Add(weights.MakeManifest("v1", 2 * kMiB));
  Prefetch(ref);
  WaitFor(ref, [&](const v1::PullJob& job) { return job.bytes_done() > 0; });
  v1::ModelStatus status;
  ASSERT_EQ(models_->CancelPrefetch(ref, &status, Soon()), OkStatus());
  EXPECT_EQ(status.job().state(), v1::PULL_CANCELLED);
  EXPECT_LT(status.job().bytes_done(), weights.bytes());
  // A new one goes on where that one ended.
  const Manifest fast = weights.MakeManifest("v1-fast");
  const v1::ModelRef other = Add(fast);
  Prefetch(other);
  EXPECT_EQ(WaitForEnd(other).state(), v1::PULL_DONE);
  ExpectWhole(other, fast, weights);
}

}  // namespace
}  // namespace ems::testing
