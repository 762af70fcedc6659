#include "bench/model/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/scratch_folder.h"
#include "bench/model/model_files.h"
#include "bench/model/paced_source.h"
#include "ems_model/model_cache.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

constexpr Duration kControlPatience = std::chrono::seconds(10);
constexpr Duration kPrefetchPatience = std::chrono::minutes(20);
constexpr std::string_view kModelName = "bench/model";

// A model as the instances know it.
struct TestModel {
  std::string version;
  std::string url;
  MadeModel made;
};

class Experiment final {
 public:
  explicit Experiment(const ModelBenchSettings& settings) : settings_(settings) {}
  // What the run has made known is forgotten; the namespace goes with its blocks.
  ~Experiment() {
    for (const std::string& version : added_)
      (void)cache_->Remove({std::string(kModelName), version}, Deadline::After(kControlPatience));
  }
  Experiment(const Experiment&) = delete;
  Experiment& operator=(const Experiment&) = delete;

  Result<ModelBenchResults> Run() {
    EMS_RETURN_IF_ERROR(SetUp());
    ModelBenchResults results;
    results.model_bytes = large_.made.bytes;
    for (const ModelStrategy strategy :
         {ModelStrategy::kNoCache, ModelStrategy::kLocalDram, ModelStrategy::kEms}) {
      StrategyFigures figures;
      figures.strategy = strategy;
      EMS_RETURN_IF_ERROR(Measure(&figures, &results));
      results.strategies.push_back(std::move(figures));
    }
    return results;
  }

 private:
  Status SetUp() {
    ControllerClient controller(settings_.controller, "ems-bench");
    EMS_ASSIGN_OR_RETURN(const v1::ListNodesReply nodes, ListNodes(&controller));
    const uint64_t needed = PoolBytesFor(settings_);
    if (PoolBytes(nodes) < needed) {
      return Error(StatusCode::kFailedPrecondition,
                   "the pool has {} of DRAM, the models need {}: add servers, or choose --bytes "
                   "and --switch-bytes",
                   FormatBytes(PoolBytes(nodes)), FormatBytes(needed));
    }
    EMS_ASSIGN_OR_RETURN(space_, TemporaryNamespace::Create(settings_.controller));
    EMS_ASSIGN_OR_RETURN(folder_,
                         ScratchFolder::Make(std::filesystem::temp_directory_path().string()));
    EMS_ASSIGN_OR_RETURN(source_,
                         PacedSource::Start(folder_->path(), settings_.source_bytes_per_s));
    cache_ = std::make_unique<model::ModelCache>(
        model::ModelCacheOptions{.controller = settings_.controller, .name_space = space_->name()});
    EMS_ASSIGN_OR_RETURN(large_, Make("large", settings_.model_bytes, settings_.seed));
    for (int i = 0; i < settings_.models; ++i) {
      EMS_ASSIGN_OR_RETURN(TestModel one,
                           Make(fmt::format("small-{}", i), settings_.switch_model_bytes,
                                settings_.seed + 1 + static_cast<uint64_t>(i)));
      small_.push_back(std::move(one));
    }
    return OkStatus();
  }

  Result<TestModel> Make(const std::string& name, uint64_t bytes, uint64_t seed) {
    const std::string path = fmt::format("{}/{}", folder_->path(), name);
    std::error_code error;
    std::filesystem::create_directory(path, error);
    TestModel one;
    // Of this run alone: the name of a version is for ever.
    one.version = fmt::format("{}-{}", space_->name(), name);
    one.url = fmt::format("{}{}/", source_->url(), name);
    EMS_ASSIGN_OR_RETURN(one.made, MakeModel(path, bytes, seed));
    return one;
  }

  Status Measure(StrategyFigures* figures, ModelBenchResults* results) {
    std::vector<std::unique_ptr<ModelInstance>> instances;
    for (int i = 0; i < settings_.instances; ++i) {
      EMS_ASSIGN_OR_RETURN(auto one, ModelInstance::Start(settings_.program, figures->strategy,
                                                          settings_.controller, space_->name()));
      instances.push_back(std::move(one));
    }
    const bool ems = figures->strategy == ModelStrategy::kEms;
    if (ems) EMS_RETURN_IF_ERROR(Add(large_));
    EMS_RETURN_IF_ERROR(MeasureCold(instances, figures));
    if (ems) {
      EMS_ASSIGN_OR_RETURN(figures->dram_bytes, StoredBytes());
    } else if (figures->strategy == ModelStrategy::kLocalDram) {
      figures->dram_bytes = instances.size() * large_.made.bytes;
    }
    if (figures->strategy != ModelStrategy::kNoCache)
      EMS_RETURN_IF_ERROR(MeasureWarm(instances, figures, ems ? &results->copy_seconds : nullptr));
    if (ems) {
      for (const TestModel& one : small_) {
        EMS_RETURN_IF_ERROR(Add(one));
        const model::ModelName name{std::string(kModelName), one.version};
        EMS_RETURN_IF_ERROR(cache_->Prefetch(name, 0, Deadline::After(kControlPatience)).status());
        EMS_RETURN_IF_ERROR(
            cache_->WaitPrefetched(name, Deadline::After(kPrefetchPatience)).status());
      }
    }
    return MeasureSwitches(instances[0].get(), figures);
  }

