#include "pdc/decode/admission.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::pdc {
namespace {

// How soon a task is noticed whose time has passed while it was waiting.
constexpr Duration kSweepEvery = std::chrono::milliseconds(20);

Status Stopping() { return Error(StatusCode::kUnavailable, "the decode worker stops"); }

}  // namespace

Admission::Admission(const ModelConfig& config, KvArena* arena,
                     const std::vector<PrefillPeer*>& peers, const AdmissionOptions& options,
                     AdmissionEvents events)
    : config_(config), arena_(arena), options_(options), events_(std::move(events)) {
  EMS_CHECK(!peers.empty() && options.batch_max > 0 && options.attempts_max > 0,
            "{} prefill peers, batch_max {}, attempts_max {}", peers.size(), options.batch_max,
            options.attempts_max);
  for (PrefillPeer* const peer : peers) intakes_.push_back(std::make_unique<KvIntake>(peer));
  thread_ = Thread("ems-admit", [this] { Run(); });
}

Admission::~Admission() { Stop(); }

void Admission::Stop() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  changed_.notify_all();
  thread_.Join();
  // They stay until nobody can name them any more.
  for (const auto& intake : intakes_) intake->Stop();
}

bool Admission::Add(const DecodeJobPtr& job) {
  {
    auto state = state_.Lock();
    if (state->stopping) return false;
    state->waiting.insert(std::ranges::upper_bound(state->waiting, job, IsOlder), job);
    ++state->changes;
  }
  changed_.notify_one();
  return true;
}

void Admission::OnCancelled(const DecodeJobPtr& job) {
  KvIntake* intake = nullptr;
  uint64_t handoff = 0;
  {
    auto state = state_.Lock();
    intake = job->intake;
    handoff = job->handoff;
    ++state->changes;
  }
  if (intake != nullptr) intake->Cancel(handoff);
  changed_.notify_one();
}

// --- Of its thread.

void Admission::Run() {
  uint64_t seen = 0;
  while (true) {
    DecodeJobPtr next;
    {
      auto state = state_.Lock();
      state.WaitFor(changed_, kSweepEvery, [&](const State& s) {
        return s.stopping || (s.changes != seen && !s.waiting.empty());
      });
      if (state->stopping) break;
      seen = state->changes;
      if (!state->waiting.empty() && state->stats.admitted < options_.batch_max &&
          Clock::System().Now() >= state->pause_until)
        next = state->waiting.front();
    }
    SweepWaiting();
    if (next == nullptr || next->Over()) continue;
    if (!TryAdmit(next)) continue;
    auto state = state_.Lock();
    ++state->changes;  // perhaps the one behind it, too
  }
  std::deque<DecodeJobPtr> left;
  {
    auto state = state_.Lock();
    left.swap(state->waiting);
  }
  for (const DecodeJobPtr& job : left) End(job, Stopping());
}

void Admission::SweepWaiting() {
  std::vector<std::pair<DecodeJobPtr, Status>> over;
  {
    auto state = state_.Lock();
    for (const DecodeJobPtr& job : state->waiting) {
      if (const auto why = job->Over()) over.emplace_back(job, *why);
    }
    for (const auto& [job, why] : over) std::erase(state->waiting, job);
  }
  for (const auto& [job, why] : over) End(job, why);
}

// False: not now. The job stays at the front of the queue then, or has ended.
bool Admission::TryAdmit(const DecodeJobPtr& job) {
  const Result<KvIntake*> intake = ChooseIntake(intakes_, job->lost_at);
  if (!intake.ok()) {
    const TimePoint now = Clock::System().Now();
    if (!no_peer_since_) no_peer_since_ = now;
    // All that wait lose patience together, not one after the other.
    if (now - std::max(*no_peer_since_, job->waits_since) < options_.peer_patience) return false;
    {
      auto state = state_.Lock();
      std::erase(state->waiting, job);
    }
    End(job, intake.status());
    return false;
  }
  no_peer_since_.reset();
  std::vector<TokenId> tokens = job->Tokens();
  const uint32_t admitted = stats().admitted;
  // A block for each of those that are here already: they grow.
  const uint64_t room = std::min<uint64_t>(tokens.size() + 1, config_.positions_max);
  if (admitted > 0 && arena_->pool().free_blocks() < BlocksFor(room) + admitted) return false;
  KvSequence kv(arena_);
  if (!kv.Reserve(static_cast<uint32_t>(room)).ok()) return false;  // saves hold some
  job->generation.emplace(std::move(kv), tokens, job->Options());
  job->told = 0;
  job->saved = 0;
  Begin(job, *intake, std::move(tokens));
  return true;
}

void Admission::Begin(const DecodeJobPtr& job, KvIntake* intake, std::vector<TokenId> tokens) {
  PrefillTask prefill{.prompt = std::move(tokens),
                      .sampler = job->spec.sampler,
                      .cache_salt = job->spec.cache_salt,
                      .deadline = job->spec.deadline};
  {
    auto state = state_.Lock();
    EMS_CHECK(!job->admitted, "task {} is admitted already", job->spec.id);
    std::erase(state->waiting, job);
    ++state->stats.admitted;
    state->arriving.insert(job);
    job->admitted = true;
    job->intake = intake;
    job->handoff = prefill.id = ++state->handoffs;
  }
  const uint64_t id = prefill.id;
  // From here on the job is the intake's.
  intake->Begin(
      std::move(prefill), &job->generation->kv(),
      {.on_first = [this, job](const PrefillOutcome& outcome) { return OnFirst(job, outcome); },
       .on_arrived = [this, job] { OnArrived(job); },
       .on_lost = [this, job](const Status& why) { OnLost(job, why); }});
  // It may have been cancelled, or its blocks wanted back, before the intake knew of it.
  if (job->cancelled.load(std::memory_order_acquire) || GivesWay(job)) intake->Cancel(id);
}

