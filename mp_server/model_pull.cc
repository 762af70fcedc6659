#include "mp_server/model_pull.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ems_model/source/source_url.h"
#include "mp_controller/view/slot_table.h"
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

uint64_t ModelPull::CheckTask::BytesOf(uint32_t blocks) const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < blocks; ++i) bytes += manifest->blocks[first + i].bytes;
  return bytes;
}

ModelPull::ModelPull(uint32_t id, std::shared_ptr<const model::Manifest> manifest)
    : id_(id),
      manifest_(std::move(manifest)),
      origin_(OriginOf(manifest_->source)),
      states_(manifest_->blocks.size(), State::kTodo),
      digests_(manifest_->blocks.size()),
      certain_(manifest_->blocks.size()),
      stored_(manifest_->blocks.size()) {
  for (uint32_t block = 0; block < manifest_->blocks.size(); ++block) {
    const uint32_t file = manifest_->blocks[block].file;
    if (manifest_->files[file].sum.empty()) continue;
    const auto [at, made] = checks_.try_emplace(file);
    if (made) at->second.first = block;
    at->second.end = block + 1;
  }
  unchecked_ = checks_.size();
}

uint32_t ModelPull::RoundOf(uint32_t block) const {
  const auto check = checks_.find(manifest_->blocks[block].file);
  return check == checks_.end() ? 0 : check->second.reads;
}

// Of a file without a sum, what was read first counts.
bool ModelPull::IsCertain(uint32_t block) const {
  return certain_[block] || !checks_.contains(manifest_->blocks[block].file);
}

// Of a file that was given up nothing is read: by the time that it is tried again, the source may
// have other bytes.
bool ModelPull::IsDue(uint32_t block) const {
  if (states_[block] != State::kTodo) return false;
  const auto check = checks_.find(manifest_->blocks[block].file);
  return check == checks_.end() || !check->second.stopped;
}

