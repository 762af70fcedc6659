#include "ems_model/model_cache.h"

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "cluster/controller_client.h"
#include "cluster/models_client.h"
#include "cluster/view_cache.h"
#include "cluster/while_starting.h"
#include "common/guarded.h"
#include "common/retry.h"
#include "common/thread_pool.h"
#include "ems_model/internal/client_pool.h"
#include "ems_model/progress_meter.h"
#include "model_files/source/open_source.h"
#include "mp_sdk/client.h"
#include "proto/model.pb.h"

namespace ems::model {
namespace {

using internal::AskDigests;
using internal::ClientPool;
using internal::ControllerCatalog;

constexpr size_t kMetersMax = 1024;  // as many as there can be versions
constexpr size_t kStatBatch = 16'384;
constexpr size_t kVersionsCompared = 8;
constexpr Duration kStatTimeout = std::chrono::seconds(2);
constexpr Duration kProgressWait = std::chrono::milliseconds(200);
constexpr Duration kOutageWait = std::chrono::seconds(10);  // of the controller, in WaitPrefetched

Result<v1::ModelRef> RefOf(const ModelName& name) {
  EMS_RETURN_IF_ERROR(CheckModelName(name.model));
  if (!name.version.empty()) EMS_RETURN_IF_ERROR(CheckVersionName(name.version));
  v1::ModelRef ref;
  ToProto(name, &ref);
  return ref;
}

}  // namespace

struct ModelCache::Impl {
  explicit Impl(ModelCacheOptions wanted)
      : options(std::move(wanted)),
        models(options.controller, &joined),
        controller(options.controller, "model cache", &joined) {
    (void)joined.Join(options.cluster);  // it is the first one
  }

  using Call = Status (ModelsClient::*)(const v1::ModelRef&, v1::ModelStatus*, Deadline);
  Result<ModelInfo> Ask(Call call, const ModelName& name, Deadline deadline) {
    EMS_ASSIGN_OR_RETURN(const v1::ModelRef ref, RefOf(name));
    v1::ModelStatus status;
    EMS_RETURN_IF_ERROR((models.*call)(ref, &status, deadline));
    return FromProto(status);
  }
  Result<Manifest> ManifestOf(uint32_t id, Deadline deadline) {
    v1::ModelManifest manifest;
    EMS_RETURN_IF_ERROR(models.GetManifest(internal::RefOf(id), &manifest, deadline));
    return FromProto(manifest);
  }
  Result<std::unique_ptr<WeightSource>> Open(const ManifestSource& source,
                                             std::vector<std::string> files,
                                             std::shared_ptr<StopFlag> stop = nullptr) const {
    SourceSpec spec;
    spec.url = source.url;
    spec.credentials = options.source_credentials;
    spec.files = std::move(files);
    spec.bytes_per_s_max = source.bytes_per_s_max;
    if (source.first_read != FirstRead::kOnce && spec.bytes_per_s_max > 1)
      spec.bytes_per_s_max /= 2;  // by two of them
    spec.ca_file = options.source_ca_file;
    spec.stop = std::move(stop);
    return OpenSource(spec);
  }
  static const Status& StatusOf(const Status& status) { return status; }
  template <typename T>
  static const Status& StatusOf(const Result<T>& result) {
    return result.status();
  }
  // Asks again, for start_timeout, while the controller is being restarted, or has too much to do.
  template <typename Question>
  std::invoke_result_t<Question> Patiently(Deadline deadline, const Question& question) const {
    const Deadline until(std::min(deadline.at(), Deadline::After(options.start_timeout).at()));
    Backoff backoff(reinterpret_cast<uintptr_t>(this));
    StopFlag pause;
    while (true) {
      auto answer = question();
      const StatusCode code = StatusOf(answer).code();
      const bool passes =
          code == StatusCode::kUnavailable || code == StatusCode::kResourceExhausted;
      if (!passes || until.Passed()) return answer;
      pause.WaitFor(std::min(backoff.Next(), until.Remaining()));
    }
  }
  // The digests of up to kVersionsCompared other versions of the same model, the newest.
  Result<std::set<BlockDigest>> DigestsOfOthers(const ModelInfo& info, Deadline deadline);
  Status MakeNamespace(Deadline deadline);
  Result<std::shared_ptr<Client>> PoolOf(const std::string& name_space, Deadline deadline);
  PrefetchProgress Measure(ModelInfo info);
  // Digests of all blocks that are known.
  Result<std::vector<std::optional<BlockDigest>>> AllDigests(uint32_t id, size_t blocks,
                                                             Deadline deadline);

