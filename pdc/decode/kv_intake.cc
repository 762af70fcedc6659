#include "pdc/decode/kv_intake.h"

#include <utility>

#include "common/check.h"

namespace ems::pdc {
namespace {

// How soon a deadline or a peer's death is noticed that nobody tells.
constexpr Duration kSweepEvery = std::chrono::milliseconds(20);
// The oldest arrival is waited for in slices; the others are looked at in between.
constexpr Duration kSlice = std::chrono::milliseconds(1);

}  // namespace

void KvIntake::Inbox::Push(Note note) {
  {
    auto locked = state.Lock();
    if (locked->closed) return;
    locked->notes.push_back(std::move(note));
  }
  came.notify_one();
}

KvIntake::KvIntake(PrefillPeer* peer)
    : peer_(peer), thread_(Thread("ems-intake", [this] { Run(); })) {}

KvIntake::~KvIntake() { Stop(); }

void KvIntake::Stop() {
  {
    auto locked = inbox_->state.Lock();
    locked->closed = true;
  }
  inbox_->came.notify_one();
  thread_.Join();
}

void KvIntake::Begin(PrefillTask task, KvSequence* kv, IntakeEvents events) {
  const uint64_t id = task.id;
  const auto tokens = static_cast<uint32_t>(task.prompt.size());
  auto job = std::make_unique<Job>(Job{.id = id,
                                       .tokens = tokens,
                                       .deadline = task.deadline,
                                       .events = std::move(events),
                                       .ring = peer_->ring(),
                                       .arrival = nullptr});
  Status begun = Error(StatusCode::kUnavailable, "{} has no link", peer_->name());
  if (job->ring != nullptr) {
    auto arrival = KvArrival::Post(job->ring.get(), id, kv, tokens);
    begun = arrival.status();
    if (arrival.ok()) job->arrival = *std::move(arrival);
  }
  outstanding_.fetch_add(tokens, std::memory_order_relaxed);
  // Before the peer's events.
  inbox_->Push({.id = id, .begun = std::move(job)});
  if (begun.ok()) {
    begun = peer_->Start(
        std::move(task),
        {.on_done =
             [inbox = inbox_, id](Result<PrefillOutcome> outcome) {
               inbox->Push({.id = id, .done = std::move(outcome)});
             },
         .on_sent = [inbox = inbox_,
                     id](Status sent) { inbox->Push({.id = id, .sent = std::move(sent)}); }});
  }
  if (begun.ok()) {
    inbox_->Push({.id = id, .started = true});
  } else {
    inbox_->Push({.id = id, .done = Result<PrefillOutcome>(begun)});
  }
}

void KvIntake::Cancel(uint64_t id) { inbox_->Push({.id = id, .cancel = true}); }

void KvIntake::Run() {
  std::vector<Note> notes;
  while (TakeNotes(&notes)) {
    for (Note& note : notes) Handle(std::move(note));
    notes.clear();
    TakeIn();
    Sweep();
    Await();
  }
  for (Note& note : notes) Handle(std::move(note));
  while (!jobs_.empty())
    Lose(jobs_.begin()->first, Error(StatusCode::kCancelled, "the decode worker stops"), true);
}

bool KvIntake::TakeNotes(std::vector<Note>* notes) {
  auto locked = inbox_->state.Lock();
  if (arriving_ == 0) {
    const auto ready = [](const Inbox::State& s) { return s.closed || !s.notes.empty(); };
    // Without jobs there is nothing to sweep.
    if (jobs_.empty()) {
      locked.Wait(inbox_->came, ready);
    } else {
      locked.WaitFor(inbox_->came, kSweepEvery, ready);
    }
  }
  notes->swap(locked->notes);
  return !locked->closed;
}

void KvIntake::Handle(Note note) {
  if (note.begun != nullptr) {
    const bool added = jobs_.emplace(note.id, std::move(note.begun)).second;
    EMS_CHECK(added, "job {} has begun twice", note.id);
    return;
  }
  const auto found = jobs_.find(note.id);
  if (found == jobs_.end()) {
    // It has ended meanwhile. Before the peer had taken it there was nothing to stop there.
    if (note.started) peer_->Cancel(note.id);
    return;
  }
  if (note.cancel) return Lose(note.id, Error(StatusCode::kCancelled, "cancelled"), true);
  if (note.done) return OnDone(found->second.get(), *note.done);
  // What left whole is on its way.
  if (note.sent && !note.sent->ok()) Lose(note.id, *std::move(note.sent), false);
}

void KvIntake::OnDone(Job* job, const Result<PrefillOutcome>& outcome) {
  if (!outcome.ok()) return Lose(job->id, outcome.status(), false);
  if (job->has_first) return;  // a peer that says it twice
  job->has_first = true;
  ++arriving_;
  outstanding_.fetch_sub(job->tokens, std::memory_order_relaxed);
  if (job->events.on_first(*outcome)) return;
  Lose(job->id, Error(StatusCode::kCancelled, "no KV is needed"), true);
}

// Jobs are awaited once they have their first token. One that ended leaves there what its sender
// has begun; as long as that stays, the sender takes this side for one that does not receive, and
// loses the next hand-over at once.
void KvIntake::TakeIn() {
  if (const auto ring = peer_->ring()) ring->TakeIn();
}

void KvIntake::Await() {
  Duration wait = kSlice;
  std::vector<std::pair<uint64_t, Status>> ended;
  for (const auto& [id, job] : jobs_) {
    if (!job->has_first) continue;
    const auto whole = job->arrival->Poll(std::exchange(wait, Duration(0)));
    if (!whole.ok() || *whole) ended.emplace_back(id, whole.status());
  }
  for (auto& [id, status] : ended) {
    if (status.ok()) {
      Forget(id).on_arrived();
    } else {
      Lose(id, std::move(status), true);
    }
  }
}

void KvIntake::Sweep() {
  const TimePoint now = Clock::System().Now();
  if (jobs_.empty() || now - swept_ < kSweepEvery) return;
  swept_ = now;
  const Status health = peer_->health().status;
  std::vector<std::pair<uint64_t, Status>> ended;
  for (const auto& [id, job] : jobs_) {
    if (job->deadline.Passed()) {
      ended.emplace_back(id, Error(StatusCode::kDeadlineExceeded, "the prompt's time is over"));
    } else if (!health.ok() && health.code() != StatusCode::kDeadlineExceeded) {
      ended.emplace_back(id,
                         Error(StatusCode::kUnavailable, "{}: {}", peer_->name(), Message(health)));
    }
  }
  for (auto& [id, status] : ended) Lose(id, std::move(status), true);
}

void KvIntake::Lose(uint64_t id, Status why, bool cancel) {
  const IntakeEvents events = Forget(id);
  if (cancel) peer_->Cancel(id);
  events.on_lost(std::move(why));
}

IntakeEvents KvIntake::Forget(uint64_t id) {
  const auto found = jobs_.find(id);
  EMS_CHECK(found != jobs_.end(), "job {} has ended twice", id);
  Job& job = *found->second;
  if (job.has_first) {
    --arriving_;
  } else {
    outstanding_.fetch_sub(job.tokens, std::memory_order_relaxed);
  }
  IntakeEvents events = std::move(job.events);
  jobs_.erase(found);  // from here on nobody writes its blocks
  return events;
}

Result<KvIntake*> ChooseIntake(std::span<const std::unique_ptr<KvIntake>> intakes,
                               const KvIntake* last) {
  KvIntake* best = nullptr;
  double least = 0;
  Status why;
  for (const auto& intake : intakes) {
    const PrefillHealth health = intake->peer().health();
    if (!health.status.ok() || intake->peer().ring() == nullptr) {
      why = health.status;
      continue;
    }
    const double cost =
        std::max(health.queued_cost, static_cast<double>(intake->outstanding_tokens()));
    if (best != nullptr && best != last && (cost >= least || intake.get() == last)) continue;
    best = intake.get();
    least = cost;
  }
  if (best != nullptr) return best;
  return Error(StatusCode::kUnavailable, "no prefill peer of {} is well: {}", intakes.size(),
               Message(why));
}

}  // namespace ems::pdc