  Status Add(const TestModel& one) {
    added_.push_back(one.version);
    return cache_
        ->Add({std::string(kModelName), one.version}, one.url,
              // Plain http of this very process: what is measured is a source that is read once.
              // Every load is compared with what was made in any case.
              {.verify = model::SourceVerify::kNever}, Deadline::After(kControlPatience))
        .status();
  }

  // All instances at once; each takes its device memory before its clock runs, the slowest counts.
  Status MeasureCold(const std::vector<std::unique_ptr<ModelInstance>>& instances,
                     StrategyFigures* figures) {
    const uint64_t sent = source_->bytes_sent();
    for (const auto& one : instances)
      EMS_RETURN_IF_ERROR(one->Begin(large_.version, large_.url, large_.made.bytes));
    for (const auto& one : instances) {
      EMS_ASSIGN_OR_RETURN(const InstanceLoad load, Finish(one.get(), large_));
      figures->cold_seconds = std::max(figures->cold_seconds, load.seconds);
    }
    figures->source_bytes = source_->bytes_sent() - sent;
    return OkStatus();
  }

  // One instance after the other, with copies in between: both see the same machine.
  Status MeasureWarm(const std::vector<std::unique_ptr<ModelInstance>>& instances,
                     StrategyFigures* figures, double* copy_seconds) {
    std::vector<double> copies;
    for (int round = 0; round < settings_.warm_rounds; ++round) {
      for (const auto& one : instances) {
        EMS_RETURN_IF_ERROR(one->Begin(large_.version, large_.url, large_.made.bytes));
        EMS_ASSIGN_OR_RETURN(const InstanceLoad load, Finish(one.get(), large_));
        figures->warm_seconds.push_back(load.seconds);
        figures->warm_cpu_seconds += load.cpu_seconds;
        if (copy_seconds == nullptr) continue;
        EMS_ASSIGN_OR_RETURN(const double copy, one->Copy(large_.made.bytes));
        copies.push_back(copy);
      }
    }
    std::ranges::sort(figures->warm_seconds);
    if (copy_seconds != nullptr) *copy_seconds = Median(std::move(copies));
    return OkStatus();
  }

  // The instance is asked for models at random; each has had the instance's cache before.
  Status MeasureSwitches(ModelInstance* instance, StrategyFigures* figures) {
    std::mt19937_64 random(settings_.seed);
    terminal::ProgressBar bar({.label = fmt::format("{} switches", StrategyName(figures->strategy)),
                               .total = static_cast<uint64_t>(settings_.switches),
                               .unit = "switches"});
    for (int i = -1; i < settings_.switches; ++i) {
      if (Interrupted()) return Interruption();
      const TestModel& next = small_[random() % small_.size()];
      EMS_RETURN_IF_ERROR(instance->Begin(next.version, next.url, next.made.bytes));
      EMS_ASSIGN_OR_RETURN(const InstanceLoad load, Finish(instance, next));
      if (i < 0) continue;  // whatever came first
      ++figures->switches;
      figures->hits += load.hit ? 1 : 0;
      figures->switch_seconds.push_back(load.seconds);
      bar.Update(static_cast<uint64_t>(i) + 1);
    }
    return OkStatus();
  }

  static Result<InstanceLoad> Finish(ModelInstance* instance, const TestModel& one) {
    EMS_ASSIGN_OR_RETURN(const InstanceLoad load, instance->End());
    if (load.bytes == one.made.bytes && load.hash == one.made.hash) return load;
    return Error(StatusCode::kDataLoss, "an instance loaded {} bytes that are not those of {}",
                 load.bytes, one.version);
  }

  // Memory of the pool that the run's namespace takes on all servers: values, headers, rounding.
  Result<uint64_t> StoredBytes() {
    ClientOptions options;
    options.controller = settings_.controller;
    options.name_space = space_->name();
    EMS_ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
    uint64_t sum = 0;
    for (const NodeInfo& node : client->views().view()->nodes()) {
      EMS_ASSIGN_OR_RETURN(const uint64_t bytes,
                           NamespaceBytes(client.get(), node.name, space_->name(), "chunk_bytes"));
      sum += bytes;
    }
    return sum;
  }

  const ModelBenchSettings settings_;
  std::unique_ptr<ScratchFolder> folder_;
  std::unique_ptr<PacedSource> source_;
  std::unique_ptr<TemporaryNamespace> space_;
  std::unique_ptr<model::ModelCache> cache_;
  TestModel large_;
  std::vector<TestModel> small_;
  std::vector<std::string> added_;  // versions
};

}  // namespace

uint64_t PoolBytesFor(const ModelBenchSettings& settings) {
  const uint64_t values =
      settings.model_bytes + static_cast<uint64_t>(settings.models) * settings.switch_model_bytes;
  return values / 10 * 12;
}

Result<ModelBenchResults> RunModelBench(const ModelBenchSettings& settings) {
  return Experiment(settings).Run();
}

}  // namespace ems::bench
