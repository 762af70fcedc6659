#include "mp_controller/model_state.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "common/logging.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using model::Manifest;

constexpr std::string_view kNextIdKey = "meta/next_model_id";
constexpr std::string_view kModelPrefix = "model/";          // id → pin and job
constexpr std::string_view kManifestPrefix = "manifest/";    // id → manifest
constexpr std::string_view kDigestPrefix = "model_digest/";  // id/first → blocks, digests
constexpr size_t kDigestRowBytes = sizeof(uint32_t) + sizeof(BlockDigest);
constexpr uint32_t kDigestsMax = 16'384;  // in a report or a reply
constexpr size_t kPartsMax = 10'000;

std::string Key(std::string_view prefix, uint32_t id) {
  return fmt::format("{}{:08x}", prefix, id);
}

std::string DigestKey(uint32_t id, size_t first) {
  return fmt::format("{}{:08x}/{:08x}", kDigestPrefix, id, first);
}

Result<uint32_t> ParseHex(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return value;
  return Error(StatusCode::kDataLoss, "\"{}\" is no number", Printable(text));
}

uint64_t Ms(Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()));
}

}  // namespace

struct ModelState::Job {
  // What one server says.
  struct Part {
    uint64_t view = 0;  // packed
    bool finished = false;
    uint64_t blocks_done = 0, bytes_done = 0;
    uint64_t source_bytes = 0, promoted_bytes = 0, shared_bytes = 0;
  };
  uint64_t number = 0;
  int state = v1::PULL_NONE;
  uint32_t priority = 0;
  Status why;
  TimePoint began{}, ended{};
  std::map<uint64_t, Part> parts;  // by boot id: a server that was restarted counts anew

  bool running() const { return state == v1::PULL_RUNNING; }
};

struct ModelState::Model {
  uint32_t id = 0;
  Manifest manifest;
  bool pinned = false;
  // In the order in which they became known, and by block.
  std::vector<uint32_t> known;
  std::vector<std::optional<BlockDigest>> digests;
  std::vector<size_t> digest_rows;  // how many were known when each of them was written
  Job job;
  TimePoint added{}, used{};

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
  EMS_RETURN_IF_ERROR(parts_.rows->ForEach(
      [this](std::string_view key, std::string_view value) { return TakeRow(key, value); }));
  for (const auto& [id, model] : models_) {
    if (model->manifest.files.empty())
      return parts_.rows->Damaged(fmt::format("model {} has no manifest", id));
    blocks_ += model->manifest.blocks.size();
  }
  if (!models_.empty()) EMS_LOG(kInfo, "mp_controller", "models versions={}", models_.size());
  return OkStatus();
}

