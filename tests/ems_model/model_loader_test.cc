// What must hold: a load brings every byte to its place, verified, whatever the pool, the
// controller and the jobs do; it takes the source's way when they fail for good; and it ends in
// time.
#include "ems_model/model_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>

#include "common/thread_pool.h"
#include "ems_model/host_target.h"
#include "ems_model/tensor_stream.h"
#include "tests/ems_model/fake_pool.h"
#include "tests/support/eventually.h"

namespace ems::model {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::MadeTensor;
using testing::TensorFile;

TEST(ModelLoaderTest, WhatIsInThePoolComesWithoutAJobOrTheSource) {
  FakeModel model(SmallModel());
  ASSERT_GT(model.blocks(), 8U);
  model.BringAll();
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->bytes, model.manifest.bytes());
  EXPECT_EQ(stats->dram_bytes, model.manifest.bytes());
  EXPECT_EQ(stats->ssd_bytes + stats->source_bytes, 0U);
  EXPECT_EQ(stats->blocks, model.blocks());
  EXPECT_EQ(model.catalog.jobs_started, 0);
  EXPECT_EQ(model.opened, 0);
}

TEST(ModelLoaderTest, DigestsThatTakeSeveralAnswersBeginNoJob) {
  FakeModel model(SmallModel());
  model.BringAll();
  model.catalog.page = 2;
  HostTarget target;
  ASSERT_TRUE(model.Load(&target).ok());
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 0);
}

TEST(ModelLoaderTest, BytesFromTheSsdAreCountedApart) {
  FakeModel model(SmallModel());
  model.BringAll();
  model.pool.tier = Tier::kSsd;
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->ssd_bytes, model.manifest.bytes());
  EXPECT_EQ(stats->dram_bytes, 0U);
}

TEST(ModelLoaderTest, BlocksAreLoadedAsTheJobBringsThem) {
  FakeModel model(SmallModel());
  uint32_t next = 0;
  model.catalog.on_digests = [&](FakeCatalog* catalog) {
    if (catalog->job.state != JobState::kRunning) return;
    if (next < model.blocks()) model.Bring(next++);
    if (next == model.blocks()) catalog->job.state = JobState::kDone;
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 1);
  EXPECT_EQ(stats->source_bytes, 0U);
}

TEST(ModelLoaderTest, AMissBeginsAJobAndTheBlockIsAskedForAgain) {
  FakeModel model(SmallModel());
  model.BringAll();
  const std::string gone = BlockKey(model.DigestOf(3));
  model.pool.Erase(gone);
  model.catalog.on_start = [&](FakeCatalog* catalog) {
    model.pool.Insert(gone, model.BytesOf(3));
    catalog->job.state = JobState::kDone;
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 1);
  EXPECT_GE(stats->misses, 1U);
  EXPECT_EQ(model.opened, 0);
}

TEST(ModelLoaderTest, ASourceThatHasChangedFailsTheLoad) {
  FakeModel model(SmallModel());
  model.catalog.on_start = [](FakeCatalog* catalog) {
    catalog->job.state = JobState::kFailed;
    catalog->job.error = Error(StatusCode::kFailedPrecondition, "the source has changed");
  };
  HostTarget target;
  const Status status = model.Load(&target).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(ToString(status), HasSubstr("the source has changed"));
  EXPECT_EQ(model.opened, 0);
}

TEST(ModelLoaderTest, WhatTheSourceGivesIsComparedWithTheKnownDigest) {
  FakeModel model(SmallModel());
  model.BringAll();
  model.pool.gate = [](std::string_view) { return Error(StatusCode::kUnavailable, "no server"); };
  std::string& bytes = model.files["sub/tokenizer.bin"];
  bytes[150'000] = static_cast<char>(bytes[150'000] + 1);
  HostTarget target;
  const Status status = model.Load(&target, Quick()).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(ToString(status), HasSubstr("sub/tokenizer.bin"));
  EXPECT_FALSE(target.file("sub/tokenizer.bin").ok());
}

// Tells which blocks have arrived.
class ArrivalsTarget final : public LoadTarget {
 public:
  Status Begin(std::span<const LoadFile> files) override {
    for (const LoadFile& file : files) bytes_.emplace_back(file.bytes, '\0');
    return OkStatus();
  }
  uint64_t Wants(uint32_t, uint64_t, uint64_t bytes) override { return bytes; }
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override {
    ranges->push_back(
        {.offset = offset,
         .into = std::as_writable_bytes(std::span(bytes_[file])).subspan(offset, bytes)});
    return OkStatus();
  }
  Status Arrived(uint32_t file, uint64_t offset, uint64_t bytes) override {
    auto arrived = arrived_.Lock();
    EXPECT_TRUE(
        arrived->emplace(std::pair(file, offset), bytes_[file].substr(offset, bytes)).second)
        << "twice";
    return OkStatus();
  }
  Status End(const Status& load) override {
    ended.push_back(load);
    return OkStatus();
  }
  std::vector<Status> ended;
  std::map<std::pair<uint32_t, uint64_t>, std::string> arrived() {
    auto arrived = arrived_.Lock();
    return *arrived;
  }