  const ModelCacheOptions options;
  ViewCache joined;  // the cluster alone
  ModelsClient models;
  ControllerClient controller;
  Guarded<std::map<std::string, std::shared_ptr<Client>>> pools;  // by namespace
  Guarded<std::map<uint32_t, ProgressMeter>> meters;              // by version
};

// Two who add the first version at once both find it made.
Status ModelCache::Impl::MakeNamespace(Deadline deadline) {
  const auto there = controller.GetNamespace(options.name_space, deadline);
  if (there.status().code() != StatusCode::kNotFound) return there.status();
  NamespaceInfo wanted;
  wanted.name = options.name_space;
  const Status made = WhileStarting(
      deadline, [&](Deadline until) { return controller.CreateNamespace(wanted, until).status(); });
  return made.code() == StatusCode::kAlreadyExists ? OkStatus() : made;
}

Result<std::shared_ptr<Client>> ModelCache::Impl::PoolOf(const std::string& name_space,
                                                         Deadline deadline) {
  {
    auto locked = pools.Lock();
    const auto found = locked->find(name_space);
    if (found != locked->end()) {
      // A namespace that was deleted and made again is another one.
      const auto& client = found->second;
      const auto known = client->views().namespaces()->Find(name_space);
      if (known == nullptr || known->ref == client->name_space().ref) return client;
      locked->erase(found);
    }
  }
  ClientOptions client;
  client.controller = options.controller;
  client.name_space = name_space;
  client.transport = options.transport;
  client.connections_per_server_max = options.connections_per_server_max;
  client.start_timeout = std::min(options.start_timeout, deadline.Remaining());
  client.shm_token = options.shm_token;
  EMS_ASSIGN_OR_RETURN(std::shared_ptr<Client> connected, Client::Connect(client));
  EMS_RETURN_IF_ERROR(joined.Join(connected->views().cluster()));
  auto locked = pools.Lock();
  return locked->emplace(name_space, std::move(connected)).first->second;
}

PrefetchProgress ModelCache::Impl::Measure(ModelInfo info) {
  PrefetchProgress progress;
  auto locked = meters.Lock();
  if (locked->size() >= kMetersMax && !locked->contains(info.id)) locked->erase(locked->begin());
  ProgressMeter& meter = (*locked)[info.id];
  meter.Add(Clock::System().Now(), info.job.number, info.job.bytes_done);
  progress.bytes_per_s = meter.bytes_per_s();
  progress.time_left = meter.TimeLeft(info.bytes);
  progress.info = std::move(info);
  return progress;
}

Result<std::vector<std::optional<BlockDigest>>> ModelCache::Impl::AllDigests(uint32_t id,
                                                                             size_t blocks,
                                                                             Deadline deadline) {
  std::vector<std::optional<BlockDigest>> digests(blocks);
  for (uint32_t since = 0;;) {
    EMS_ASSIGN_OR_RETURN(const DigestNews news,
                         AskDigests(&models, id, since, Duration(0), deadline));
    for (const auto& [block, digest] : news.digests) {
      if (block < blocks) digests[block] = digest;
    }
    since += static_cast<uint32_t>(news.digests.size());
    if (news.digests.empty() || since >= news.known) return digests;
  }
}

ModelCache::ModelCache(ModelCacheOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

ModelCache::~ModelCache() = default;

ClusterId ModelCache::cluster() const { return impl_->joined.cluster(); }

Result<ModelInfo> ModelCache::Add(const ModelName& name, const std::string& url,
                                  const AddOptions& options, Deadline deadline) {
  EMS_RETURN_IF_ERROR(CheckModelName(name.model));
  EMS_RETURN_IF_ERROR(CheckVersionName(name.version));
  // Nothing is connected by opening them.
  const ManifestSource from{.url = url, .credentials = {}, .bytes_per_s_max = 0};
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                       impl_->Open(from, options.files));
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> second,
                       impl_->Open(from, options.files));
  EMS_ASSIGN_OR_RETURN(Manifest manifest,
                       MakeManifest(source.get(), url, name, impl_->options.name_space, options,
                                    deadline, second.get()));
  EMS_RETURN_IF_ERROR(impl_->MakeNamespace(deadline));
  v1::ModelManifest proto;
  ToProto(manifest, &proto);
  v1::ModelStatus status;
  EMS_RETURN_IF_ERROR(
      impl_->models.Add(proto, &status, deadline, options.verify == SourceVerify::kNever));
  ModelInfo added = FromProto(status);
  ManifestSource wanted = std::exchange(manifest.source, added.source);
  wanted.first_read = added.source.first_read;
  AddedAgain again{.elsewhere = wanted != added.source || manifest.name_space != added.name_space};
  if (status.has_first_read_before())
    again.before = static_cast<FirstRead>(status.first_read_before());
  const AddRemark remark = RemarkOf(manifest, options.verify, again);
  const auto& tell = remark.warning ? options.on_warning : options.on_note;
  if (!remark.text.empty() && tell) tell(remark.text);
  return added;
}

