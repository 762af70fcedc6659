#include "mp_server/models/model_pull.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cluster/slot_table.h"
#include "common/check.h"
#include "model_files/source/source_url.h"
#include "proto/model.pb.h"

namespace ems::server {
namespace {

constexpr size_t kDigestsInReportMax = 16'384;

std::vector<ObjectPin> TakeAll(std::map<uint32_t, ObjectPin>* pins) {
  std::vector<ObjectPin> taken;
  for (auto& [block, pin] : *pins) taken.push_back(std::move(pin));
  pins->clear();
  return taken;
}

std::string OriginOf(const model::ManifestSource& source) {
  const auto url = model::ParseSourceUrl(source.url);
  if (!url.ok() || url->kind == model::SourceUrl::Kind::kFile) return "";
  return url->http.authority;
}

}  // namespace

ModelPull::ModelPull(uint32_t id, std::shared_ptr<const model::Manifest> manifest)
    : id_(id),
      manifest_(std::move(manifest)),
      manifest_checksum_(model::ManifestChecksum(*manifest_)),
      origin_(OriginOf(manifest_->source)),
      states_(manifest_->blocks.size(), State::kTodo),
      digests_(manifest_->blocks.size()),
      certain_(manifest_->blocks.size()) {
  for (uint32_t block = 0; block < manifest_->blocks.size(); ++block) {
    const uint32_t file = manifest_->blocks[block].file;
    if (manifest_->files[file].sum.empty()) continue;
    const auto [at, made] = checks_.try_emplace(file);
    if (made) at->second.first = block;
    at->second.end = block + 1;
    ++at->second.unverified;
  }
  unverified_ = checks_.size();
}

// Of a file without a sum, what was read first counts.
bool ModelPull::IsCertain(uint32_t block) const {
  return certain_[block] || !checks_.contains(manifest_->blocks[block].file);
}

bool ModelPull::IsOwned(uint32_t block) const { return std::ranges::binary_search(owned_, block); }

SlotId ModelPull::SlotIn(NamespaceRef ns, uint32_t block) const {
  return SlotOf(ns.id, model::RouteKey(manifest_->blocks[block].route));
}

void ModelPull::Undo(uint32_t block) {
  if (states_[block] != State::kDone) return;
  states_[block] = State::kTodo;
  const auto at = std::ranges::lower_bound(owned_, block);
  if (at == owned_.end() || *at != block) return;
  EMS_CHECK(done_ > 0, "block {} is undone, and none was done", block);
  next_ = std::min(next_, static_cast<size_t>(at - owned_.begin()));
  --done_;
  done_bytes_ -= manifest_->blocks[block].bytes;
}

std::vector<ObjectPin> ModelPull::Follow(const v1::ModelStatus& status) {
  const v1::PullJob& job = status.job();
  const bool running = job.state() == v1::PULL_RUNNING;
  if (job.number() != job_) {
    job_ = job.number();
    // What a worker is busy with counts for the new job, too.
    for (State& state : states_) state = state == State::kDone ? State::kTodo : state;
    next_ = done_ = 0;
    done_bytes_ = source_bytes_ = promoted_bytes_ = shared_bytes_ = 0;
    error_ = OkStatus();
    cannot_check_ = false;
  }
  news_ = news_ || (running && !running_);
  running_ = running;
  priority_ = job.priority();
  if (pinned_ == status.pinned()) return {};
  pinned_ = status.pinned();
  if (!pinned_) return TakeAll(&pins_);
  // What is done holds no pin yet.
  for (const uint32_t block : owned_) {
    if (states_[block] == State::kDone) states_[block] = State::kTodo;
  }
  next_ = done_ = 0;
  done_bytes_ = 0;
  error_ = OkStatus();
  cannot_check_ = false;
  return {};
}

void ModelPull::SetDigest(uint32_t block, const std::optional<model::BlockDigest>& digest) {
  if (std::exchange(digests_[block], digest) == digest) return;
  const auto at = checks_.find(manifest_->blocks[block].file);
  if (at == checks_.end() || block - at->second.first >= at->second.added.size()) return;
  BeginAnew(&at->second);
}

void ModelPull::BeginAnew(Check* check) {
  ++check->attempt;
  check->added.clear();
  check->hasher.reset();
  check->sum.clear();
  check->told = false;
}

void ModelPull::Learn(uint32_t block, const model::BlockDigest& digest) {
  if (block >= digests_.size()) return;
  if (digests_[block] && *digests_[block] != digest) Undo(block);
  SetDigest(block, digest);
  if (certain_[block]) return;
  certain_[block] = true;
  const auto at = checks_.find(manifest_->blocks[block].file);
  if (at == checks_.end() || --at->second.unverified > 0) return;
  EMS_CHECK(unverified_ > 0, "file {} is verified, and none was left", at->first);
  BeginAnew(&at->second);  // nothing is left of it
  --unverified_;
}

std::vector<ObjectPin> ModelPull::SetOwned(ViewVersion view, NamespaceRef ns,
                                           const std::bitset<kSlotCount>& owned) {
  std::vector<ObjectPin> lost;
  const bool another = ns != ns_;
  if (another) lost = TakeAll(&pins_);  // of a namespace that is gone
  view_ = view;
  ns_ = ns;
  homeless_since_.reset();
  owned_.clear();
  next_ = done_ = 0;
  done_bytes_ = 0;
  for (uint32_t block = 0; block < manifest_->blocks.size(); ++block) {
    const bool ours = owned[SlotIn(ns, block).value()];
    State& state = states_[block];
    if (another && state == State::kBusy) state = State::kLost;
    if (state == State::kDone && (another || !ours)) state = State::kTodo;
    if (ours) {
      owned_.push_back(block);
      if (state != State::kDone) continue;
      ++done_;
      done_bytes_ += manifest_->blocks[block].bytes;
      continue;
    }
    const auto pin = pins_.find(block);
    if (pin == pins_.end()) continue;
    lost.push_back(std::move(pin->second));
    pins_.erase(pin);
  }
  news_ = true;
  return lost;
}

void ModelPull::LoseSlots(const std::bitset<kSlotCount>& kept) {
  if (view_ == ViewVersion()) return;  // nothing is done
  for (const uint32_t block : owned_) {
    State& state = states_[block];
    if (state == State::kTodo || kept[SlotIn(ns_, block).value()]) continue;
    if (state == State::kDone) {
      Undo(block);
      news_ = true;
    } else {
      state = State::kLost;
    }
  }
}

bool ModelPull::LacksDigests(NamespaceRef ns, const std::bitset<kSlotCount>& owned) const {
  for (uint32_t block = 0; block < manifest_->blocks.size(); ++block) {
    const bool comes = owned[SlotIn(ns, block).value()] && (ns != ns_ || !IsOwned(block));
    if (comes && !digests_[block]) return true;
  }
  return false;
}

void ModelPull::NamesIn(const std::bitset<kSlotCount>& slots, std::vector<BlockName>* names) const {
  if (!working()) return;
  for (const uint32_t block : owned_) {
    if (digests_[block] && slots[SlotIn(ns_, block).value()])
      names->emplace_back(ns_, model::BlockKey(*digests_[block]));
  }
}

std::vector<ObjectPin> ModelPull::WithoutNamespace(TimePoint now) {
  if (!homeless_since_) homeless_since_ = now;
  view_ = ViewVersion();
  ns_ = {};
  owned_.clear();
  next_ = done_ = 0;
  done_bytes_ = 0;
  if (error_.ok() && now - *homeless_since_ >= kNamespacePatience) {
    error_ = Error(StatusCode::kNotFound,
                   "there is no namespace {} for its blocks: emsctl namespace create {} makes it",
                   manifest_->name_space, manifest_->name_space);
    news_ = true;
  }
  return TakeAll(&pins_);
}

std::optional<ModelPull::Task> ModelPull::Next() {
  if (!working() || !error_.ok()) return std::nullopt;
  while (next_ < owned_.size() && states_[owned_[next_]] != State::kTodo) ++next_;
  if (next_ == owned_.size()) return std::nullopt;
  const uint32_t block = owned_[next_++];
  states_[block] = State::kBusy;
  return Task{.model_id = id_,
              .job = job_,
              .block = block,
              .slot = SlotIn(ns_, block),
              .ns = ns_,
              .manifest = manifest_,
              .digest = digests_[block],
              .certain = IsCertain(block),
              .pin = pinned_,
              .origin = origin_};
}

ObjectPin ModelPull::Done(const Task& task, Outcome outcome) {
  const uint32_t block = task.block;
  EMS_CHECK(block < states_.size(), "block {} of {}", block, states_.size());
  const uint64_t bytes = manifest_->blocks[block].bytes;
  news_ = true;
  // It was looked for, and found, under a digest that has been dropped since.
  const bool late = task.digest && !digests_[block] && outcome.source_bytes == 0;
  if (!late && (!digests_[block] || !IsCertain(block))) {
    SetDigest(block, outcome.digest);
    learned_.push_back(block);
  }
  source_bytes_ += outcome.source_bytes;
  promoted_bytes_ += outcome.promoted_bytes;
  if (outcome.shared) shared_bytes_ += bytes;
  // A worker of a pull that was abandoned and started again meanwhile.
  const bool lost = states_[block] == State::kLost;
  if (states_[block] != State::kBusy && !lost) return std::move(outcome.pin);
  if (lost || late || !IsOwned(block) || (pinned_ && !outcome.pin) ||
      outcome.digest != *digests_[block]) {
    GiveBack(task);
    return std::move(outcome.pin);
  }
  if (pinned_) std::swap(pins_[block], outcome.pin);
  states_[block] = State::kDone;
  ++done_;
  EMS_CHECK(done_ <= owned_.size(), "{} of {} blocks are done", done_, owned_.size());
  done_bytes_ += bytes;
  retry_pause_ = kRetryFirst;
  return std::move(outcome.pin);
}

std::optional<ModelPull::CheckTask> ModelPull::NextCheck() {
  if (!working() || view_ == ViewVersion() || cannot_check_) return std::nullopt;
  for (auto& [file, check] : checks_) {
    if (check.busy || check.told || check.unverified == 0 || !IsOwned(check.first)) continue;
    CheckTask task{.model_id = id_,
                   .file = file,
                   .attempt = check.attempt,
                   .first = check.first + static_cast<uint32_t>(check.added.size()),
                   .digests = {},
                   .hasher = std::exchange(check.hasher, nullptr),
                   .sum = check.sum,
                   .manifest_checksum = manifest_checksum_,
                   .ns = ns_,
                   .manifest = manifest_};
    uint64_t bytes = 0;
    for (uint32_t block = task.first; block < check.end && digests_[block]; ++block) {
      bytes += manifest_->blocks[block].bytes;
      if (task.digests.size() == kCheckBlocksMax ||
          (bytes > kCheckBytesMax && !task.digests.empty()))
        break;
      task.digests.push_back(*digests_[block]);
    }
    if (!check.sum.empty()) {
      task.first = check.first;
      task.digests = check.added;
    } else if (task.digests.empty()) {
      std::swap(task.hasher, check.hasher);
      continue;
    }
    check.busy = true;
    return task;
  }
  return std::nullopt;
}

void ModelPull::CheckEnded(const CheckTask& task, const CheckOutcome& outcome) {
  if (task.manifest != manifest_) return;  // of an abandoned pull
  Check& check = checks_.at(task.file);
  EMS_CHECK(check.busy, "file {} is given back, and nobody had it", task.file);
  EMS_CHECK(outcome.added <= task.digests.size(), "{} blocks of {} were added", outcome.added,
            task.digests.size());
  check.busy = false;
  if (outcome.missing) {
    SetDigest(*outcome.missing, std::nullopt);
    if (IsOwned(*outcome.missing))
      Undo(*outcome.missing);
    else
      missing_.push_back(*outcome.missing);
    news_ = true;
  }
  if (check.attempt != task.attempt) return;
  check.told = outcome.told;
  if (!task.sum.empty()) {
    if (outcome.unknown) TellAgain(check.first, check.end);
    return;
  }
  for (uint32_t i = 0; i < outcome.added; ++i) {
    // They were read again meanwhile.
    if (digests_[task.first + i] != task.digests[i]) return BeginAnew(&check);
  }
  check.added.insert(check.added.end(), task.digests.begin(), task.digests.begin() + outcome.added);
  check.hasher = task.hasher;
  if (check.added.size() < check.end - check.first) return;
  EMS_CHECK(check.hasher != nullptr, "file {} is added up, and not its bytes", task.file);
  check.sum = check.hasher->Finish();
}

void ModelPull::FailCheck(const CheckTask& task, const Status& why) {
  CheckEnded(task, {});
  cannot_check_ = true;
  if (error_.ok()) error_ = why;
  news_ = true;
}

uint64_t ModelPull::AddedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [file, check] : checks_) {
    const size_t next = check.first + check.added.size();
    bytes += next == check.end ? manifest_->files[file].bytes : manifest_->blocks[next].offset;
  }
  return bytes;
}