void ModelPull::Undo(uint32_t block) {
  if (states_[block] != State::kDone) return;
  states_[block] = State::kTodo;
  const auto at = std::ranges::lower_bound(owned_, block);
  if (at == owned_.end() || *at != block) return;
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
    for (State& state : states_) state = state == State::kBusy ? State::kBusy : State::kTodo;
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

void ModelPull::Recall(const std::vector<FoundBlocks::File>& files) {
  for (const FoundBlocks::File& found : files) {
    const auto check = checks_.find(found.file);
    if (check == checks_.end()) continue;
    check->second.started = found.started;
    check->second.round = found.round;
    for (const auto& [block, digest] : found.digests) digests_[block] = digest;
  }
}

std::vector<FoundBlocks::File> ModelPull::Found() const {
  std::vector<FoundBlocks::File> files;
  for (const auto& [index, check] : checks_) {
    if (check.checked) continue;
    FoundBlocks::File file{
        .file = index, .started = check.started, .round = check.round, .digests = {}};
    for (uint32_t block = check.first; block < check.end; ++block) {
      if (digests_[block]) file.digests.emplace_back(block, *digests_[block]);
    }
    if (!file.digests.empty()) files.push_back(std::move(file));
  }
  return files;
}

void ModelPull::Learn(uint32_t block, const model::BlockDigest& digest) {
  if (block >= digests_.size()) return;
  const std::optional<model::BlockDigest> before = std::exchange(digests_[block], digest);
  certain_[block] = true;
  const bool other = before && *before != digest;
  if (other && stored_[block]) Suspect(block, *before);
  stored_[block] = stored_[block] && !other;
  if (const auto at = suspects_.find(block); at != suspects_.end()) {
    const std::vector<model::BlockDigest> suspects = std::move(at->second);
    suspects_.erase(at);
    for (const model::BlockDigest& suspect : suspects) Suspect(block, suspect);
  }
  if (other) Undo(block);
}

void ModelPull::Suspect(uint32_t block, const model::BlockDigest& digest) {
  if (!checks_.contains(manifest_->blocks[block].file)) return;
  if (certain_[block]) {
    if (*digests_[block] != digest) damaged_.push_back(digest);
    return;
  }
  std::vector<model::BlockDigest>& suspects = suspects_[block];
  // What was stored longest ago will have been evicted.
  if (suspects.size() == kDamagedMax) suspects.erase(suspects.begin());
  suspects.push_back(digest);
}

std::vector<model::BlockDigest> ModelPull::TakeDamaged() {
  std::vector<model::BlockDigest> damaged = std::exchange(damaged_, {});
  std::ranges::sort(damaged);
  damaged.erase(std::unique(damaged.begin(), damaged.end()), damaged.end());
  Spare(&damaged);
  return damaged;
}

void ModelPull::Spare(std::vector<model::BlockDigest>* sorted) const {
  if (sorted->empty()) return;
  std::vector<bool> used(sorted->size());
  for (const std::optional<model::BlockDigest>& digest : digests_) {
    if (!digest) continue;
    const auto at = std::ranges::lower_bound(*sorted, *digest);
    if (at != sorted->end() && *at == *digest)
      used[static_cast<size_t>(at - sorted->begin())] = true;
  }
  size_t index = 0;
  std::erase_if(*sorted, [&](const model::BlockDigest&) { return used[index++]; });
}

std::vector<ObjectPin> ModelPull::SetOwned(ViewVersion view, NamespaceRef ns,
                                           const std::bitset<kSlotCount>& owned) {
  std::vector<ObjectPin> lost;
  if (ns != ns_) lost = TakeAll(&pins_);  // of a namespace that is gone
  view_ = view;
  ns_ = ns;
  homeless_since_.reset();
  owned_.clear();
  next_ = done_ = 0;
  done_bytes_ = 0;
  for (uint32_t block = 0; block < manifest_->blocks.size(); ++block) {
    const SlotId slot = SlotOf(ns.id, model::RouteKey(manifest_->blocks[block].route));
    // Looked at again, even what was done: a server that was out of the view for a while starts
    // empty. What is still there costs a look.
    if (states_[block] == State::kDone) states_[block] = State::kTodo;
    if (owned[slot.value()]) {
      owned_.push_back(block);
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

void ModelPull::NamesIn(const std::bitset<kSlotCount>& slots, std::vector<BlockName>* names) const {
  if (!working()) return;
  for (const uint32_t block : owned_) {
    const SlotId slot = SlotOf(ns_.id, model::RouteKey(manifest_->blocks[block].route));
    if (digests_[block] && slots[slot.value()])
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
  while (next_ < owned_.size() && !IsDue(owned_[next_])) ++next_;
  if (next_ == owned_.size()) return std::nullopt;
  const uint32_t block = owned_[next_++];
  states_[block] = State::kBusy;
  return Task{.model_id = id_,
              .job = job_,
              .block = block,
              .slot = SlotOf(ns_.id, model::RouteKey(manifest_->blocks[block].route)),
              .ns = ns_,
              .manifest = manifest_,
              .digest = digests_[block],
              .certain = IsCertain(block),
              .round = RoundOf(block),
              .pin = pinned_,
              .origin = origin_};
}

ObjectPin ModelPull::Done(const Task& task, Outcome outcome) {
  const uint32_t block = task.block;
  const uint64_t bytes = manifest_->blocks[block].bytes;
  news_ = true;
  // What was read before its file turned out to be damaged counts for nothing.
  const bool late = task.round != RoundOf(block);
  const bool stored = outcome.source_bytes > 0 && !outcome.shared;
  if (!late && (!digests_[block] || !IsCertain(block))) {
    if (stored_[block] && digests_[block] != outcome.digest) {
      Suspect(block, *digests_[block]);
      stored_[block] = false;
    }
    digests_[block] = outcome.digest;
    if (!checks_.contains(manifest_->blocks[block].file)) learned_.push_back(block);
  }
  if (late || outcome.digest != *digests_[block]) {
    if (stored) Suspect(block, outcome.digest);
  } else {
    stored_[block] = stored_[block] || stored;
  }
  source_bytes_ += outcome.source_bytes;
  promoted_bytes_ += outcome.promoted_bytes;
  if (outcome.shared) shared_bytes_ += bytes;
  // A worker of a pull that was given up and begun anew meanwhile.
  if (states_[block] != State::kBusy) return std::move(outcome.pin);
  if (late || !std::ranges::binary_search(owned_, block) || (pinned_ && !outcome.pin) ||
      outcome.digest != *digests_[block]) {
    GiveBack(task);
    return std::move(outcome.pin);
  }
  if (pinned_) std::swap(pins_[block], outcome.pin);
  states_[block] = State::kDone;
  ++done_;
  done_bytes_ += bytes;
  retry_pause_ = kRetryFirst;
  return std::move(outcome.pin);
}

std::optional<ModelPull::CheckTask> ModelPull::NextCheck() {
  if (!working() || view_ == ViewVersion() || cannot_check_) return std::nullopt;
  for (auto& [file, check] : checks_) {
    if (!check.heard || check.busy || check.checked || check.stopped) continue;
    CheckTask task{.model_id = id_,
                   .file = file,
                   .started = check.started,
                   .round = check.round,
                   .first = check.next,
                   .state = check.state,
                   .digests = {},
                   .ns = ns_,
                   .manifest = manifest_};
    uint64_t bytes = 0;
    for (uint32_t block = check.next; block < check.end; ++block) {
      bytes += manifest_->blocks[block].bytes;
      const bool enough = task.digests.size() == kCheckBlocksMax ||
                          (bytes > kCheckBytesMax && !task.digests.empty());
      if (enough || states_[block] != State::kDone || !digests_[block] ||
          !std::ranges::binary_search(owned_, block))
        break;
      task.digests.push_back(*digests_[block]);
    }
    if (task.digests.empty()) continue;
    check.busy = true;
    return task;
  }
  return std::nullopt;
}

void ModelPull::CheckEnded(const CheckTask& task, std::optional<uint32_t> missing) {
  const auto check = checks_.find(task.file);
  if (check != checks_.end()) check->second.busy = false;
  if (!missing) return;
  Undo(*missing);
  news_ = true;
}

void ModelPull::FailCheck(const CheckTask& task, const Status& why) {
  CheckEnded(task, std::nullopt);
  cannot_check_ = true;
  if (error_.ok()) error_ = why;
  news_ = true;
}

bool ModelPull::FollowCheck(const v1::FileCheck& said, std::vector<ObjectPin>* lost) {
  const auto at = checks_.find(said.file());
  if (at == checks_.end()) return false;
  Check& check = at->second;
  if (said.started() != learned_so_far_.controller) learned_so_far_ = {said.started(), 0};
  const bool same_controller = said.started() == check.started;
  // Answers may overtake each other, and the last one of a controller the first one of the next.
  const bool old = same_controller ? said.number() < check.number : said.started() == check.before;
  if (check.checked || old) return false;
  if (same_controller && said.round() > check.round) ReadAnew(&check, lost);
  if (!same_controller) check.before = check.started;
  if (check.stopped && !said.stopped()) next_ = 0;  // its blocks are due now
  check.heard = true;
  check.started = said.started();
  check.number = said.number();
  check.round = said.round();
  check.next = std::clamp(said.next(), check.first, check.end);
  check.state = said.state();
  check.stopped = said.stopped();
  // What others have read, or this server before it was restarted.
  for (size_t i = 0; (i + 1) * sizeof(model::BlockDigest) <= said.digests().size(); ++i) {
    const size_t block = check.first + i;
    if (block >= check.end || digests_[block]) continue;
    digests_[block].emplace();
    std::memcpy(digests_[block]->data(), said.digests().data() + i * sizeof(model::BlockDigest),
                sizeof(model::BlockDigest));
  }
  if (!said.checked()) return false;
  check.checked = true;
  check.state.clear();
  --unchecked_;
  // One of several that were checked: what was learned after the first may have been of all.
  const auto begin = certain_.begin();
  return unchecked_ == 0 ||
         std::find(begin + check.first, begin + check.end, false) != begin + check.end;
}

void ModelPull::LearnedUpTo(const Learned& learned) {
  if (learned.controller != learned_so_far_.controller) return;
  learned_so_far_.count = std::max(learned_so_far_.count, learned.count);
}

void ModelPull::ReadAnew(Check* check, std::vector<ObjectPin>* lost) {
  ++check->reads;
  news_ = true;
  for (uint32_t block = check->first; block < check->end; ++block) {
    certain_[block] = false;
    if (stored_[block] && digests_[block]) Suspect(block, *digests_[block]);
    stored_[block] = false;
    digests_[block].reset();
    Undo(block);
    const auto pin = pins_.find(block);
    if (pin == pins_.end()) continue;
    lost->push_back(std::move(pin->second));
    pins_.erase(pin);
  }
}

void ModelPull::GiveBack(const Task& task) {
  if (states_[task.block] != State::kBusy) return;
  states_[task.block] = State::kTodo;
  const auto at = std::ranges::lower_bound(owned_, task.block);
  next_ = std::min(next_, static_cast<size_t>(at - owned_.begin()));
}

void ModelPull::Fail(const Task& task, const Status& why) {
  GiveBack(task);
  if (!IsCurrent(task) || !error_.ok() || task.round != RoundOf(task.block)) return;
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
  const size_t count = std::min(learned_.size(), kDigestsInReportMax);
  for (size_t i = 0; i < count; ++i) {
    report->add_blocks(learned_[i]);
    report->mutable_digests()->append(AsText(*digests_[learned_[i]]));
  }
  learned_.erase(learned_.begin(), learned_.begin() + static_cast<ptrdiff_t>(count));
  news_ = !learned_.empty();
}

void ModelPull::ReportFailed(const v1::ReportPullRequest& report) {
  learned_.insert(learned_.end(), report.blocks().begin(), report.blocks().end());
  news_ = true;
}

}  // namespace ems::server
