#include "pdc/kv/pool_store.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"

namespace ems::pdc {
namespace {

Status Absent() { return Error(StatusCode::kUnavailable, "the pool does not answer"); }

const Status& StatusOf(const Status& outcome) { return outcome; }
template <typename T>
Status StatusOf(const Result<T>& outcome) {
  return outcome.status();
}

// Who refuses that often in a row, never late in between, is dead: that costs a reader no time, and
// other servers may have something. A breaker that is open refuses, too, but not each time.
constexpr int kRefusedMax = 3;

bool IsLate(const Result<bool>& outcome) {
  return outcome.status().code() == StatusCode::kDeadlineExceeded;
}
bool IsNoAnswer(const Result<bool>& outcome) {
  return IsLate(outcome) || outcome.status().code() == StatusCode::kUnavailable;
}

}  // namespace

PoolStore::PoolStore(PoolStoreOptions options) : options_(std::move(options)) {
  thread_ = Thread("ems-pool", [this] { Run(); });
  auto state = state_.Lock();
  state.WaitFor(tried_, options_.first_patience,
                [](const State& s) { return s.client != nullptr; });
}

PoolStore::~PoolStore() {
  stop_.Set();
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

void PoolStore::Run() {
  if (!Connect()) return;
  while (true) {
    {
      auto state = state_.Lock();
      state.Wait(wakeup_, [](const State& s) { return s.stopping || !s.unanswered.empty(); });
      if (state->stopping) return;
    }
    AwaitAnswer();
  }
}

bool PoolStore::Connect() {
  for (bool said = false; !stop_.IsSet(); stop_.WaitFor(options_.retry_every)) {
    auto client = Client::Connect(options_.client);
    {
      auto state = state_.Lock();
      state->status = client.status();
      if (client.ok()) {
        state->client = *std::move(client);
        client_.store(state->client.get(), std::memory_order_release);
      }
    }
    tried_.notify_all();
    if (client_.load(std::memory_order_relaxed) != nullptr) {
      if (said) EMS_LOG(kInfo, "pdc", "pool connected controller={}", options_.client.controller);
      return true;
    }
    if (!std::exchange(said, true)) {
      EMS_LOG(kWarn, "pdc", "no pool, serving without a cache until it comes: controller={} {}",
              options_.client.controller, ToString(status()));
    }
  }
  return false;
}

void PoolStore::AwaitAnswer() {
  std::vector<Question> questions;
  {
    auto state = state_.Lock();
    questions = state->unanswered;
  }
  std::vector<KeyItem> items;
  items.reserve(questions.size());
  for (const auto& [key, route_key] : questions) items.push_back({key, route_key});
  const TimePoint begin = Clock::System().Now();
  bool said = false;
  for (int refused = 0; refused < kRefusedMax;) {
    GetOptions wait;
    wait.touch = false;
    wait.timeout = options_.retry_every;
    const auto answers = client()->MultiExists(items, wait);
    const auto none = std::ranges::find_if(answers, IsNoAnswer);
    if (none == answers.end()) break;
    refused = std::ranges::any_of(answers, IsLate) ? 0 : refused + 1;
    if (!std::exchange(said, true)) {
      EMS_LOG(kWarn, "pdc", "the pool hangs, serving without a cache until it answers: {}",
              ToString(none->status()));
    }
    if (stop_.WaitFor(options_.retry_every)) return;
  }
  {
    auto state = state_.Lock();
    state->unanswered.clear();
    hangs_.store(false, std::memory_order_release);
  }
  if (!said) return;
  EMS_LOG(
      kInfo, "pdc", "the pool answers again after_ms={}",
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - begin).count());
}

void PoolStore::Hang(std::vector<Question> unanswered) {
  {
    auto state = state_.Lock();
    if (!state->unanswered.empty()) return;
    state->unanswered = std::move(unanswered);
    ++state->hangs;
    hangs_.store(true, std::memory_order_release);
  }
  wakeup_.notify_all();
}

template <typename Items, typename Outcomes>
Outcomes PoolStore::Judge(const Items& items, std::string_view route_key, Outcomes outcomes) {
  EMS_CHECK(outcomes.size() == items.size(), "{} outcomes of {} items", outcomes.size(),
            items.size());
  std::vector<Question> unanswered;
  for (size_t i = 0; i < items.size() && unanswered.size() < kAskedMax; ++i) {
    if (StatusOf(outcomes[i]).code() == StatusCode::kDeadlineExceeded)
      unanswered.push_back(
          {std::string(items[i].key),
           std::string(items[i].route_key.empty() ? route_key : items[i].route_key)});
  }
  if (!unanswered.empty()) Hang(std::move(unanswered));
  return outcomes;
}

Status PoolStore::status() {
  if (hangs_.load(std::memory_order_acquire)) return Absent();
  auto state = state_.Lock();
  return state->status;
}

uint64_t PoolStore::hangs() {
  auto state = state_.Lock();
  return state->hangs;
}

ClientStats PoolStore::stats() const {
  const Client* const pool = client();
  return pool == nullptr ? ClientStats{} : pool->stats();
}

GetOptions PoolStore::With(GetOptions options) const {
  if (options.verify == Verify::kDefault) options.verify = options_.verify;
  return options;
}

std::vector<Result<bool>> PoolStore::MultiExists(std::span<const KeyItem> items,
                                                 const GetOptions& options) {
  if (Client* const pool = reader())
    return Judge(items, options.route_key, pool->MultiExists(items, With(options)));
  return std::vector<Result<bool>>(items.size(), Absent());
}

std::vector<Result<uint64_t>> PoolStore::MultiGet(std::span<const GetItem> items,
                                                  const GetOptions& options) {
  if (Client* const pool = reader())
    return Judge(items, options.route_key, pool->MultiGet(items, With(options)));
  return std::vector<Result<uint64_t>>(items.size(), Absent());
}

std::vector<Status> PoolStore::MultiGetRange(std::span<const RangeItem> items,
                                             const GetOptions& options) {
  if (Client* const pool = reader())
    return Judge(items, options.route_key, pool->MultiGetRange(items, With(options)));
  return std::vector<Status>(items.size(), Absent());
}

std::vector<Status> PoolStore::MultiPut(std::span<const PutItem> items, const PutOptions& options) {
  if (Client* const pool = client()) return pool->MultiPut(items, options);
  return std::vector<Status>(items.size(), Absent());
}

bool PoolStore::Submit(std::function<void()>&& work) {
  Client* const pool = client();
  return pool != nullptr && pool->Submit(std::move(work));
}

}  // namespace ems::pdc