Result<std::vector<ModelInfo>> ModelCache::List(Deadline deadline) {
  v1::ListModelsReply reply;
  EMS_RETURN_IF_ERROR(impl_->models.List(0, Duration(0), &reply, deadline));
  std::vector<ModelInfo> infos;
  for (const v1::ModelStatus& status : reply.models()) infos.push_back(FromProto(status));
  return infos;
}

Result<ModelInfo> ModelCache::Get(const ModelName& name, Deadline deadline) {
  return impl_->Ask(&ModelsClient::Get, name, deadline);
}

Result<Manifest> ModelCache::GetManifest(const ModelName& name, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const ModelInfo info, Get(name, deadline));
  return impl_->ManifestOf(info.id, deadline);
}

Result<std::set<BlockDigest>> ModelCache::Impl::DigestsOfOthers(const ModelInfo& info,
                                                                Deadline deadline) {
  v1::ListModelsReply list;
  EMS_RETURN_IF_ERROR(models.List(0, Duration(0), &list, deadline));
  std::set<BlockDigest> found;
  size_t versions = 0;
  for (auto at = list.models().rbegin(); at != list.models().rend(); ++at) {
    if (at->ref().model() != info.name.model || at->ref().id() == info.id ||
        at->name_space() != info.name_space || at->blocks_known() == 0)
      continue;
    if (versions++ == kVersionsCompared) break;
    auto digests = AllDigests(at->ref().id(), at->blocks(), deadline);
    if (digests.status().code() == StatusCode::kNotFound) continue;  // removed meanwhile
    EMS_RETURN_IF_ERROR(digests.status());
    for (const std::optional<BlockDigest>& digest : *digests) {
      if (digest) found.insert(*digest);
    }
  }
  return found;
}