// --- Of an intake's thread.

bool Admission::OnFirst(const DecodeJobPtr& job, const PrefillOutcome& outcome) {
  if (job->Over()) return false;
  job->first = outcome;
  job->attempts = 0;
  if (!std::exchange(job->prompt_told, true))
    job->sink->OnPrompt(static_cast<uint32_t>(job->spec.prompt.size()), outcome.cached_tokens);
  const GenerationOptions attempt = job->Options();
  job->answer.push_back(outcome.first);
  job->sink->OnTokens({&outcome.first, 1});
  {
    auto state = state_.Lock();
    ++state->stats.first_tokens;
  }
  job->finished =
      EndOf(outcome.first, 1, job->spec.prompt.size() + job->answer.size(), attempt, config_);
  return job->finished == FinishReason::kNone;
}

void Admission::OnArrived(const DecodeJobPtr& job) {
  {
    auto state = state_.Lock();
    job->intake = nullptr;
  }
  events_.on_arrived(job);
}

void Admission::OnLost(const DecodeJobPtr& job, const Status& why) {
  if (job->finished != FinishReason::kNone) return End(job, job->finished);
  if (const auto over = job->Over()) return End(job, *over);
  if (GivesWay(job)) return GiveWay(job);
  if (why.code() == StatusCode::kInvalidArgument) return End(job, why);
  if (why.code() == StatusCode::kResourceExhausted) return Requeue(job, kSweepEvery / 2);
  {
    auto state = state_.Lock();
    ++state->stats.lost;
    job->lost_at = job->intake;
  }
  if (++job->attempts < options_.attempts_max) return Requeue(job);
  End(job, Error(StatusCode::kUnavailable, "{} prefills were lost, the last one so: {}",
                 job->attempts, Message(why)));
}

// --- Of the decode loop.

bool Admission::GivesWay(const DecodeJobPtr& job) {
  const auto state = state_.Lock();
  return job->gives_way;
}

bool Admission::HandOn(const DecodeJobPtr& job) {
  {
    auto state = state_.Lock();
    EMS_CHECK(job->admitted && job->intake == nullptr, "task {} has not arrived", job->spec.id);
    if (!job->gives_way) {
      state->arriving.erase(job);
      return true;
    }
  }
  GiveWay(job);
  return false;
}

bool Admission::AskForBlocks(uint64_t order) {
  KvIntake* intake = nullptr;
  uint64_t handoff = 0;
  {
    auto state = state_.Lock();
    DecodeJob* last = nullptr;
    for (const DecodeJobPtr& job : state->arriving) {
      if (job->gives_way) return true;
      if (job->order > order && (last == nullptr || last->order < job->order)) last = job.get();
    }
    if (last == nullptr) return false;
    last->gives_way = true;
    intake = last->intake;
    handoff = last->handoff;
  }
  if (intake != nullptr) intake->Cancel(handoff);  // else it has arrived, and is handed on next
  return true;
}

void Admission::GiveWay(const DecodeJobPtr& job) {
  {
    auto state = state_.Lock();
    ++state->stats.preempted;
  }
  Requeue(job);
}

AdmissionStats Admission::stats() {
  auto state = state_.Lock();
  AdmissionStats stats = state->stats;
  stats.waiting = static_cast<uint32_t>(state->waiting.size());
  return stats;
}

// --- Ends.

void Admission::Unplace(State* state, const DecodeJobPtr& job) {
  if (job->admitted) {
    EMS_CHECK(state->stats.admitted > 0, "task {} was not counted", job->spec.id);
    --state->stats.admitted;
  }
  state->arriving.erase(job);
  job->admitted = job->gives_way = false;
  job->intake = nullptr;
  ++state->changes;
}

// Back to its place in the queue, without its KV.
void Admission::Requeue(const DecodeJobPtr& job, Duration pause) {
  job->generation.reset();
  job->waits_since = Clock::System().Now();
  bool stopping = false;
  {
    auto state = state_.Lock();
    Unplace(&*state, job);
    if (pause > Duration(0)) state->pause_until = job->waits_since + pause;
    stopping = state->stopping;
    if (!stopping)
      state->waiting.insert(std::ranges::upper_bound(state->waiting, job, IsOlder), job);
  }
  if (stopping) return End(job, Stopping());
  changed_.notify_one();
  events_.on_room();
}

void Admission::Leave(const DecodeJobPtr& job) {
  job->generation.reset();
  {
    auto state = state_.Lock();
    Unplace(&*state, job);
  }
  changed_.notify_one();
  events_.on_room();
}

void Admission::End(const DecodeJobPtr& job, Result<FinishReason> how) {
  Leave(job);
  events_.on_ended(job, std::move(how));
}

}  // namespace ems::pdc
