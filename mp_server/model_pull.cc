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

ModelPull::ModelPull(uint32_t id, std::shared_ptr<const model::Manifest> manifest)
    : id_(id),
      manifest_(std::move(manifest)),
      origin_(OriginOf(manifest_->source)),
      states_(manifest_->blocks.size(), State::kTodo),
      digests_(manifest_->blocks.size()) {}

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
  return {};
}

void ModelPull::Learn(uint32_t block, const model::BlockDigest& digest) {
  if (block >= digests_.size()) return;
  const bool other = digests_[block] && *digests_[block] != digest;
  digests_[block] = digest;
  if (!other || states_[block] != State::kDone) return;
  states_[block] = State::kTodo;
  const auto at = std::ranges::lower_bound(owned_, block);
  if (at == owned_.end() || *at != block) return;
  next_ = std::min(next_, static_cast<size_t>(at - owned_.begin()));
  --done_;
  done_bytes_ -= manifest_->blocks[block].bytes;
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
              .slot = SlotOf(ns_.id, model::RouteKey(manifest_->blocks[block].route)),
              .ns = ns_,
              .manifest = manifest_,
              .digest = digests_[block],
              .pin = pinned_,
              .origin = origin_};
}

ObjectPin ModelPull::Done(const Task& task, Outcome outcome) {
  const uint32_t block = task.block;
  const uint64_t bytes = manifest_->blocks[block].bytes;
  news_ = true;
  if (!digests_[block]) {
    digests_[block] = outcome.digest;
    learned_.push_back(block);
  }
  source_bytes_ += outcome.source_bytes;
  promoted_bytes_ += outcome.promoted_bytes;
  if (outcome.shared) shared_bytes_ += bytes;
  // A worker of a pull that was given up and begun anew meanwhile.
  if (states_[block] != State::kBusy) return std::move(outcome.pin);
  if (!std::ranges::binary_search(owned_, block) || (pinned_ && !outcome.pin) ||
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

void ModelPull::GiveBack(const Task& task) {
  if (states_[task.block] != State::kBusy) return;
  states_[task.block] = State::kTodo;
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
