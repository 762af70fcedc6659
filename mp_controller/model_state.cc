#include "mp_controller/model_state.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "common/logging.h"
#include "mp_controller/file_checks.h"
#include "mp_controller/model_rows.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using model::FirstRead;
using model::Manifest;

constexpr uint32_t kDigestsMax = 16'384;  // in a report or a reply
constexpr size_t kPartsMax = 10'000;

uint64_t Ms(Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()));
}

Status IsThere(const Manifest& asked, std::string_view how) {
  return Error(StatusCode::kAlreadyExists,
               "version {} of {} is there {}: add another version, or remove that one",
               asked.version, asked.model, how);
}

// That both are of the same bytes, with the same sums, in the same blocks.
Status CheckSame(const Manifest& there, const Manifest& asked) {
  if (there.files != asked.files) {
    std::vector<model::ManifestFile> files = asked.files;
    for (size_t i = 0; i < std::min(files.size(), there.files.size()); ++i)
      files[i].sum = there.files[i].sum;
    if (files != there.files) return IsThere(asked, "with other files");
    return IsThere(asked, "with other sums of the same files, as with or without --ignore-etags");
  }
  if (there.blocks == asked.blocks) return OkStatus();
  return IsThere(asked, fmt::format("with the same files, cut into other blocks, of {} at most",
                                    FormatBytes(there.block_bytes)));
}

}  // namespace

struct ModelState::Model {
  uint32_t id = 0;
  Manifest manifest;
  bool pinned = false;
  bool untouched = false;  // since it was added, by this controller: nobody has read its source
  // In the order in which they became known, and by block.
  std::vector<uint32_t> known;
  std::vector<std::optional<BlockDigest>> digests;
  std::vector<size_t> digest_rows;  // how many were known when each of them was written
  PullJob job;
  TimePoint added{}, used{};
  std::optional<FileChecks> checks;

  // A known digest that differs is refused. True when it is new.
  Result<bool> Learn(uint32_t block, const BlockDigest& digest) {
    if (block >= digests.size()) {
      return Error(StatusCode::kInvalidArgument, "block {} of {}", block, digests.size());
    }
    if (!digests[block]) {
      digests[block] = digest;
      known.push_back(block);
      return true;
    }
    if (*digests[block] == digest) return false;
    const model::ManifestBlock& at = manifest.blocks[block];
    return Error(StatusCode::kFailedPrecondition,
                 "the source has changed: bytes {}+{} of {} are not those read before; add it as "
                 "another version",
                 at.offset, at.bytes, manifest.files[at.file].path);
  }
};

ModelState::ModelState(const Parts& parts, Duration unused_max)
    : parts_(parts), unused_max_(unused_max) {}

ModelState::~ModelState() = default;

Status ModelState::Start() {
  // Never one that an earlier controller has given to a list.
  number_ = static_cast<uint64_t>(parts_.clock->Now().time_since_epoch().count()) + 1;
  started_ = check_number_ = number_;
  EMS_RETURN_IF_ERROR(parts_.rows->ForEach(
      [this](std::string_view key, std::string_view value) { return TakeRow(key, value); }));
  for (const auto& [id, model] : models_) {
    if (model->manifest.files.empty())
      return parts_.rows->Damaged(fmt::format("model {} has no manifest", id));
    blocks_ += model->manifest.blocks.size();
    model->checks.emplace(id, model->manifest, started_);
    for (const uint32_t block : model->known)
      model->checks->Known(model->manifest.blocks[block].file, check_number_);
  }
  if (!models_.empty()) EMS_LOG(kInfo, "mp_controller", "models versions={}", models_.size());
  return OkStatus();
}

