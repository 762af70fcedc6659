#include "integrations/c/internal/call_queue.h"

#include <algorithm>
#include <utility>

#include "integrations/c/internal/last_error.h"

namespace ems::capi {

struct CallQueue::Ticket {
  uint64_t tag = 0;
  TimePoint deadline;
  std::unique_ptr<Call> call;
  // Whoever sets it ends the call; the others must not touch the queue any more.
  std::atomic<bool> claimed{false};
  Waiting::iterator place;  // while it waits; belongs to state_

  bool Claim() { return !claimed.exchange(true, std::memory_order_acq_rel); }
};

Result<std::unique_ptr<CallQueue>> CallQueue::Create(uint32_t depth, Submitter submit) {
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<CompletionQueue> completions,
                       CompletionQueue::Create(depth));
  return std::unique_ptr<CallQueue>(new CallQueue(std::move(completions), std::move(submit)));
}

CallQueue::CallQueue(std::unique_ptr<CompletionQueue> completions, Submitter submit)
    : completions_(std::move(completions)),
      submit_(std::move(submit)),
      late_(Error(StatusCode::kDeadlineExceeded, "the call's time passed while it waited")),
      cancelled_(Error(StatusCode::kCancelled, "the completion queue was destroyed")),
      watcher_("ems-cq", [this] { Watch(); }) {}

CallQueue::~CallQueue() { Close(); }

Status CallQueue::Submit(uint64_t tag, Duration timeout, std::unique_ptr<Call> call,
                         const Submitter& threads) {
  auto ticket = std::make_shared<Ticket>();
  ticket->tag = tag;
  ticket->deadline = Deadline::After(timeout).at();
  ticket->call = std::move(call);
  // What may fail for want of memory comes before anything is taken.
  std::function<void()> work = [this, ticket] {
    if (ticket->Claim()) Begin(ticket.get());
  };
  Waiting added;
  Waiting::node_type node = added.extract(added.emplace(ticket->deadline, ticket));
  if (!completions_->Begin()) {
    return Error(StatusCode::kResourceExhausted, "the completion queue is full: poll it first");
  }
  bool earliest = false;
  {
    auto state = state_.Lock();
    ticket->place = state->waiting.insert(std::move(node));
    earliest = ticket->place == state->waiting.begin();
  }
  if (earliest) changed_.notify_one();
  if (threads(std::move(work))) return OkStatus();
  // Its deadline may have passed meanwhile; then a completion says so.
  if (!ticket->Claim()) return OkStatus();
  (void)Leave(*ticket);
  completions_->Abandon();
  return Error(StatusCode::kResourceExhausted,
               "too many submitted calls wait for a thread (async_queue_max)");
}

bool CallQueue::Leave(const Ticket& ticket) {
  auto state = state_.Lock();
  state->waiting.erase(ticket.place);
  return !state->closing;
}

void CallQueue::Begin(Ticket* ticket) {
  if (!Leave(*ticket)) return End(ticket, cancelled_);
  const Duration left = Deadline(ticket->deadline).Remaining();
  if (left == Duration::zero()) return End(ticket, late_);
  Outcome outcome;
  const ems_status thrown = AtBoundary([&] {
    outcome = ticket->call->Run(left);
    return EMS_OK;
  });
  if (thrown != EMS_OK) return End(ticket, Status(static_cast<StatusCode>(thrown), ""));
  completions_->End(ticket->tag, outcome.status, outcome.value);
}

void CallQueue::End(Ticket* ticket, const Status& why) {
  ticket->call->Refuse(CodeOf(why));
  completions_->End(ticket->tag, why, 0);
}

std::shared_ptr<CallQueue::Ticket> CallQueue::TakeLate(State* state, TimePoint until) {
  for (auto it = state->waiting.begin(); it != state->waiting.end() && it->first <= until; ++it) {
    if (!it->second->Claim()) continue;  // about to leave by itself
    std::shared_ptr<Ticket> ticket = std::move(it->second);
    state->waiting.erase(it);
    return ticket;
  }
  return nullptr;
}

void CallQueue::Watch() {
  while (true) {
    std::shared_ptr<Ticket> late;
    {
      auto state = state_.Lock();
      if (state->closing) return;
      const TimePoint now = Clock::System().Now();
      late = TakeLate(&*state, now);
      if (late == nullptr) {
        const TimePoint next =
            state->waiting.empty() ? now + Deadline::kMost : state->waiting.begin()->first;
        // At least a moment, for one that is about to leave by itself.
        const Duration pause = std::max<Duration>(next - now, std::chrono::milliseconds(1));
        state.WaitFor(changed_, pause, [&](const State& s) {
          return s.closing || (!s.waiting.empty() && s.waiting.begin()->first < next);
        });
      }
    }
    if (late != nullptr) End(late.get(), late_);
  }
}

void CallQueue::Close() {
  {
    auto state = state_.Lock();
    state->closing = true;
  }
  changed_.notify_all();
  watcher_.Join();
  while (true) {
    std::shared_ptr<Ticket> waiting;
    {
      auto state = state_.Lock();
      waiting = TakeLate(&*state, TimePoint::max());
    }
    if (waiting == nullptr) break;
    End(waiting.get(), cancelled_);
  }
  completions_->WaitIdle();
}

}  // namespace ems::capi