void ModelPull::FillFollow(v1::FollowUnverifiedRequest* request) const {
  request->set_model_id(id_);
  request->set_log(log_);
  request->set_since(log_next_);
  request->set_known(known_);
}

bool ModelPull::Hear(const v1::FollowUnverifiedReply& said, std::vector<ObjectPin>* lost) {
  for (int i = 0; i < said.blocks_size(); ++i) {
    const uint32_t block = said.blocks(i);
    if (block >= digests_.size() || IsCertain(block)) continue;
    model::BlockDigest digest;
    std::memcpy(digest.data(), said.digests().data() + static_cast<size_t>(i) * digest.size(),
                digest.size());
    const bool owned = IsOwned(block);
    if (digest != model::BlockDigest{}) {
      // What this server has read itself it tells, too.
      if (!owned || states_[block] != State::kDone) SetDigest(block, digest);
      continue;
    }
    SetDigest(block, std::nullopt);
    if (owned) Undo(block);
    news_ = true;
    const auto pin = pins_.find(block);
    if (pin == pins_.end()) continue;
    lost->push_back(std::move(pin->second));
    pins_.erase(pin);
  }
  if (said.log() != log_ && log_ != 0) {
    // A controller that was restarted knows nothing of this.
    known_ = 0;
    TellAgain(0, static_cast<uint32_t>(digests_.size()));
    for (auto& [file, check] : checks_) {
      if (check.told) BeginAnew(&check);
    }
  }
  log_ = said.log();
  log_next_ = said.next();
  return said.known() > known_;
}