// In the order of keys: a version's manifest, then its row, then its digests.
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
    EMS_ASSIGN_OR_RETURN(next_id_, ParseHex(value));
  } else if (key.starts_with(kManifestPrefix)) {
    EMS_ASSIGN_OR_RETURN(const uint32_t id, ParseHex(key.substr(kManifestPrefix.size())));
    v1::ModelManifest proto;
    EMS_RETURN_IF_ERROR(parse(&proto));
    EMS_ASSIGN_OR_RETURN(at(id).manifest, model::FromProto(proto));
    at(id).digests.resize(at(id).manifest.blocks.size());
  } else if (key.starts_with(kModelPrefix)) {
    EMS_ASSIGN_OR_RETURN(const uint32_t id, ParseHex(key.substr(kModelPrefix.size())));
    v1::ModelStatus row;
    EMS_RETURN_IF_ERROR(parse(&row));
    Model& model = at(id);
    model.pinned = row.pinned();
    model.job.number = row.job().number();
    model.job.state = row.job().state();
    model.job.priority = row.job().priority();
    if (row.job().error_code() != 0) {
      model.job.why = Status(static_cast<StatusCode>(row.job().error_code()), row.job().error());
    }
    model.job.began = model.job.ended = parts_.clock->Now();
  } else if (key.starts_with(kDigestPrefix)) {
    key.remove_prefix(kDigestPrefix.size());
    EMS_ASSIGN_OR_RETURN(const uint32_t id, ParseHex(key.substr(0, 8)));
    // A key that is too short has no number here, which ParseHex says.
    EMS_ASSIGN_OR_RETURN(const uint32_t first,
                         ParseHex(key.substr(std::min<size_t>(9, key.size()))));
    at(id).digest_rows.push_back(first);
    for (; value.size() >= kDigestRowBytes; value.remove_prefix(kDigestRowBytes)) {
      uint32_t block = 0;
      BlockDigest digest;
      std::memcpy(&block, value.data(), sizeof(block));
      std::memcpy(digest.data(), value.data() + sizeof(block), digest.size());
      EMS_RETURN_IF_ERROR(at(id).Learn(block, digest).status());
    }
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

ModelState::Model* ModelState::Newest(const std::string& name) {
  Model* newest = nullptr;
  for (const auto& [id, model] : models_) {
    if (model->manifest.model == name) newest = model.get();
  }
  return newest;
}

void ModelState::FillJob(const Model& model, v1::PullJob* out) const {
  const Job& job = model.job;
  out->set_number(job.number);
  out->set_state(static_cast<v1::PullState>(job.state));
  out->set_priority(job.priority);
  if (!job.why.ok()) {
    out->set_error_code(static_cast<uint32_t>(job.why.code()));
    out->set_error(std::string(Message(job.why)));
  }
  const auto view = parts_.publisher->view();
  uint64_t blocks = 0, bytes = 0, source = 0, promoted = 0, shared = 0;
  for (const auto& [boot, part] : job.parts) {
    const uint64_t boot_id = boot;  // clang 14 captures no bindings
    source += part.source_bytes;
    promoted += part.promoted_bytes;
    shared += part.shared_bytes;
    // What a server that is gone had done is to be done again.
    const auto is_there = [&](const NodeInfo& node) { return node.boot_id == boot_id; };
    if (view != nullptr && job.running() && std::ranges::none_of(view->nodes(), is_there)) continue;
    blocks += part.blocks_done;
    bytes += part.bytes_done;
  }
  out->set_blocks_done(std::min<uint64_t>(blocks, model.manifest.blocks.size()));
  out->set_bytes_done(std::min(bytes, model.manifest.bytes()));
  out->set_source_bytes(source);
  out->set_promoted_bytes(promoted);
  out->set_shared_bytes(shared);
  out->set_elapsed_ms(Ms((job.running() ? parts_.clock->Now() : job.ended) - job.began));
}

void ModelState::Fill(const Model& model, v1::ModelStatus* out) const {
  const Manifest& manifest = model.manifest;
  const TimePoint now = parts_.clock->Now();
  out->mutable_ref()->set_id(model.id);
  out->mutable_ref()->set_model(manifest.model);
  out->mutable_ref()->set_version(manifest.version);
  out->set_name_space(manifest.name_space);
  out->mutable_source()->set_url(manifest.source.url);
  out->mutable_source()->set_credentials(manifest.source.credentials);
  out->mutable_source()->set_bytes_per_s_max(manifest.source.bytes_per_s_max);
  out->set_bytes(manifest.bytes());
  out->set_files(static_cast<uint32_t>(manifest.files.size()));
  out->set_blocks(static_cast<uint32_t>(manifest.blocks.size()));
  out->set_blocks_known(static_cast<uint32_t>(model.known.size()));
  out->set_pinned(model.pinned);
  out->set_age_ms(Ms(now - model.added));
  out->set_unused_ms(Ms(now - model.used));
  FillJob(model, out->mutable_job());
}

Status ModelState::Save(const Model& model, const Job& job, bool pinned) {
  v1::ModelStatus row;
  row.set_pinned(pinned);
  row.mutable_job()->set_number(job.number);
  row.mutable_job()->set_state(static_cast<v1::PullState>(job.state));
  row.mutable_job()->set_priority(job.priority);
  if (!job.why.ok()) {
    row.mutable_job()->set_error_code(static_cast<uint32_t>(job.why.code()));
    row.mutable_job()->set_error(std::string(Message(job.why)));
  }
  return parts_.rows->Write(
      {.put = {{Key(kModelPrefix, model.id), row.SerializeAsString()}}, .drop = {}});
}

Status ModelState::AddModel(const v1::AddModelRequest& request, v1::ModelStatus* reply) {
  EMS_ASSIGN_OR_RETURN(Manifest manifest, model::FromProto(request.manifest()));
  for (const auto& [id, known] : models_) {
    const Manifest& there = known->manifest;
    if (there.model != manifest.model || there.version != manifest.version) continue;
    if (there.files == manifest.files && there.blocks == manifest.blocks) {
      Fill(*known, reply);
      return OkStatus();
    }
    return Error(StatusCode::kAlreadyExists,
                 "version {} of {} is there with other files: add these as another version, or "
                 "remove that one",
                 manifest.version, manifest.model);
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
  model->added = model->used = parts_.clock->Now();
  v1::ModelStatus row;
  EMS_RETURN_IF_ERROR(parts_.rows->Write(
      {.put = {{Key(kManifestPrefix, model->id), request.manifest().SerializeAsString()},
               {Key(kModelPrefix, model->id), row.SerializeAsString()},
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
  EMS_ASSIGN_OR_RETURN(Model * model, Find(request.ref()));
  Job job;
  if (model->job.running()) {
    job = model->job;
    job.priority = std::max(job.priority, request.priority());
  } else {
    job.number = model->job.number + 1;
    job.state = v1::PULL_RUNNING;
    job.priority = request.priority();
    job.began = parts_.clock->Now();
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
  Job job = model->job;
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
  EMS_ASSIGN_OR_RETURN(Model * model, Find(request.ref()));
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
  EMS_ASSIGN_OR_RETURN(Model * model, Find(request));
  model->used = parts_.clock->Now();
  Fill(*model, reply);
  return OkStatus();
}

Status ModelState::Drop(Model* model, std::string_view why) {
  RowChange change;
  change.drop = {Key(kModelPrefix, model->id), Key(kManifestPrefix, model->id)};
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
  for (size_t i = 0; i < count && refused.ok(); ++i) {
    const uint32_t block = request.blocks(static_cast<int>(i));
    BlockDigest digest;
    std::memcpy(digest.data(), request.digests().data() + i * sizeof(digest), sizeof(digest));
    const Result<bool> learned = model->Learn(block, digest);
    refused = learned.status();
    if (!learned.ok() || !*learned) continue;
    row.append(reinterpret_cast<const char*>(&block), sizeof(block));
    row.append(AsText(digest));
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

bool ModelState::EveryoneFinished(const Model& model) const {
  const auto view = parts_.publisher->view();
  if (view == nullptr || view->nodes().empty() || view->frozen()) return false;
  return std::ranges::all_of(view->nodes(), [&](const NodeInfo& node) {
    const auto part = model.job.parts.find(node.boot_id);
    return part != model.job.parts.end() && part->second.finished &&
           part->second.view == view->version().packed();
  });
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
  Job::Part& part = model->job.parts[request.boot_id()];
  part = {.view = ViewVersion(request.term(), request.epoch()).packed(),
          .finished = request.finished(),
          .blocks_done = request.blocks_done(),
          .bytes_done = request.bytes_done(),
          .source_bytes = request.source_bytes(),
          .promoted_bytes = request.promoted_bytes(),
          .shared_bytes = request.shared_bytes()};
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
    if (model->job.running() && EveryoneFinished(*model))
      (void)EndJob(model.get(), v1::PULL_DONE, OkStatus());  // else the next tick tries again
    const bool unused = unused_max_ > Duration::zero() && now - model->used > unused_max_;
    if (unused && !model->pinned && !model->job.running() &&
        Newest(model->manifest.model) != model.get())
      stale.push_back(model.get());
  }
  for (Model* model : stale) (void)Drop(model, "not used for long, and there is a newer one");
}

Status ModelState::ListModels(const v1::ListModelsRequest& request, v1::ListModelsReply* reply,
                              bool* news) {
  *news = request.since() != number_;
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
