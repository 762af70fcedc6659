#pragma once
// The queue of a router's events, in order: clients and decode workers push them, the router's one
// thread takes them. It outlives the router as long as a worker may still report to it.
//
// Bound: for each request one start and its cancellations; for each attempt what its worker
// reports, tokens_max tokens.
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "pdc/router/routed_request.h"

namespace ems::pdc {

// Of clients.
struct RequestStarted {
  std::unique_ptr<RoutedRequest> request;
};
struct RequestCancelled {
  uint64_t sequence = 0;
};
// Of decode workers: what a DecodeSink hears.
struct AttemptPrompt {
  uint64_t attempt = 0;
  uint32_t cached_tokens = 0;
};
struct AttemptTokens {
  uint64_t attempt = 0;
  std::vector<TokenId> tokens{};
};
struct AttemptEnded {
  uint64_t attempt = 0;
  Result<FinishReason> how;
};
using RouterEvent =
    std::variant<RequestStarted, RequestCancelled, AttemptPrompt, AttemptTokens, AttemptEnded>;

// Threading: thread-safe.
class RouterInbox final {
 public:
  // False, and the event is dropped, when it is closed. Never blocks.
  bool Push(RouterEvent event) {
    auto state = state_.Lock();
    if (state->closed) return false;
    state->events.push_back(std::move(event));
    const bool first = state->events.size() == 1;
    state.Unlock();
    if (first) changed_.notify_one();
    return true;
  }
  // Nothing comes in any more; what is there may still be taken.
  void Close() {
    auto state = state_.Lock();
    state->closed = true;
    state.Unlock();
    changed_.notify_one();
  }
  // All that is there, the oldest first, as soon as there is something or it is closed; nothing
  // once `until` has come. False: it is closed, nothing comes after these. One thread.
  bool Take(TimePoint until, std::vector<RouterEvent>* events) {
    events->clear();
    auto state = state_.Lock();
    state.WaitFor(changed_, until - Clock::System().Now(),
                  [](const State& now) { return now.closed || !now.events.empty(); });
    events->swap(state->events);
    return !state->closed;
  }

 private:
  struct State {
    std::vector<RouterEvent> events;
    bool closed = false;
  };
  Guarded<State> state_;
  std::condition_variable changed_;
};

// Pushes a worker's events for one attempt to the inbox, under the attempt's number. The router
// forgets the number of an attempt that it abandons, and ignores later events for it.
class AttemptSink final : public DecodeSink {
 public:
  AttemptSink(std::shared_ptr<RouterInbox> inbox, uint64_t attempt)
      : inbox_(std::move(inbox)), attempt_(attempt) {}
  void OnPrompt(uint32_t /*prompt_tokens*/, uint32_t cached_tokens) override {
    (void)inbox_->Push(AttemptPrompt{attempt_, cached_tokens});
  }
  void OnTokens(std::span<const TokenId> tokens) override {
    (void)inbox_->Push(AttemptTokens{attempt_, {tokens.begin(), tokens.end()}});
  }
  void OnEnd(Result<FinishReason> how) override {
    (void)inbox_->Push(AttemptEnded{attempt_, std::move(how)});
  }

 private:
  const std::shared_ptr<RouterInbox> inbox_;
  const uint64_t attempt_;
};

// A client's hold on its request.
class RequestTicket final : public api::Generation {
 public:
  RequestTicket(std::shared_ptr<RouterInbox> inbox, uint64_t sequence)
      : inbox_(std::move(inbox)), sequence_(sequence) {}
  void Cancel() override { (void)inbox_->Push(RequestCancelled{sequence_}); }

 private:
  const std::shared_ptr<RouterInbox> inbox_;
  const uint64_t sequence_;
};

}  // namespace ems::pdc
