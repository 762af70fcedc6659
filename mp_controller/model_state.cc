#include "mp_controller/model_state.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "cluster/model_list.h"
#include "common/check.h"
#include "common/logging.h"
#include "mp_controller/models/added_again.h"
#include "mp_controller/models/model_record.h"
#include "mp_controller/models/model_rows.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using model::Manifest;

constexpr size_t kPartsMax = 10'000;

BlockDigest DigestAt(const std::string& digests, size_t index) {
  BlockDigest digest;
  std::memcpy(digest.data(), digests.data() + index * sizeof(digest), sizeof(digest));
  return digest;
}

}  // namespace

uint64_t SystemUnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

ModelState::ModelState(const Parts& parts, Duration unused_max)
    : parts_(parts), unused_max_(unused_max) {}

ModelState::~ModelState() = default;

Status ModelState::Start() {
  // Never one that an earlier controller has given to a list.
  started_ = static_cast<uint64_t>(parts_.clock->Now().time_since_epoch().count()) + 1;
  list_.Begin(started_);
  EMS_RETURN_IF_ERROR(parts_.rows->ForEach(
      [this](std::string_view key, std::string_view value) { return TakeRow(key, value); }));
  for (const auto& [id, model] : models_) {
    blocks_ += model->manifest.blocks.size();
    for (const uint32_t block : model->known.blocks())
      model->checks.Known(model->manifest.blocks[block].file);
    Changed(*model);
  }
  if (!models_.empty()) EMS_LOG(kInfo, "mp_controller", "models versions={}", models_.size());
  return OkStatus();
}

Status ModelState::TakeRow(std::string_view key, std::string_view value) {
  const auto find = [this](uint32_t id) -> Result<Model*> {
    const auto at = models_.find(id);
    if (at != models_.end()) return at->second.get();
    return parts_.rows->Damaged(fmt::format("model {} has no manifest", id));
  };
  const auto parse = [&](auto* proto) {
    if (proto->ParseFromArray(value.data(), static_cast<int>(value.size()))) return OkStatus();
    return Error(StatusCode::kDataLoss, "record {} cannot be read", Printable(key));
  };
  if (key == kNextIdKey) {
    EMS_ASSIGN_OR_RETURN(next_id_, ParseModelId(value));
  } else if (key.starts_with(kManifestPrefix)) {
    EMS_ASSIGN_OR_RETURN(const uint32_t id, ParseModelId(key.substr(kManifestPrefix.size())));
    v1::ModelManifest proto;
    EMS_RETURN_IF_ERROR(parse(&proto));
    EMS_ASSIGN_OR_RETURN(Manifest manifest, model::FromProto(proto));
    models_[id] = std::make_unique<Model>(id, std::move(manifest), started_, parts_.clock->Now());
  } else if (key.starts_with(kModelPrefix)) {
    EMS_ASSIGN_OR_RETURN(const uint32_t id, ParseModelId(key.substr(kModelPrefix.size())));
    v1::ModelStatus row;
    EMS_RETURN_IF_ERROR(parse(&row));
    EMS_ASSIGN_OR_RETURN(Model* const model, find(id));
    model->Restore(row, parts_.clock->Now(), parts_.unix_ms());
  } else if (key.starts_with(kDigestPrefix)) {
    EMS_ASSIGN_OR_RETURN(const DigestRowName name,
                         ParseDigestRowName(key.substr(kDigestPrefix.size())));
    EMS_ASSIGN_OR_RETURN(Model* const model, find(name.id));
    return model->known.Load(name.first, value);
  }
  return OkStatus();
}

Result<ModelState::Model*> ModelState::Find(const v1::ModelRef& ref) {
  if (ref.id() != 0) {
    const auto it = models_.find(ref.id());
    if (it != models_.end()) return it->second.get();
    return Error(StatusCode::kNotFound, "no model version {}: it has been removed", ref.id());
  }
  EMS_RETURN_IF_ERROR(model::CheckModelName(ref.model()));
  if (ref.version().empty()) {
    if (Model* newest = Newest(ref.model())) return newest;
    return Error(StatusCode::kNotFound, "no model {}: emsctl model list shows those there are",
                 ref.model());
  }
  EMS_RETURN_IF_ERROR(model::CheckVersionName(ref.version()));
  for (const auto& [id, model] : models_) {
    if (model->manifest.model == ref.model() && model->manifest.version == ref.version())
      return model.get();
  }
  return Error(StatusCode::kNotFound, "no version {} of model {}", ref.version(), ref.model());
}