Status ModelState::TakeRow(std::string_view key, std::string_view value) {
  const auto at = [this](uint32_t id) -> Model& {
    auto& model = models_[id];
    if (model == nullptr) {
      model = std::make_unique<Model>();
      model->id = id;
      model->added = model->used = parts_.clock->Now();
    }
    return *model;
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
    EMS_ASSIGN_OR_RETURN(at(id).manifest, model::FromProto(proto));
    at(id).digests.resize(at(id).manifest.blocks.size());
  } else if (key.starts_with(kModelPrefix)) {
    EMS_ASSIGN_OR_RETURN(const uint32_t id, ParseModelId(key.substr(kModelPrefix.size())));
    v1::ModelStatus row;
    EMS_RETURN_IF_ERROR(parse(&row));
    Model& model = at(id);
    model.pinned = row.pinned();
    model.job.Restore(row.job());
    model.job.began = model.job.ended = parts_.clock->Now();
  } else if (key.starts_with(kDigestPrefix)) {
    EMS_ASSIGN_OR_RETURN(const DigestRowName name,
                         ParseDigestRowName(key.substr(kDigestPrefix.size())));
    at(name.id).digest_rows.push_back(name.first);
    return ForEachDigest(value, [&](uint32_t block, const BlockDigest& digest) {
      return at(name.id).Learn(block, digest).status();
    });
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
    return Error(StatusCode::kNotFound, "no model {}: emsctl model ls shows those there are",
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

void ModelState::FillJob(const Model& model, v1::PullJob* out) const {
  model.job.Fill(parts_.publisher->view().get(), parts_.clock->Now(), model.manifest.blocks.size(),
                 model.manifest.bytes(), out);
  out->set_checked_bytes(model.checks->checked_bytes());
}

void ModelState::Fill(const Model& model, v1::ModelStatus* out) const {
  const Manifest& manifest = model.manifest;
  const TimePoint now = parts_.clock->Now();
  out->mutable_ref()->set_id(model.id);
  out->mutable_ref()->set_model(manifest.model);
  out->mutable_ref()->set_version(manifest.version);
  out->set_name_space(manifest.name_space);
  model::ToProto(manifest.source, out->mutable_source());
  out->set_bytes(manifest.bytes());
  out->set_files(static_cast<uint32_t>(manifest.files.size()));
  out->set_blocks(static_cast<uint32_t>(manifest.blocks.size()));
  out->set_blocks_known(static_cast<uint32_t>(model.known.size()));
  out->set_pinned(model.pinned);
  out->set_age_ms(Ms(now - model.added));
  out->set_unused_ms(Ms(now - model.used));
  FillJob(model, out->mutable_job());
}

Status ModelState::Save(const Model& model, const PullJob& job, bool pinned) {
  v1::ModelStatus row;
  row.set_pinned(pinned);
  job.Save(row.mutable_job());
  return parts_.rows->Write(
      {.put = {{ModelKey(kModelPrefix, model.id), row.SerializeAsString()}}, .drop = {}});
}

// A version that is there stays as it is, but for how it is first read. That may be changed as long
// as nobody can have read anything, by who asks for the same in all else (what protects one source
// need not protect the other, and who is refused for its rate has changed nothing); and it is
// lowered only by who asks for that by name: a default takes away no protection.
Status ModelState::AddAgain(Model* model, const Manifest& asked, bool may_lower,
                            v1::ModelStatus* reply) {
  const Manifest& there = model->manifest;
  EMS_RETURN_IF_ERROR(CheckSame(there, asked));
  const FirstRead was = there.source.first_read, is = asked.source.first_read;
  if (is == was || (is < was && !may_lower)) return OkStatus();
  Manifest changed = there;
  changed.source.first_read = is;
  const bool same = changed.source == asked.source && there.name_space == asked.name_space;
  if (same && model->untouched) {
    v1::ModelManifest row;
    model::ToProto(changed, &row);
    EMS_RETURN_IF_ERROR(parts_.rows->Write(
        {.put = {{ModelKey(kManifestPrefix, model->id), row.SerializeAsString()}}, .drop = {}}));
    model->manifest.source.first_read = is;
    reply->set_first_read_before(static_cast<v1::FirstRead>(was));
    Changed();
  } else if (was == FirstRead::kOnce && is == FirstRead::kTwice) {
    return IsThere(asked, model->untouched
                              ? "unverified, with another URL, credentials, rate or namespace"
                              : "unverified, and may have been read");
  }
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
                 "{} versions with {} blocks are there: {} and {} are the most; remove some, or "
                 "cut larger blocks",
                 models_.size(), blocks_, kModelsMax, kModelBlocksMax);
  }
  auto model = std::make_unique<Model>();
  model->id = next_id_;
  model->digests.resize(manifest.blocks.size());
  model->manifest = std::move(manifest);
  model->checks.emplace(model->id, model->manifest, started_);
  model->added = model->used = parts_.clock->Now();
  model->untouched = true;
  v1::ModelStatus row;
  EMS_RETURN_IF_ERROR(parts_.rows->Write(
      {.put = {{ModelKey(kManifestPrefix, model->id), request.manifest().SerializeAsString()},
               {ModelKey(kModelPrefix, model->id), row.SerializeAsString()},
               {std::string(kNextIdKey), fmt::format("{:x}", next_id_ + 1)}},
       .drop = {}}));
  ++next_id_;
  blocks_ += model->manifest.blocks.size();
  EMS_LOG(kInfo, "mp_controller", "model added model={} version={} id={} bytes={} blocks={}",
          model->manifest.model, model->manifest.version, model->id, model->manifest.bytes(),
          model->manifest.blocks.size());
  Fill(*model, reply);
  models_[model->id] = std::move(model);
  Changed();
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
  EMS_ASSIGN_OR_RETURN(Model * model, Touch(request.ref()));
  PullJob job;
  if (model->job.running()) {
    job = model->job;
    job.priority = std::max(job.priority, request.priority());
  } else {
    job.number = model->job.number + 1;
    job.state = v1::PULL_RUNNING;
    job.priority = request.priority();
    job.began = parts_.clock->Now();
    check_number_ += model->checks->Again(check_number_ + 1) ? 1 : 0;
  }
  if (job.number != model->job.number || job.priority != model->job.priority) {
    EMS_RETURN_IF_ERROR(Save(*model, job, model->pinned));
    model->job = std::move(job);
    Changed();
    EMS_LOG(kInfo, "mp_controller", "prefetch model={} version={} job={} priority={}",
            model->manifest.model, model->manifest.version, model->job.number, model->job.priority);
  }
  model->used = parts_.clock->Now();
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::EndJob(Model* model, int state, const Status& why) {
  PullJob job = model->job;
  job.state = state;
  job.why = why;
  job.ended = parts_.clock->Now();
  EMS_RETURN_IF_ERROR(Save(*model, job, model->pinned));
  model->job = std::move(job);
  Changed();
  v1::PullJob said;
  FillJob(*model, &said);
  const std::string_view end = state == v1::PULL_DONE     ? "done"
                               : state == v1::PULL_FAILED ? "failed"
                                                          : "cancelled";
  EMS_LOG(kInfo, "mp_controller",
          "prefetch {} model={} version={} job={} ms={} bytes={} from_source={}", end,
          model->manifest.model, model->manifest.version, said.number(), said.elapsed_ms(),
          said.bytes_done(), said.source_bytes());
  if (!why.ok()) {
    EMS_LOG(kWarn, "mp_controller", "prefetch of {} {} failed: {}", model->manifest.model,
            model->manifest.version, Message(why));
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
    EMS_RETURN_IF_ERROR(Save(*model, model->job, request.pinned()));
    model->pinned = request.pinned();
    Changed();
  }
  model->used = parts_.clock->Now();
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::UseModel(const v1::ModelRef& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(Model * model, Touch(request));
  model->used = parts_.clock->Now();
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::Drop(Model* model, std::string_view why) {
  RowChange change;
  change.drop = {ModelKey(kModelPrefix, model->id), ModelKey(kManifestPrefix, model->id)};
  for (const size_t first : model->digest_rows) change.drop.push_back(DigestKey(model->id, first));
  EMS_RETURN_IF_ERROR(parts_.rows->Write(change));
  EMS_LOG(kInfo, "mp_controller", "model removed model={} version={} id={} reason=\"{}\"",
          model->manifest.model, model->manifest.version, model->id, why);
  blocks_ -= model->manifest.blocks.size();
  models_.erase(model->id);
  Changed();
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
  if (count * sizeof(BlockDigest) != request.digests().size() || count > kDigestsMax) {
    return Error(StatusCode::kInvalidArgument, "{} blocks with {} bytes of digests: {} at most",
                 count, request.digests().size(), kDigestsMax);
  }
  const size_t first = model->known.size();
  std::string row;
  Status refused;
  for (size_t i = 0; i < count; ++i) {  // one that is refused says nothing of the others
    const uint32_t block = request.blocks(static_cast<int>(i));
    BlockDigest digest;
    std::memcpy(digest.data(), request.digests().data() + i * sizeof(digest), sizeof(digest));
    if (block < model->digests.size() && model->checks->Pending(model->manifest.blocks[block].file))
      continue;
    const Result<bool> learned = model->Learn(block, digest);
    if (refused.ok()) refused = learned.status();
    if (!learned.ok() || !*learned) continue;
    AppendDigest(block, digest, &row);
  }
  if (row.empty()) return refused;
  const Status written =
      parts_.rows->Write({.put = {{DigestKey(model->id, first), row}}, .drop = {}});
  if (written.ok()) {
    model->digest_rows.push_back(first);
    return refused;
  }
  while (model->known.size() > first) {  // it has not happened
    model->digests[model->known.back()].reset();
    model->known.pop_back();
  }
  return written;
}

// Its digests, for everybody from now on; all at once, in rows as TakeDigests writes them.
Status ModelState::TakeCheckedFile(Model* model, uint32_t file) {
  const std::vector<BlockDigest>& digests = model->checks->digests(file);
  const uint32_t first_block = model->checks->first_block(file);
  RowChange change;
  std::vector<size_t> rows;
  for (size_t at = 0; at < digests.size(); at += kDigestsMax) {
    std::string row;
    for (size_t i = at; i < std::min<size_t>(at + kDigestsMax, digests.size()); ++i) {
      AppendDigest(static_cast<uint32_t>(first_block + i), digests[i], &row);
    }
    rows.push_back(model->known.size() + at);
    change.put.emplace_back(DigestKey(model->id, rows.back()), std::move(row));
  }
  EMS_RETURN_IF_ERROR(parts_.rows->Write(change));
  model->digest_rows.insert(model->digest_rows.end(), rows.begin(), rows.end());
  for (size_t i = 0; i < digests.size(); ++i)
    (void)model->Learn(static_cast<uint32_t>(first_block + i), digests[i]);  // none is known yet
  model->checks->Known(file, check_number_);
  EMS_LOG(kInfo, "mp_controller", "checked model={} version={} file={}", model->manifest.model,
          model->manifest.version, model->manifest.files[file].path);
  return OkStatus();
}

Status ModelState::ReportCheck(const v1::ReportCheckRequest& request, v1::FileCheck* reply) {
  const auto it = models_.find(request.model_id());
  if (it == models_.end()) return Error(StatusCode::kNotFound, "the version has been removed");
  Model* const model = it->second.get();
  EMS_ASSIGN_OR_RETURN(const FileChecks::Step step,
                       model->checks->Take(request, ++check_number_, parts_.clock->Now()));
  if (step.finished) EMS_RETURN_IF_ERROR(TakeCheckedFile(model, step.file));
  JudgeJob(model);
  return model->checks->Fill(request.file(), reply);
}

Status ModelState::FollowChecks(const v1::FollowChecksRequest& request,
                                v1::FollowChecksReply* reply, bool* news) {
  *news = false;
  // A larger one is of a clock that has begun anew since.
  const uint64_t since = request.since() > check_number_ ? 0 : request.since();
  const bool digests = since == 0 && request.models_size() == 1;  // a bounded answer
  reply->set_number(check_number_);
  std::vector<uint32_t> ids(request.models().begin(), request.models().end());
  std::sort(ids.begin(), ids.end());
  uint64_t room = FileChecks::kReplyBytesMax;
  for (const uint32_t id : ids) {
    const auto it = models_.find(id);
    if (id < request.from_model() || it == models_.end()) continue;
    const uint32_t from = id == request.from_model() ? request.from_file() : 0;
    *news = it->second->checks->Fill(since, from, digests, &room, reply) || *news;
    if (reply->next_model() != 0) break;
  }
  *news = *news || request.from_model() != 0;  // whoever has begun does not wait
  return OkStatus();
}

void ModelState::JudgeJob(Model* model) {
  if (!model->job.running()) return;
  const Status damaged = model->checks->damaged();
  if (!damaged.ok())
    (void)EndJob(model, v1::PULL_FAILED, damaged);
  else if (EveryoneFinished(*model))
    (void)EndJob(model, v1::PULL_DONE, OkStatus());
}

bool ModelState::EveryoneFinished(const Model& model) const {
  return model.checks->all_checked() && model.job.FinishedBy(parts_.publisher->view().get());
}

Status ModelState::ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply) {
  reply->set_active(false);
  const auto it = models_.find(request.model_id());
  if (it == models_.end()) return OkStatus();
  Model* const model = it->second.get();
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
  model->job.Take(request);
  Status failed = learned;
  if (failed.ok() && request.error_code() != 0) {
    failed = Status(static_cast<StatusCode>(std::min(request.error_code(), 16U)),
                    std::string(request.error()));
  }
  if (!failed.ok()) return EndJob(model, v1::PULL_FAILED, failed);
  if (EveryoneFinished(*model)) return EndJob(model, v1::PULL_DONE, OkStatus());
  reply->set_active(true);
  return OkStatus();
}

void ModelState::Tick() {
  const TimePoint now = parts_.clock->Now();
  std::vector<Model*> stale;
  for (const auto& [id, model] : models_) {
    JudgeJob(model.get());
    if (model->pinned && !model->job.running())
      check_number_ += model->checks->Retry(check_number_ + 1, now) ? 1 : 0;
    const bool unused = unused_max_ > Duration::zero() && now - model->used > unused_max_;
    if (unused && !model->pinned && !model->job.running() &&
        Newest(model->manifest.model) != model.get())
      stale.push_back(model.get());
  }
  for (Model* model : stale) (void)Drop(model, "not used for long, and there is a newer one");
}

Status ModelState::ListModels(const v1::ListModelsRequest& request, v1::ListModelsReply* reply,
                              bool* news) {
  const bool wanted = *news;
  *news = request.since() != number_;
  if (!*news && !wanted) return OkStatus();
  reply->set_number(number_);
  reply->clear_models();
  for (const auto& [id, model] : models_) Fill(*model, reply->add_models());
  return OkStatus();
}

Status ModelState::GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply,
                              bool* news) {
  EMS_ASSIGN_OR_RETURN(const Model* model, Find(request.ref()));
  const size_t known = model->known.size();
  const size_t first = std::min<size_t>(request.since(), known);
  const size_t end = std::min<size_t>(known, first + kDigestsMax);
  *news = end > first;
  reply->Clear();
  for (size_t i = first; i < end; ++i) {
    reply->add_blocks(model->known[i]);
    reply->mutable_digests()->append(AsText(*model->digests[model->known[i]]));
  }
  reply->set_known(static_cast<uint32_t>(known));
  FillJob(*model, reply->mutable_job());
  return OkStatus();
}

}  // namespace ems::controller