Result<CheckResult> ModelCache::Check(const ModelName& name, Deadline deadline) {
  CheckResult result;
  EMS_ASSIGN_OR_RETURN(result.info, Get(name, deadline));
  EMS_ASSIGN_OR_RETURN(const Manifest manifest, impl_->ManifestOf(result.info.id, deadline));
  if (manifest.source.first_read == FirstRead::kOnce)
    result.unprotected_files = UnprotectedFiles(manifest);
  EMS_ASSIGN_OR_RETURN(const auto digests,
                       impl_->AllDigests(result.info.id, manifest.blocks.size(), deadline));
  EMS_ASSIGN_OR_RETURN(const std::shared_ptr<Client> pool,
                       impl_->PoolOf(manifest.name_space, deadline));
  const auto count = [](uint64_t bytes, uint64_t* sum, uint64_t* blocks) {
    *sum += bytes;
    ++*blocks;
  };
  EMS_ASSIGN_OR_RETURN(const std::set<BlockDigest> others,
                       impl_->DigestsOfOthers(result.info, deadline));
  std::vector<uint32_t> known;
  for (uint32_t i = 0; i < digests.size(); ++i) {
    const uint64_t bytes = manifest.blocks[i].bytes;
    if (digests[i])
      known.push_back(i);
    else
      count(bytes, &result.absent_bytes, &result.absent_blocks);
    if (digests[i] && others.contains(*digests[i]))
      count(bytes, &result.shared_bytes, &result.shared_blocks);
  }
  for (size_t first = 0; first < known.size(); first += kStatBatch) {
    if (deadline.Passed())
      return Error(StatusCode::kDeadlineExceeded, "the time passed while servers were asked");
    const size_t size = std::min(kStatBatch, known.size() - first);
    std::vector<std::string> keys(size);
    std::vector<KeyItem> items(size);
    for (size_t i = 0; i < size; ++i) {
      keys[i] = BlockKey(*digests[known[first + i]]);
      items[i] = {.key = keys[i], .route_key = RouteKey(manifest.blocks[known[first + i]].route)};
    }
    const Duration timeout =
        std::clamp<Duration>(deadline.Remaining(), std::chrono::milliseconds(1), kStatTimeout);
    const auto stats = pool->MultiStat(items, {.touch = false, .timeout = timeout});
    for (size_t i = 0; i < size; ++i) {
      const uint64_t bytes = manifest.blocks[known[first + i]].bytes;
      if (stats[i].status().code() == StatusCode::kNotFound) {
        count(bytes, &result.absent_bytes, &result.absent_blocks);
      } else if (!stats[i].ok()) {
        count(bytes, &result.unreachable_bytes, &result.unreachable_blocks);
      } else if (stats[i]->tier == Tier::kSsd) {
        count(bytes, &result.ssd_bytes, &result.ssd_blocks);
      } else {
        count(bytes, &result.dram_bytes, &result.dram_blocks);
      }
    }
  }
  return result;
}

Result<ModelInfo> ModelCache::Prefetch(const ModelName& name, uint32_t priority, Deadline deadline,
                                       Duration job_timeout) {
  EMS_ASSIGN_OR_RETURN(const v1::ModelRef ref, RefOf(name));
  v1::ModelStatus status;
  // Asked twice, it is one job.
  EMS_RETURN_IF_ERROR(impl_->Patiently(deadline, [&] {
    return impl_->models.Prefetch(ref, priority, &status, deadline, job_timeout);
  }));
  return FromProto(status);
}

Result<PrefetchProgress> ModelCache::Progress(const ModelName& name, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(ModelInfo info, Get(name, deadline));
  return impl_->Measure(std::move(info));
}

Result<PrefetchProgress> ModelCache::WaitPrefetched(
    const ModelName& name, Deadline deadline,
    const std::function<void(const PrefetchProgress&)>& on_progress, StopFlag* stop) {
  EMS_ASSIGN_OR_RETURN(PrefetchProgress progress,
                       impl_->Patiently(deadline, [&] { return Progress(name, deadline); }));
  const uint32_t id = progress.info.id;
  const std::string text = progress.info.name.Text();
  if (progress.info.job.state == JobState::kNone)
    return Error(StatusCode::kFailedPrecondition, "{} has never been prefetched", text);
  uint64_t number = 0;
  TimePoint heard = Clock::System().Now();
  while (progress.info.job.state == JobState::kRunning) {
    if (on_progress) on_progress(progress);
    if (stop != nullptr && stop->IsSet())
      return Error(StatusCode::kCancelled, "{} is not waited for any more", text);
    if (deadline.Passed()) {
      return Error(
          StatusCode::kDeadlineExceeded, "{}: {} of {} after {} s; the job continues, from {}",
          text, FormatBytes(progress.info.job.bytes_done), FormatBytes(progress.info.bytes),
          std::chrono::duration_cast<std::chrono::seconds>(progress.info.job.elapsed).count(),
          progress.info.source.url);
    }
    v1::ListModelsReply reply;
    const Duration wait = std::min(kProgressWait, deadline.Remaining());
    const Deadline until(std::min(deadline.at(), Deadline::After(wait + kStatTimeout).at()));
    const Status listed = impl_->models.List(number, wait, &reply, until);
    if (!listed.ok()) {
      // A controller that restarts goes on with the job.
      if (Clock::System().Now() - heard > kOutageWait) return listed;
      StopFlag nobody;
      (void)nobody.WaitFor(wait);
      continue;
    }
    heard = Clock::System().Now();
    number = reply.number();
    const auto found = std::ranges::find_if(
        reply.models(), [&](const v1::ModelStatus& status) { return status.ref().id() == id; });
    if (found == reply.models().end())
      return Error(StatusCode::kNotFound, "{} has been removed", text);
    progress = impl_->Measure(FromProto(*found));
  }
  if (on_progress) on_progress(progress);
  if (progress.info.job.state == JobState::kDone) return progress;
  if (progress.info.job.state == JobState::kFailed && !progress.info.job.error.ok())
    return Prefixed(progress.info.job.error, text);
  return Error(StatusCode::kCancelled, "the prefetch of {} has been cancelled", text);
}