void ModelPull::TellAgain(uint32_t first, uint32_t end) {
  for (auto at = std::ranges::lower_bound(owned_, first); at != owned_.end() && *at < end; ++at) {
    if (states_[*at] == State::kDone && !IsCertain(*at)) learned_.push_back(*at);
  }
  std::ranges::sort(learned_);
  learned_.erase(std::unique(learned_.begin(), learned_.end()), learned_.end());
  news_ = news_ || !learned_.empty();
}

void ModelPull::LearnedUpTo(uint64_t log, uint32_t count) {
  if (log == log_) known_ = std::max(known_, count);
}

void ModelPull::GiveBack(const Task& task) {
  EMS_CHECK(task.block < states_.size(), "block {} of {}", task.block, states_.size());
  State& state = states_[task.block];
  if (state != State::kBusy && state != State::kLost) return;
  state = State::kTodo;
  const auto at = std::ranges::lower_bound(owned_, task.block);
  next_ = std::min(next_, static_cast<size_t>(at - owned_.begin()));
}

void ModelPull::Fail(const Task& task, const Status& why) {
  GiveBack(task);
  if (!IsCurrent(task) || !error_.ok()) return;
  error_ = why;
  news_ = true;
}

void ModelPull::Retry(TimePoint now) {
  if (running_ || homeless_since_ || error_.ok()) return retry_at_.reset();
  if (!retry_at_) retry_at_ = now + retry_pause_;
  if (now < *retry_at_) return;
  retry_at_.reset();
  retry_pause_ = std::min(2 * retry_pause_, kRetryMost);
  error_ = OkStatus();
  cannot_check_ = false;
}

