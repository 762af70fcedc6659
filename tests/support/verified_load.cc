#include "tests/support/verified_load.h"

#include <utility>

#include "common/check.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

std::string KeyOf(uint64_t number) { return "load/key-" + std::to_string(number); }

uint64_t NextRandom(uint64_t* state) {
  *state += 0x9e3779b97f4a7c15;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::string LoadCounts::ToText() const {
  std::string text =
      fmt::format("puts {} (ok {}) gets {} (hits {} misses {}) wrong {} stale {} slowest {} ms",
                  puts, put_ok, gets, hits, misses, wrong_bytes, stale,
                  std::chrono::duration_cast<std::chrono::milliseconds>(slowest).count());
  if (!first_stale.empty()) text += " (" + first_stale + ")";
  for (const auto& [code, count] : errors) text += fmt::format(" {} {}", CodeName(code), count);
  return text;
}

VerifiedLoad::VerifiedLoad(Client* client, const Options& options)
    : client_(client),
      options_(options),
      name_space_(client->name_space().name),
      histories_(options.keys) {
  const auto threads = static_cast<uint64_t>(options.threads);
  EMS_CHECK(options.keys >= threads, "{} keys for {} threads", options.keys, threads);
  for (uint64_t i = 0; i < threads; ++i) {
    const uint64_t seed = options.seed * 1000 + i;
    threads_.emplace_back("load-" + std::to_string(i), [this, i, seed] { Run(i, seed); });
  }
}

void VerifiedLoad::Run(uint64_t thread, uint64_t seed) {
  uint64_t state = seed;
  while (!stop_.IsSet()) {
    const uint64_t random = NextRandom(&state);
    if (random % 3 == 0) {
      PutOne(thread, NextRandom(&state));
    } else {
      GetOne(NextRandom(&state));
    }
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
}

void VerifiedLoad::PutOne(uint64_t thread, uint64_t random) {
  const auto threads = static_cast<uint64_t>(options_.threads);
  const uint64_t number = random % (options_.keys / threads) * threads + thread;
  const std::string key = KeyOf(number);
  const uint64_t put_id = next_put_id_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t size = 8 + (random >> 20) % (options_.value_bytes_max - 7);
  const std::string value = MakeValue(name_space_, key, put_id, size);
  PutOptions options;
  options.overwrite = true;
  options.timeout = options_.timeout;
  const TimePoint start = Clock::System().Now();
  const Status status = client_->Put(key, std::string_view(value), options);
  {
    auto history = histories_[number].Lock();
    history->OnPut(put_id, false, status.ok());
  }
  Account(true, Clock::System().Now() - start, status);
}

void VerifiedLoad::GetOne(uint64_t random) {
  const uint64_t number = random % options_.keys;
  const std::string key = KeyOf(number);
  GetOptions options;
  options.timeout = options_.timeout;
  auto history = histories_[number].Lock();
  const uint64_t oldest = history->oldest();
  history.Unlock();
  const TimePoint start = Clock::System().Now();
  Client* const reader = options_.reader != nullptr ? options_.reader : client_;
  const Result<std::string> value = reader->Get(key, options);
  Account(false, Clock::System().Now() - start, value.status());
  if (value.ok()) Judge(key, *value, oldest);
}

// `oldest`: the put id of what was acknowledged last when the Get began.
void VerifiedLoad::Judge(const std::string& key, std::string_view value, uint64_t oldest) {
  const std::optional<uint64_t> put_id = VerifyValue(name_space_, key, value);
  if (put_id && *put_id >= oldest) return;
  auto counts = counts_.Lock();
  if (!put_id) {
    ++counts->wrong_bytes;
  } else if (++counts->stale == 1) {
    counts->first_stale =
        fmt::format("{}: put {} was read after {} was acknowledged", key, *put_id, oldest);
  }
}

void VerifiedLoad::Account(bool is_put, Duration took, const Status& status) {
  auto counts = counts_.Lock();
  (is_put ? counts->puts : counts->gets) += 1;
  counts->slowest = std::max(counts->slowest, took);
  if (status.ok()) {
    ++(is_put ? counts->put_ok : counts->hits);
  } else if (!is_put && status.code() == StatusCode::kNotFound) {
    ++counts->misses;
  } else {
    ++counts->errors[status.code()];
  }
}

LoadCounts VerifiedLoad::Take() {
  auto counts = counts_.Lock();
  return std::exchange(*counts, LoadCounts());
}

bool VerifiedLoad::WaitForCalls(uint64_t calls, Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  const uint64_t goal = calls_.load(std::memory_order_relaxed) + calls;
  StopFlag never_set;
  while (calls_.load(std::memory_order_relaxed) < goal) {
    if (deadline.Passed()) return false;
    never_set.WaitFor(std::chrono::milliseconds(5));
  }
  return true;
}

void VerifiedLoad::Stop() {
  stop_.Set();
  threads_.clear();
}

}  // namespace ems::testing