// For what may lead to a read of its source, now or later.
Result<ModelState::Model*> ModelState::Touch(const v1::ModelRef& ref) {
  EMS_ASSIGN_OR_RETURN(Model * model, Find(ref));
  model->untouched = false;
  return model;
}

ModelState::Model* ModelState::Newest(const std::string& name) {
  Model* newest = nullptr;
  for (const auto& [id, model] : models_) {
    if (model->manifest.model == name) newest = model.get();
  }
  return newest;
}

void ModelState::Fill(const Model& model, v1::ModelStatus* out) const {
  model.Fill(parts_.publisher->view().get(), parts_.clock->Now(), out);
}

void ModelState::Changed(const Model& model) {
  v1::ModelStatus row;
  Fill(model, &row);
  list_.Put(model.id, ModelRowHash(row));
}

Status ModelState::Save(Model* model, const PullJob& job, bool pinned) {
  EMS_RETURN_IF_ERROR(
      parts_.rows->Write({.put = {{ModelKey(kModelPrefix, model->id),
                                   model->Row(job, pinned, parts_.clock->Now(), parts_.unix_ms())}},
                          .drop = {}}));
  model->use_stored = true;
  return OkStatus();
}

void ModelState::StoreUses(TimePoint now) {
  if (now < store_uses_at_) return;
  store_uses_at_ = now + Model::kStoreUsesEvery;
  RowChange change;
  const uint64_t unix_ms = parts_.unix_ms();
  for (const auto& [id, model] : models_) {
    if (model->use_stored) continue;
    change.put.emplace_back(ModelKey(kModelPrefix, id),
                            model->Row(model->job, model->pinned, now, unix_ms));
  }
  if (change.put.empty() || !parts_.rows->Write(change).ok()) return;  // with the next ones
  for (const auto& [id, model] : models_) model->use_stored = true;
}

Status ModelState::AddAgain(Model* model, const Manifest& asked, bool may_lower,
                            v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(const bool changes,
                       TakesFirstRead(model->manifest, model->untouched, asked, may_lower));
  if (!changes) return OkStatus();
  Manifest changed = model->manifest;
  changed.source.first_read = asked.source.first_read;
  v1::ModelManifest row;
  model::ToProto(changed, &row);
  EMS_RETURN_IF_ERROR(parts_.rows->Write(
      {.put = {{ModelKey(kManifestPrefix, model->id), row.SerializeAsString()}}, .drop = {}}));
  reply->set_first_read_before(static_cast<v1::FirstRead>(model->manifest.source.first_read));
  model->manifest.source.first_read = asked.source.first_read;
  Changed(*model);
  return OkStatus();
}

Status ModelState::AddModel(const v1::AddModelRequest& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(Manifest manifest, model::FromProto(request.manifest()));
  for (const auto& [id, known] : models_) {
    if (known->manifest.model != manifest.model || known->manifest.version != manifest.version)
      continue;
    EMS_RETURN_IF_ERROR(AddAgain(known.get(), manifest, request.may_lower_first_read(), reply));
    Fill(*known, reply);
    return OkStatus();
  }
  if (models_.size() >= kModelsMax || blocks_ + manifest.blocks.size() > kModelBlocksMax) {
    return Error(StatusCode::kResourceExhausted,
                 "{} versions with {} blocks are kept: {} and {} are the most; remove some, or "
                 "cut larger blocks",
                 models_.size(), blocks_, kModelsMax, kModelBlocksMax);
  }
  auto model =
      std::make_unique<Model>(next_id_, std::move(manifest), started_, parts_.clock->Now());
  model->untouched = true;
  EMS_RETURN_IF_ERROR(parts_.rows->Write(
      {.put = {{ModelKey(kManifestPrefix, model->id), request.manifest().SerializeAsString()},
               {ModelKey(kModelPrefix, model->id),
                model->Row({}, false, parts_.clock->Now(), parts_.unix_ms())},
               {std::string(kNextIdKey), fmt::format("{:x}", next_id_ + 1)}},
       .drop = {}}));
  ++next_id_;
  blocks_ += model->manifest.blocks.size();
  EMS_LOG(kInfo, "mp_controller", "model added model={} version={} id={} bytes={} blocks={}",
          model->manifest.model, model->manifest.version, model->id, model->manifest.bytes(),
          model->manifest.blocks.size());
  Tell(kModelAdded, *model, "was added");
  Fill(*model, reply);
  Changed(*model);
  const uint32_t id = model->id;
  const bool added = models_.try_emplace(id, std::move(model)).second;
  EMS_CHECK(added, "version {} occurs twice", id);
  return OkStatus();
}

