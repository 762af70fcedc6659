#pragma once
// A pool and a controller in memory, for loads that go wrong as a test wants.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "ems_model/host_target.h"
#include "ems_model/manifest_maker.h"
#include "ems_model/model_loader.h"
#include "tests/support/memory_model.h"

namespace ems::model {

// Threading: thread-safe; hooks are set before.
class FakePool final : public BlockPool {
 public:
  // Asked for each item; an error is its result.
  std::function<Status(std::string_view key)> gate;
  Tier tier = Tier::kDram;

  void Insert(std::string key, std::string value) {
    auto values = values_.Lock();
    (*values)[std::move(key)] = std::move(value);
  }
  void Erase(const std::string& key) {
    auto values = values_.Lock();
    values->erase(key);
  }
  std::vector<Result<uint64_t>> Read(std::span<const GetItem> items, Duration) override {
    std::vector<Result<uint64_t>> results;
    for (const GetItem& item : items) {
      Result<std::string> value = Find(item.key);
      if (value.ok() && item.tier != nullptr) *item.tier = tier;
      if (!value.ok()) {
        results.emplace_back(value.status());
      } else if (value->size() > item.into.size_bytes()) {
        results.emplace_back(Error(StatusCode::kOutOfRange, "too long"));
      } else {
        Scatter(*value, item.into);
        results.emplace_back(value->size());
      }
    }
    return results;
  }
  std::vector<Status> ReadRanges(std::span<const RangeItem> items, Duration) override {
    std::vector<Status> results;
    for (const RangeItem& item : items) {
      Result<std::string> value = Find(item.key);
      ranges_read += 1;
      if (value.ok() && item.tier != nullptr) *item.tier = tier;
      if (value.ok() && value->size() == item.whole_bytes) {
        Scatter(value->substr(item.offset, item.into.size_bytes()), item.into);
        results.push_back(OkStatus());
      } else {
        results.push_back(value.ok() ? Error(StatusCode::kOutOfRange, "of another length")
                                     : value.status());
      }
    }
    return results;
  }
  Status Probe(std::span<const BlockRoute>, Duration) override {
    ++probes;
    return gate ? gate("probe") : OkStatus();
  }
  uint64_t view() override { return view_number; }
  std::atomic<uint64_t> view_number{1};
  std::atomic<int> ranges_read{0};
  std::atomic<int> probes{0};

 private:
  Result<std::string> Find(std::string_view key) {
    if (gate) EMS_RETURN_IF_ERROR(gate(key));
    auto values = values_.Lock();
    const auto found = values->find(std::string(key));
    if (found == values->end()) return Miss();
    return found->second;
  }
  static void Scatter(const std::string& value, const MutableBuffers& into) {
    size_t at = 0;
    for (const MutableBytes part : into.parts()) {
      const size_t size = std::min(part.size(), value.size() - at);
      std::memcpy(part.data(), value.data() + at, size);
      at += size;
    }
  }
  Guarded<std::map<std::string, std::string>> values_;
};

// A version whose blocks the test brings in itself. Threading: one thread, that of the load.
class FakeCatalog final : public LoadCatalog {
 public:
  std::vector<std::pair<uint32_t, BlockDigest>> known;  // in the order of becoming so
  JobInfo job;
  int jobs_started = 0;
  size_t page = 16'384;                          // most digests in an answer
  bool waits = false;                            // for news, and takes 2 ms to answer
  std::function<Status()> silent;                // an error: no controller
  std::function<void(FakeCatalog*)> on_start;    // a job has been asked for
  std::function<void(FakeCatalog*)> on_digests;  // before each answer