Result<ModelInfo> ModelCache::Cancel(const ModelName& name, Deadline deadline) {
  return impl_->Ask(&ModelsClient::CancelPrefetch, name, deadline);
}

Result<ModelInfo> ModelCache::Pin(const ModelName& name, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const v1::ModelRef ref, RefOf(name));
  v1::ModelStatus status;
  EMS_RETURN_IF_ERROR(impl_->models.Pin(ref, true, &status, deadline));
  return FromProto(status);
}

Result<ModelInfo> ModelCache::Unpin(const ModelName& name, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const v1::ModelRef ref, RefOf(name));
  v1::ModelStatus status;
  EMS_RETURN_IF_ERROR(impl_->models.Pin(ref, false, &status, deadline));
  return FromProto(status);
}

Status ModelCache::Remove(const ModelName& name, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const v1::ModelRef ref, RefOf(name));
  return impl_->models.Remove(ref, deadline);
}

struct OpenModel::Impl {
  // `opened_manifest` is as FromProto has checked it.
  Impl(ModelCache::Impl* cache, ModelInfo opened, Manifest opened_manifest,
       const LoadOptions& options, Deadline deadline)
      : info(std::move(opened)),
        manifest(std::move(opened_manifest)),
        pool(cache->Patiently(deadline,
                              [&] { return cache->PoolOf(manifest.name_space, deadline); })),
        catalog(&cache->models, info.id),
        loader({.manifest = &manifest,
                .pool = &pool,
                .catalog = &catalog,
                .open_source =
                    [this, cache](std::shared_ptr<StopFlag> stop) {
                      return cache->Open(manifest.source, {}, std::move(stop));
                    }},
               options) {}

  const ModelInfo info;
  const Manifest manifest;
  ClientPool pool;
  ControllerCatalog catalog;
  ModelLoader loader;
};

OpenModel::OpenModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

OpenModel::~OpenModel() = default;

const ModelInfo& OpenModel::info() const { return impl_->info; }

const Manifest& OpenModel::manifest() const { return impl_->manifest; }

Result<LoadStats> OpenModel::Load(LoadTarget* target, Deadline deadline) {
  Result<LoadStats> stats = impl_->loader.Load(target, deadline);
  if (!stats.ok()) return Prefixed(stats.status(), impl_->info.name.Text());
  return stats;
}

Result<std::unique_ptr<OpenModel>> ModelCache::Open(const ModelName& name,
                                                    const LoadOptions& options, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(ModelInfo info, impl_->Patiently(deadline, [&] {
    return impl_->Ask(&ModelsClient::Use, name, deadline);
  }));
  EMS_ASSIGN_OR_RETURN(Manifest manifest, impl_->Patiently(deadline, [&] {
    return impl_->ManifestOf(info.id, deadline);
  }));
  return std::unique_ptr<OpenModel>(new OpenModel(std::make_unique<OpenModel::Impl>(
      impl_.get(), std::move(info), std::move(manifest), options, deadline)));
}

Result<LoadStats> ModelCache::Load(const ModelName& name, LoadTarget* target,
                                   const LoadOptions& options, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<OpenModel> model, Open(name, options, deadline));
  return model->Load(target, deadline);
}

}  // namespace ems::model