 private:
  std::vector<std::string> bytes_;
  Guarded<std::map<std::pair<uint32_t, uint64_t>, std::string>> arrived_;
};

TEST(ModelLoaderTest, NothingThatIsDamagedArrives) {
  FakeModel model(SmallModel());
  model.BringAll();
  std::string wrong = model.BytesOf(4);
  wrong[7] = static_cast<char>(wrong[7] + 1);
  model.pool.Insert(BlockKey(model.DigestOf(4)), wrong);
  LoadOptions options;
  options.verify_digests = true;
  options.fallback_to_source = false;
  ArrivalsTarget target;
  const Status status = model.Load(&target, options).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  for (const auto& [at, bytes] : target.arrived()) {
    const std::string& path = model.manifest.files[at.first].path;
    EXPECT_TRUE(bytes == model.files[path].substr(at.second, bytes.size()));
  }
  ASSERT_EQ(target.ended.size(), 1U);
  EXPECT_EQ(target.ended[0], status);

  options.fallback_to_source = true;
  ArrivalsTarget second;
  const Result<LoadStats> stats = model.Load(&second, options);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(second.arrived().size(), model.blocks());
  EXPECT_EQ(stats->source_bytes, wrong.size()) << "only the damaged block";
}

TEST(ModelLoaderTest, AValueOfAnotherLengthIsNotTheBlock) {
  FakeModel model(SmallModel());
  model.BringAll();
  model.pool.Insert(BlockKey(model.DigestOf(4)), model.BytesOf(4).substr(1));
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
}

