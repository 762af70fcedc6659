#pragma once
// What a client of a Generator hears, kept for a test to wait for and to look at. It also notes
// what no generator may do: two events at a time, an event after the last, a prompt after tokens.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "pdc/api/generate.h"

namespace ems::testing {

// Threading: thread-safe.
class RecordedGeneration final : public pdc::api::GenerationSink {
 public:
  struct Heard {
    std::optional<pdc::api::PromptUsage> prompt;
    std::string bytes;
    uint64_t tokens = 0;
    std::optional<pdc::api::FinishReason> finish;
    std::optional<Status> error;
    std::string broken;  // a guarantee; empty: none
    bool ended() const { return finish || error; }
  };

  // Is called within each event but the last, without a lock.
  void SetOnEvent(std::function<void()> on_event) { on_event_ = std::move(on_event); }

  void OnPrompt(const pdc::api::PromptUsage& usage) override {
    Note(true, [&](Heard* heard) {
      if (heard->prompt || heard->tokens > 0) heard->broken = "OnPrompt comes late, or again";
      heard->prompt = usage;
    });
  }
  void OnTokens(std::string_view bytes, uint32_t tokens) override {
    Note(true, [&](Heard* heard) {
      if (tokens == 0) heard->broken = "OnTokens without a token";
      heard->bytes += bytes;
      heard->tokens += tokens;
    });
  }
  void OnFinish(pdc::api::FinishReason reason) override {
    Note(false, [&](Heard* heard) { heard->finish = reason; });
  }
  void OnError(const Status& why) override {
    Note(false, [&](Heard* heard) { heard->error = why; });
  }

  Heard heard() {
    auto heard = heard_.Lock();
    return *heard;
  }
  // As soon as `ready`; what there is when that takes 10 s.
  Heard Await(const std::function<bool(const Heard&)>& ready) {
    auto heard = heard_.Lock();
    heard.WaitFor(changed_, std::chrono::seconds(10), ready);
    return *heard;
  }
  Heard AwaitEnd() {
    return Await([](const Heard& heard) { return heard.ended(); });
  }
  // So many have come, or it has ended.
  Heard AwaitTokens(uint64_t tokens) {
    return Await([tokens](const Heard& heard) { return heard.tokens >= tokens || heard.ended(); });
  }

 private:
  template <typename Change>
  void Note(bool tell, Change change) {
    const bool alone = !busy_.exchange(true, std::memory_order_acq_rel);
    {
      auto heard = heard_.Lock();
      if (!alone) heard->broken = "two events at a time";
      if (heard->ended()) heard->broken = "an event after the last";
      change(&*heard);
    }
    if (tell && on_event_) on_event_();
    busy_.store(false, std::memory_order_release);  // with the exchange above
    changed_.notify_all();
  }

  std::function<void()> on_event_;
  std::atomic<bool> busy_{false};
  Guarded<Heard> heard_;
  std::condition_variable changed_;
};

}  // namespace ems::testing