  Result<DigestNews> Digests(uint32_t since, Duration wait, Deadline deadline) override {
    if (silent) EMS_RETURN_IF_ERROR(silent());
    if (on_digests) on_digests(this);
    if (waits && since >= known.size()) {
      StopFlag never;
      const Duration takes = wait + std::chrono::milliseconds(2);
      const bool late = takes > deadline.Remaining();
      (void)never.WaitFor(std::min(takes, deadline.Remaining()));
      if (late) return Error(StatusCode::kDeadlineExceeded, "no answer in time");
    }
    DigestNews news;
    for (size_t i = since; i < known.size() && news.digests.size() < page; ++i)
      news.digests.push_back(known[i]);
    news.known = static_cast<uint32_t>(known.size());
    news.job = job;
    return news;
  }
  Result<JobInfo> StartJob(uint32_t priority, Deadline) override {
    if (silent) EMS_RETURN_IF_ERROR(silent());
    ++jobs_started;
    if (job.state != JobState::kRunning) {
      ++job.number;
      job.state = JobState::kRunning;
      job.error = OkStatus();
    }
    job.priority = std::max(job.priority, priority);
    if (on_start) on_start(this);
    return job;
  }
};

// A version, and what of it is in the pool.
struct FakeModel {
  explicit FakeModel(testing::ModelFiles files_in, uint64_t block_bytes = 64 * kKiB)
      : files(std::move(files_in)) {
    testing::MemorySource source(files);
    auto made =
        MakeManifest(&source, "/models", {.model = "m", .version = "v"}, "models",
                     {.block_bytes = block_bytes}, Deadline::After(std::chrono::seconds(10)));
    if (made.ok()) manifest = *std::move(made);
  }
  size_t blocks() const { return manifest.blocks.size(); }
  std::string BytesOf(uint32_t block) const {
    const ManifestBlock& at = manifest.blocks[block];
    return files.at(manifest.files[at.file].path).substr(at.offset, at.bytes);
  }
  BlockDigest DigestOf(uint32_t block) const { return Sha256().Digest(AsBytes(BytesOf(block))); }
  // Into the pool, and known.
  void Bring(uint32_t block) {
    pool.Insert(BlockKey(DigestOf(block)), BytesOf(block));
    catalog.known.emplace_back(block, DigestOf(block));
  }
  void BringAll() {
    for (uint32_t i = 0; i < blocks(); ++i) Bring(i);
  }
  // As the manifest's source; counts how often it is opened.
  ModelLoader::Parts Parts() {
    return {.manifest = &manifest,
            .pool = &pool,
            .catalog = &catalog,
            .open_source = [this](std::shared_ptr<StopFlag> stop) {
              ++opened;
              source_stop = std::move(stop);
              auto source = std::make_unique<testing::MemorySource>(files);
              source->gate = source_gate;
              source->damage = source_damage;
              source->compares = source_compares;
              return Result<std::unique_ptr<WeightSource>>(std::move(source));
            }};
  }
  Result<LoadStats> Load(LoadTarget* target, LoadOptions options = {},
                         Duration time = std::chrono::seconds(20)) {
    ModelLoader loader(Parts(), std::move(options));
    return loader.Load(target, Deadline::After(time));
  }

  testing::ModelFiles files;
  Manifest manifest;
  FakePool pool;
  FakeCatalog catalog;
  std::function<Status(const std::string&, uint64_t)> source_gate;
  std::function<void(const std::string&, uint64_t, MutableBytes)> source_damage;
  bool source_compares = false;
  std::shared_ptr<StopFlag> source_stop;  // of the one that was opened last
  int opened = 0;
};

inline testing::ModelFiles SmallModel() {
  return {{"config.json", "{}"},
          {"empty.txt", ""},
          {"model.safetensors", testing::TensorFile({{.name = "a", .shape = {300, 512}},
                                                     {.name = "b.norm", .shape = {512}},
                                                     {.name = "c", .shape = {256, 512}}})},
          {"sub/tokenizer.bin", testing::MakeValue("file", "tokenizer", 1, 200'000)}};
}

inline void ExpectWhole(const FakeModel& model, const HostTarget& target) {
  for (const auto& [path, bytes] : model.files) {
    const Result<ConstBytes> loaded = target.file(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(AsText(*loaded) == bytes) << path;
  }
}

// Of little patience with the pool.
inline LoadOptions Quick() {
  LoadOptions options;
  options.pool_patience = std::chrono::milliseconds(300);
  return options;
}

}  // namespace ems::model