Status ModelState::GetModel(const v1::ModelRef& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(const Model* model, Find(request));
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::GetManifest(const v1::ModelRef& request, v1::ModelManifest* reply) {
  EMS_ASSIGN_OR_RETURN(const Model* model, Find(request));
  model::ToProto(model->manifest, reply);
  return OkStatus();
}

Status ModelState::Prefetch(const v1::PrefetchRequest& request, v1::ModelStatus* reply) {
  if (request.priority() > kPullPriorityMax) {
    return Error(StatusCode::kInvalidArgument, "priority {}: 0 to {} are allowed",
                 request.priority(), kPullPriorityMax);
  }
  constexpr auto kMostMs =
      static_cast<uint64_t>(PullJob::kTimeoutMost / std::chrono::milliseconds(1));
  const Duration timeout =
      std::chrono::milliseconds(std::min<uint64_t>(request.timeout_ms(), kMostMs + 1));
  if (timeout != Duration(0) &&
      (timeout < PullJob::kTimeoutMin || timeout > PullJob::kTimeoutMost)) {
    return Error(StatusCode::kInvalidArgument,
                 "a job may take 1 s to 24 h, not {} ms; without a time, an hour",
                 request.timeout_ms());
  }
  EMS_ASSIGN_OR_RETURN(Model * model, Touch(request.ref()));
  const TimePoint now = parts_.clock->Now();
  PullJob job;
  bool later = true;
  if (model->job.running()) {
    job = model->job;
    job.priority = std::max(job.priority, request.priority());
    later = job.Extend(timeout, now);
  } else {
    job.Begin(model->job.number + 1, request.priority(),
              timeout == Duration(0) ? PullJob::kTimeout : timeout, now);
    model->checks.Again();
  }
  model->Use(now);
  if (later || job.priority != model->job.priority) {
    EMS_RETURN_IF_ERROR(Save(model, job, model->pinned));
    model->job = std::move(job);
    Changed(*model);
    EMS_LOG(kInfo, "mp_controller", "prefetch model={} version={} job={} priority={} seconds={}",
            model->manifest.model, model->manifest.version, model->job.number, model->job.priority,
            std::chrono::duration_cast<std::chrono::seconds>(model->job.deadline - now).count());
  }
  Fill(*model, reply);
  return OkStatus();
}

void ModelState::Tell(std::string_view kind, const Model& model, std::string_view what) const {
  AddEvent(parts_.events, {kind,
                           {},
                           model.manifest.name_space,
                           fmt::format("version {} of model {} {}", model.manifest.version,
                                       model.manifest.model, what)});
}

Status ModelState::EndJob(Model* model, int state, const Status& why, PullJob::Failures failures) {
  EMS_CHECK(model->job.running(), "job {} of version {} ends twice", model->job.number, model->id);
  PullJob job = model->job;
  job.state = state;
  job.why = why;
  job.failures = std::move(failures);
  job.ended = parts_.clock->Now();
  EMS_RETURN_IF_ERROR(Save(model, job, model->pinned));
  model->job = std::move(job);
  Changed(*model);
  v1::ModelStatus said;
  Fill(*model, &said);
  const std::string_view end = state == v1::PULL_DONE     ? "done"
                               : state == v1::PULL_FAILED ? "failed"
                                                          : "cancelled";
  EMS_LOG(kInfo, "mp_controller",
          "prefetch {} model={} version={} job={} ms={} bytes={} from_source={}", end,
          model->manifest.model, model->manifest.version, said.job().number(),
          said.job().elapsed_ms(), said.job().bytes_done(), said.job().source_bytes());
  if (!why.ok()) {
    EMS_LOG(kWarn, "mp_controller", "prefetch of {} {} failed: {}", model->manifest.model,
            model->manifest.version, Message(why));
    Tell(kModelFailed, *model, fmt::format("was not loaded: {}", Message(why)));
  } else if (state == v1::PULL_DONE) {
    Tell(kModelLoaded, *model, "is loaded");
  }
  return OkStatus();
}

Status ModelState::CancelPrefetch(const v1::ModelRef& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(Model * model, Find(request));
  if (model->job.running()) EMS_RETURN_IF_ERROR(EndJob(model, v1::PULL_CANCELLED, OkStatus()));
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::PinModel(const v1::PinModelRequest& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(Model * model, Touch(request.ref()));
  if (model->pinned != request.pinned()) {
    EMS_RETURN_IF_ERROR(Save(model, model->job, request.pinned()));
    model->pinned = request.pinned();
    Changed(*model);
  }
  model->Use(parts_.clock->Now());
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::UseModel(const v1::ModelRef& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(Model * model, Touch(request));
  model->Use(parts_.clock->Now());
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::Drop(Model* model, std::string_view why) {
  RowChange change;
  change.drop = {ModelKey(kModelPrefix, model->id), ModelKey(kManifestPrefix, model->id)};
  model->known.AppendKeys(&change.drop);
  EMS_RETURN_IF_ERROR(parts_.rows->Write(change));
  EMS_LOG(kInfo, "mp_controller", "model removed model={} version={} id={} reason=\"{}\"",
          model->manifest.model, model->manifest.version, model->id, why);
  Tell(kModelRemoved, *model, fmt::format("was removed: {}", why));
  EMS_CHECK(blocks_ >= model->manifest.blocks.size(), "{} blocks of all versions", blocks_);
  blocks_ -= model->manifest.blocks.size();
  list_.Remove(model->id);
  models_.erase(model->id);
  return OkStatus();
}

Status ModelState::RemoveModel(const v1::ModelRef& request, v1::RemoveModelReply*) {
  if (request.id() == 0 && request.version().empty()) {
    return Error(StatusCode::kInvalidArgument, "name the version that is to go");
  }
  EMS_ASSIGN_OR_RETURN(Model * model, Find(request));
  if (model->pinned) {
    return Error(StatusCode::kFailedPrecondition, "version {} of {} is pinned: unpin it first",
                 model->manifest.version, model->manifest.model);
  }
  return Drop(model, "asked for");
}

Status ModelState::TakeDigests(Model* model, const v1::ReportPullRequest& request) {
  const auto count = static_cast<size_t>(request.blocks_size());
  if (count * sizeof(BlockDigest) != request.digests().size() || count > KnownDigests::kRowMax) {
    return Error(StatusCode::kInvalidArgument, "{} blocks with {} bytes of digests: {} at most",
                 count, request.digests().size(), KnownDigests::kRowMax);
  }
  const auto pending = [model](uint32_t block) {
    return block < model->manifest.blocks.size() &&
           model->checks.Pending(model->manifest.blocks[block].file);
  };
  KnownDigests::Digests known;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t block = request.blocks(static_cast<int>(i));
    if (pending(block))
      model->checks.Tell(block, DigestAt(request.digests(), i));
    else
      known.emplace_back(block, DigestAt(request.digests(), i));
  }
  for (const uint32_t block : request.missing()) {
    if (pending(block)) model->checks.Tell(block, std::nullopt);
  }
  return model->known.Take(known, parts_.rows);
}

Status ModelState::ReportSum(const v1::ReportSumRequest& request, v1::ReportSumReply*) {
  const auto it = models_.find(request.model_id());
  if (it == models_.end()) return Error(StatusCode::kNotFound, "the version has been removed");
  Model* const model = it->second.get();
  EMS_RETURN_IF_ERROR(model->CheckManifest(request.manifest()));
  EMS_ASSIGN_OR_RETURN(const bool right, model->checks.Take(request, parts_.clock->Now()));
  if (right) {
    // Its digests, for everybody from now on; all at once.
    KnownDigests::Digests known;
    const uint32_t first = model->checks.first_block(request.file());
    for (uint32_t i = 0; i < request.digests().size() / sizeof(BlockDigest); ++i)
      known.emplace_back(first + i, DigestAt(request.digests(), i));
    EMS_RETURN_IF_ERROR(model->known.Take(known, parts_.rows));
    model->checks.Known(request.file());
    EMS_LOG(kInfo, "mp_controller", "checked model={} version={} file={}", model->manifest.model,
            model->manifest.version, model->manifest.files[request.file()].path);
  }
  (void)JudgeJob(model);
  return OkStatus();
}

Status ModelState::FollowUnverified(const v1::FollowUnverifiedRequest& request,
                                    v1::FollowUnverifiedReply* reply, bool* news) {
  const auto it = models_.find(request.model_id());
  if (it == models_.end()) return Error(StatusCode::kNotFound, "the version has been removed");
  const Model& model = *it->second;
  reply->Clear();
  reply->set_known(static_cast<uint32_t>(model.known.count()));
  *news = model.checks.Fill(request, reply) || reply->known() != request.known();
  return OkStatus();
}

Status ModelState::JudgeJob(Model* model) {
  if (!model->job.running()) return OkStatus();
  if (const Status damaged = model->checks.damaged(); !damaged.ok())
    return EndJob(model, v1::PULL_FAILED, damaged);
  auto end = model->job.Judge(parts_.publisher->view().get(), model->checks.all_checked(),
                              parts_.clock->Now());
  if (!end) return OkStatus();
  return EndJob(model, end->state, end->why, std::move(end->failures));
}

Status ModelState::ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply) {
  reply->set_active(false);
  const auto it = models_.find(request.model_id());
  if (it == models_.end()) return OkStatus();
  Model* const model = it->second.get();
  EMS_RETURN_IF_ERROR(model->CheckManifest(request.manifest()));
  // Also of a job that is over, or another one: the bytes were read.
  const Status learned = TakeDigests(model, request);
  if (learned.code() == StatusCode::kUnavailable) return learned;
  if (!model->job.running() || model->job.number != request.job()) return learned;
  if (model->job.parts.size() >= kPartsMax && !model->job.parts.contains(request.boot_id()))
    return Error(StatusCode::kResourceExhausted, "{} servers have worked for this job", kPartsMax);
  // Other bytes than another server has read, which may have been damaged on their way: the server
  // learns what is known, and reads again. It has not finished, whatever it says.
  if (learned.code() == StatusCode::kFailedPrecondition && request.error_code() == 0)
    return learned;
  model->job.Take(request, learned, parts_.clock->Now());
  EMS_RETURN_IF_ERROR(JudgeJob(model));
  reply->set_active(model->job.running());
  return OkStatus();
}

void ModelState::Tick() {
  const TimePoint now = parts_.clock->Now();
  std::vector<Model*> stale;
  for (const auto& [id, model] : models_) {
    (void)JudgeJob(model.get());
    if (model->pinned && !model->job.running()) model->checks.Retry(now);
    const bool unused = unused_max_ > Duration::zero() && now - model->used > unused_max_;
    if (unused && !model->pinned && !model->job.running() &&
        Newest(model->manifest.model) != model.get())
      stale.push_back(model.get());
  }
  StoreUses(now);
  for (Model* model : stale) (void)Drop(model, "not used for long, and there is a newer one");
}

Status ModelState::ListModels(const v1::ListModelsRequest& request, v1::ListModelsReply* reply,
                              bool* news) {
  const bool wanted = *news;
  *news = request.since() != list_.number();
  if (!*news && !wanted) return OkStatus();
  reply->Clear();
  reply->set_number(list_.number());
  reply->set_versions(static_cast<uint32_t>(list_.rows()));
  reply->set_checksum(list_.checksum());
  ChangeLog::Changes changes{.whole = true, .changed = {}, .removed = {}};
  if (request.by_change()) changes = list_.After(request.since());
  reply->set_changes(!changes.whole);
  if (changes.whole) {
    for (const auto& [id, model] : models_) Fill(*model, reply->add_models());
    return OkStatus();
  }
  for (const uint32_t id : changes.changed) {
    const auto model = models_.find(id);
    EMS_CHECK(model != models_.end(), "version {} is in the list and nowhere else", id);
    Fill(*model->second, reply->add_models());
  }
  for (const uint32_t id : changes.removed) reply->add_removed(id);
  return OkStatus();
}

Status ModelState::GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply,
                              bool* news) {
  EMS_ASSIGN_OR_RETURN(const Model* model, Find(request.ref()));
  reply->Clear();
  *news = model->known.Fill(request.since(), reply);
  model->FillJob(parts_.publisher->view().get(), parts_.clock->Now(), reply->mutable_job());
  return OkStatus();
}

}  // namespace ems::controller