TEST(ModelLoaderTest, TheDeadlineEndsALoadThatNothingComesFor) {
  FakeModel model(SmallModel());
  const TimePoint begin = Clock::System().Now();
  HostTarget target;
  const Status status = model.Load(&target, {}, milliseconds(300)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(ToString(status), HasSubstr("job 1 is running"));
  EXPECT_LT(Clock::System().Now() - begin, seconds(5));
}

TEST(ModelLoaderTest, ARemovedVersionEndsItOrTakesTheSource) {
  FakeModel model(SmallModel());
  model.catalog.silent = [] { return Error(StatusCode::kNotFound, "it has been removed"); };
  LoadOptions options;
  options.fallback_to_source = false;
  HostTarget target;
  EXPECT_EQ(model.Load(&target, options).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(model.Load(&target).ok());
  ExpectWhole(model, target);
}

TEST(ModelLoaderTest, ACancelledJobIsNotBegunAgain) {
  FakeModel model(SmallModel());
  model.catalog.on_start = [](FakeCatalog* catalog) { catalog->job.state = JobState::kCancelled; };
  LoadOptions options;
  options.fallback_to_source = false;
  HostTarget target;
  EXPECT_EQ(model.Load(&target, options).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(model.catalog.jobs_started, 1);
}

TEST(ModelLoaderTest, ATargetsErrorEndsTheLoad) {
  FakeModel model(SmallModel());
  model.BringAll();
  TensorStream target({},
                      [](const LoadedTensor&) { return Error(StatusCode::kAborted, "enough"); });
  EXPECT_EQ(model.Load(&target).status(), Error(StatusCode::kAborted, "enough"));
}

TEST(ModelLoaderTest, TensorsComeWithTheirTables) {
  FakeModel model(SmallModel());
  model.BringAll();
  std::map<std::string, std::string> got;
  TensorStream target({}, [&](const LoadedTensor& tensor) {
    got[tensor.info->name] = AsText(tensor.bytes);
    return OkStatus();
  });
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_EQ(got.size(), 3U);
  EXPECT_TRUE(got["a"] == (MadeTensor{.name = "a", .shape = {300, 512}}).data());
  EXPECT_TRUE(got["b.norm"] == (MadeTensor{.name = "b.norm", .shape = {512}}).data());
  EXPECT_EQ(stats->bytes, got["a"].size() + got["b.norm"].size() + got["c"].size());
}

TEST(ModelLoaderTest, ARankReadsOnlyTheRangesThatItWants) {
  FakeModel model({{"model.safetensors", TensorFile({{.name = "w", .shape = {1024, 1024}}})}},
                  kMiB);
  model.BringAll();
  const std::string whole = (MadeTensor{.name = "w", .shape = {1024, 1024}}).data();
  TensorStream::Options options;
  options.choose = [](std::string_view, const TensorInfo&) {
    return std::optional(SliceSpec{.axis = 0, .rank = 3, .ranks = 8});
  };
  std::string got;
  TensorStream target(options, [&](const LoadedTensor& tensor) {
    got = AsText(tensor.bytes);
    return OkStatus();
  });
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  const size_t share = whole.size() / 8;
  EXPECT_TRUE(got == whole.substr(3 * share, share));
  EXPECT_LT(stats->dram_bytes, share + 64 * kKiB) << "and the header";
  EXPECT_GT(model.pool.ranges_read, 0);
}

TEST(ModelLoaderTest, ALoadThatIsStoppedEndsLongBeforeItsDeadline) {
  FakeModel model(SmallModel());  // nothing of it is in the pool
  HostTarget target;
  LoadOptions options;
  options.fallback_to_source = false;
  options.stop = std::make_shared<StopFlag>();
  options.on_progress = [&](const LoadProgress&) { options.stop->Set(); };
  const TimePoint begin = Clock::System().Now();
  EXPECT_EQ(model.Load(&target, options).status().code(), StatusCode::kCancelled);
  EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(10));
}

TEST(ModelLoaderTest, ASecondLoadReadsNoHeadersAgain) {
  FakeModel model(SmallModel());
  model.BringAll();
  ModelLoader loader(model.Parts(), {});
  std::vector<std::string> names;
  const auto load = [&](std::string_view wanted) {
    TensorStream::Options options;
    options.choose = [wanted](std::string_view, const TensorInfo& tensor) {
      return tensor.name == wanted ? std::optional(SliceSpec{}) : std::nullopt;
    };
    TensorStream target(options, [&](const LoadedTensor& tensor) {
      names.push_back(tensor.info->name);
      return OkStatus();
    });
    return loader.Load(&target, Deadline::After(std::chrono::seconds(20)));
  };
  const Result<LoadStats> first = load("c");
  ASSERT_TRUE(first.ok()) << first.status();
  const Result<LoadStats> second = load("c");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(names, (std::vector<std::string>{"c", "c"}));
  EXPECT_LT(second->dram_bytes, first->dram_bytes);
}

// A source that sends nothing, until it is stopped.
Status Stall(const FakeModel& model) {
  const std::shared_ptr<StopFlag> stop = model.source_stop;
  (void)stop->WaitFor(seconds(15));
  return Error(StatusCode::kCancelled, "stopping");
}

TEST(ModelLoaderTest, AFailedLoadDoesNotWaitForReadsThatStall) {
  for (const bool summed : {false, true}) {
    FakeModel model(SmallModel());
    for (ManifestFile& file : model.manifest.files) {
      if (summed && file.path == "sub/tokenizer.bin")
        file.sum = "md5:0123456789abcdef0123456789abcdef";
    }
    model.catalog.on_start = [](FakeCatalog* catalog) {
      catalog->job.state = JobState::kCancelled;
    };
    std::atomic<bool> changed{true}, stalls{false};
    model.source_gate = [&](const std::string& path, uint64_t) {
      if (!changed) return OkStatus();
      if (path == "sub/tokenizer.bin") {
        stalls = true;
        return Stall(model);
      }
      EXPECT_TRUE(ems::testing::Eventually([&] { return stalls.load(); }));
      return Error(StatusCode::kFailedPrecondition, "the source has changed");
    };
    LoadOptions options = Quick();
    options.threads = 64;  // one for each block
    ASSERT_LT(model.blocks(), options.threads);
    ModelLoader loader(model.Parts(), options);
    HostTarget target;
    const TimePoint begin = Clock::System().Now();
    const Result<LoadStats> stats = loader.Load(&target, Deadline::After(seconds(60)));
    EXPECT_EQ(stats.status().code(), StatusCode::kFailedPrecondition) << stats.status();
    EXPECT_LT(Clock::System().Now() - begin, seconds(5)) << "summed: " << summed;
    if (summed) continue;
    changed = false;
    HostTarget again;
    const Result<LoadStats> next = loader.Load(&again, Deadline::After(seconds(60)));
    ASSERT_TRUE(next.ok()) << "the next one has a source of its own: " << next.status();
    ExpectWhole(model, again);
    EXPECT_EQ(model.opened, 2);
  }
}

TEST(ModelLoaderTest, ALoadThatIsStoppedDoesNotWaitForReadsThatStall) {
  FakeModel model(SmallModel());
  model.catalog.on_start = [](FakeCatalog* catalog) { catalog->job.state = JobState::kCancelled; };
  LoadOptions options = Quick();
  options.stop = std::make_shared<StopFlag>();
  std::atomic<bool> stalls{false};
  model.source_gate = [&](const std::string&, uint64_t) {
    stalls = true;
    return Stall(model);
  };
  options.on_progress = [&, stop = options.stop](const LoadProgress&) {
    if (stalls) stop->Set();
  };
  HostTarget target;
  const TimePoint begin = Clock::System().Now();
  const Result<LoadStats> stats = model.Load(&target, options, seconds(60));
  EXPECT_EQ(stats.status().code(), StatusCode::kCancelled) << stats.status();
  EXPECT_LT(Clock::System().Now() - begin, seconds(5));
}

}  // namespace
}  // namespace ems::model
