#include "bench/serve/serve_load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <string>

#include "bench/harness/interrupt.h"
#include "common/check.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr Duration kStopPoll = std::chrono::milliseconds(200);

// Threading: thread-safe: each thread of a load runs Run.
class Load final {
 public:
  Load(const ServeClient& client, std::span<const ServeRequest> requests,
       const LoadSettings& settings, const std::function<bool()>& stopped)
      : client_(client), requests_(requests), stopped_(stopped), outcomes_(requests.size()) {
    if (settings.rate > 0) arrivals_ = ArrivalTimes(requests.size(), settings.rate, settings.seed);
  }

  void Run() {
    // Only the counter is shared: each thread writes the outcomes of its own requests.
    for (size_t i = 0; (i = next_.fetch_add(1, std::memory_order_relaxed)) < requests_.size();) {
      outcomes_[i] = One(i);
    }
  }
  TimePoint start() const { return start_; }
  std::vector<ServeOutcome> Take() { return std::move(outcomes_); }

 private:
  ServeOutcome One(size_t i) {
    TimePoint due = Clock::System().Now();
    if (!arrivals_.empty()) {
      due = start_ + arrivals_[i];
      for (TimePoint now = due; !stopped_() && (now = Clock::System().Now()) < due;)
        never_.WaitFor(std::min(due - now, kStopPoll));
    }
    if (!stopped_()) return client_.Ask(requests_[i], due);
    ServeOutcome outcome;
    outcome.status = Interruption();
    return outcome;
  }

  const ServeClient& client_;
  const std::span<const ServeRequest> requests_;
  const std::function<bool()>& stopped_;
  std::vector<Duration> arrivals_;  // empty: closed loop
  std::vector<ServeOutcome> outcomes_;
  const TimePoint start_ = Clock::System().Now();
  std::atomic<size_t> next_{0};
  StopFlag never_;
};

}  // namespace

std::vector<Duration> ArrivalTimes(uint64_t requests, double rate, uint64_t seed) {
  EMS_CHECK(rate > 0);
  std::mt19937_64 random(seed);
  std::vector<Duration> times;
  times.reserve(requests);
  double seconds = 0;
  for (uint64_t i = 0; i < requests; ++i) {
    // 53 random bits: [0, 1).
    const double uniform = static_cast<double>(random() >> 11) * 0x1.0p-53;
    seconds -= std::log1p(-uniform) / rate;
    times.push_back(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
  }
  return times;
}

LoadResult RunLoad(const ServeClient& client, std::span<const ServeRequest> requests,
                   const LoadSettings& settings, const std::function<bool()>& stopped) {
  Load load(client, requests, settings, stopped);
  const auto threads =
      std::min<size_t>(std::min(settings.concurrency, kConcurrencyMax), requests.size());
  std::vector<Thread> others;
  for (size_t i = 1; i < threads; ++i)
    others.emplace_back("serve-" + std::to_string(i), [&load] { load.Run(); });
  load.Run();
  for (Thread& thread : others) thread.Join();
  LoadResult result;
  result.elapsed = Clock::System().Now() - load.start();
  result.outcomes = load.Take();
  return result;
}

}  // namespace ems::bench
