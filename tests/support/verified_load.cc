#include "tests/support/verified_load.h"

#include <utility>

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
      fmt::format("puts {} (ok {}) gets {} (hits {} misses {}) wrong {} slowest {} ms", puts,
                  put_ok, gets, hits, misses, wrong_bytes,
                  std::chrono::duration_cast<std::chrono::milliseconds>(slowest).count());
  for (const auto& [code, count] : errors) text += fmt::format(" {} {}", CodeName(code), count);
  return text;
}

VerifiedLoad::VerifiedLoad(Client* client, const Options& options)
    : client_(client), options_(options), name_space_(client->name_space().name) {
  for (int i = 0; i < options.threads; ++i) {
    const uint64_t seed = options.seed * 1000 + static_cast<uint64_t>(i);
    threads_.emplace_back("load-" + std::to_string(i), [this, seed] { Run(seed); });
  }
}

void VerifiedLoad::Run(uint64_t thread_seed) {
  uint64_t state = thread_seed;
  while (!stop_.IsSet()) {
    const uint64_t random = NextRandom(&state);
    if (random % 3 == 0) {
      PutOne(NextRandom(&state));
    } else {
      GetOne(NextRandom(&state));
    }
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
}

void VerifiedLoad::PutOne(uint64_t random) {
  const std::string key = KeyOf(random % options_.keys);
  const uint64_t put_id = next_put_id_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t size = 8 + (random >> 20) % (options_.value_bytes_max - 7);
  const std::string value = MakeValue(name_space_, key, put_id, size);
  PutOptions options;
  options.overwrite = true;
  options.timeout = options_.timeout;
  const TimePoint start = Clock::System().Now();
  const Status status = client_->Put(key, std::string_view(value), options);
  Account(true, Clock::System().Now() - start, status, false);
}

void VerifiedLoad::GetOne(uint64_t random) {
  const std::string key = KeyOf(random % options_.keys);
  GetOptions options;
  options.timeout = options_.timeout;
  const TimePoint start = Clock::System().Now();
  const Result<std::string> value = client_->Get(key, options);
  const Duration took = Clock::System().Now() - start;
  Account(false, took, value.status(), value.ok() && !VerifyValue(name_space_, key, *value));
}

void VerifiedLoad::Account(bool is_put, Duration took, const Status& status, bool wrong) {
  auto counts = counts_.Lock();
  (is_put ? counts->puts : counts->gets) += 1;
  counts->slowest = std::max(counts->slowest, took);
  if (wrong) ++counts->wrong_bytes;
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