void ModelPull::FillReport(v1::ReportPullRequest* report) {
  report->set_model_id(id_);
  report->set_manifest(manifest_checksum_);
  report->set_job(job_);
  report->set_term(view_.term());
  report->set_epoch(view_.epoch());
  report->set_finished(finished());
  report->set_blocks_done(done_);
  report->set_bytes_done(done_bytes_);
  report->set_source_bytes(source_bytes_);
  report->set_promoted_bytes(promoted_bytes_);
  report->set_shared_bytes(shared_bytes_);
  if (!error_.ok()) {
    report->set_error_code(static_cast<uint32_t>(error_.code()));
    report->set_error(std::string(Message(error_)));
  }
  report->set_checked_bytes(AddedBytes());
  report->mutable_missing()->Assign(missing_.begin(), missing_.end());
  missing_.clear();
  const size_t count = std::min(learned_.size(), kDigestsInReportMax);
  for (size_t i = 0; i < count; ++i) {
    if (!digests_[learned_[i]]) continue;  // dropped since
    report->add_blocks(learned_[i]);
    report->mutable_digests()->append(AsText(*digests_[learned_[i]]));
  }
  learned_.erase(learned_.begin(), learned_.begin() + static_cast<ptrdiff_t>(count));
  news_ = !learned_.empty();
}

void ModelPull::ReportFailed(const v1::ReportPullRequest& report) {
  learned_.insert(learned_.end(), report.blocks().begin(), report.blocks().end());
  missing_.insert(missing_.end(), report.missing().begin(), report.missing().end());
  news_ = true;
}

}  // namespace ems::server
