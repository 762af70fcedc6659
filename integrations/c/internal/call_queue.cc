#include "integrations/c/internal/call_queue.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "integrations/c/internal/last_error.h"

namespace ems::capi {

struct CallQueue::Ticket {
  Ticket(CallQueue* queue, uint64_t its_tag, Duration timeout, std::unique_ptr<Call> its_call)
      : tag(its_tag),
        call(std::move(its_call)),
        state(
            Deadline::After(timeout), &queue->gate_,
            [this](const Status& why) {
              call->Refuse(CodeOf(why));
              return Outcome{.status = why};
            },
            [this, queue](const Outcome& outcome) {
              queue->Forget(this);
              queue->completions_->End(tag, outcome.status, outcome.value);
            }) {}

  const uint64_t tag;
  const std::unique_ptr<Call> call;
  Waiting::iterator place;  // while it waits; belongs to state_
  bool waits = false;       // likewise
  CallState<Outcome> state;
};

Result<std::unique_ptr<CallQueue>> CallQueue::Create(uint32_t depth, Submitter submit) {
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<CompletionQueue> completions,
                       CompletionQueue::Create(depth));
  return std::unique_ptr<CallQueue>(new CallQueue(std::move(completions), std::move(submit)));
}

CallQueue::CallQueue(std::unique_ptr<CompletionQueue> completions, Submitter submit)
    : completions_(std::move(completions)),
      submit_(std::move(submit)),
      gate_(Error(StatusCode::kCancelled, "the completion queue was destroyed")),
      watcher_("ems-cq", [this] { Watch(); }) {}

CallQueue::~CallQueue() { Close(); }

Status CallQueue::Submit(uint64_t tag, Duration timeout, std::unique_ptr<Call> call,
                         const Submitter& threads) {
  EMS_CHECK(call != nullptr && threads, "a call and who runs it");
  // What may fail for want of memory comes before anything is taken.
  Waiting added;
  std::function<void()> work;
  auto ticket = std::make_shared<Ticket>(this, tag, timeout, std::move(call));
  work = [this, ticket] {
    if (ticket->state.Begin()) Begin(ticket.get());
  };
  Waiting::node_type node = added.extract(added.emplace(ticket->state.deadline().at(), ticket));
  if (!completions_->Begin()) {
    return Error(StatusCode::kResourceExhausted, "the completion queue is full: poll it first");
  }
  bool earliest = false;
  {
    auto state = state_.Lock();
    ticket->place = state->waiting.insert(std::move(node));
    ticket->waits = true;
    earliest = ticket->place == state->waiting.begin();
  }
  if (earliest) changed_.notify_one();
  if (threads(std::move(work))) return OkStatus();
  // Its deadline may have passed meanwhile; then a completion says so.
  if (!ticket->state.Claim()) return OkStatus();
  Forget(ticket.get());
  completions_->Abandon();
  ticket->state.Abandon();
  return Error(StatusCode::kResourceExhausted,
               "too many submitted calls wait for a thread (async_queue_max)");
}

void CallQueue::Begin(Ticket* ticket) {
  Forget(ticket);
  Outcome outcome;
  const ems_status thrown = AtBoundary([&] {
    outcome = ticket->call->Run(std::max(ticket->state.deadline().Remaining(), Duration(1)));
    return EMS_OK;
  });
  if (thrown != EMS_OK) {
    ticket->call->Refuse(thrown);
    outcome = {.status = Status(static_cast<StatusCode>(thrown), "")};
  }
  ticket->state.Finish(std::move(outcome));
}

void CallQueue::Forget(Ticket* ticket) {
  auto state = state_.Lock();
  if (std::exchange(ticket->waits, false)) state->waiting.erase(ticket->place);
}

std::shared_ptr<CallQueue::Ticket> CallQueue::TakeFirst(State* state, TimePoint until) {
  const auto first = state->waiting.begin();
  if (first == state->waiting.end() || first->first > until) return nullptr;
  std::shared_ptr<Ticket> ticket = std::move(first->second);
  EMS_CHECK(ticket->waits && ticket->place == first, "a call waits at its place");
  ticket->waits = false;
  state->waiting.erase(first);
  return ticket;
}

void CallQueue::Watch() {
  while (true) {
    std::shared_ptr<Ticket> late;
    {
      auto state = state_.Lock();
      if (state->closing) return;
      const TimePoint now = Clock::System().Now();
      late = TakeFirst(&*state, now);
      if (late == nullptr) {
        const TimePoint next =
            state->waiting.empty() ? now + Deadline::kMost : state->waiting.begin()->first;
        state.WaitFor(changed_, next - now, [&](const State& s) {
          return s.closing || (!s.waiting.empty() && s.waiting.begin()->first < next);
        });
      }
    }
    if (late != nullptr) late->state.Withdraw(gate_.late());
  }
}

void CallQueue::Close() {
  gate_.Shut();
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
      waiting = TakeFirst(&*state, TimePoint::max());
    }
    if (waiting == nullptr) break;
    waiting->state.Withdraw(gate_.closed());
  }
  gate_.Close();
}

}  // namespace ems::capi
