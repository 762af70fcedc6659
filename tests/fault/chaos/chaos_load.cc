#include "tests/fault/chaos/chaos_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kNamespace = "default";
constexpr std::array<Duration, 5> kTimeouts = {milliseconds(300), milliseconds(300), seconds(1),
                                               seconds(1), seconds(4)};
constexpr std::array<size_t, 4> kBytes = {8, 900, 5000, 70'000};
constexpr size_t kBytesMore = 100;
constexpr size_t kBatchMost = 6;
constexpr milliseconds kPause{2};  // the machine is for the servers as well

std::string KeyName(uint64_t key) { return "key-" + std::to_string(key); }

Duration SomeTimeout(std::mt19937_64* random) { return kTimeouts[(*random)() % kTimeouts.size()]; }

// What a call may end with while anything is broken.
bool IsExpected(const Status& status) {
  constexpr std::array kExpected = {StatusCode::kOk,
                                    StatusCode::kNotFound,
                                    StatusCode::kUnavailable,
                                    StatusCode::kAborted,
                                    StatusCode::kDeadlineExceeded,
                                    StatusCode::kDataLoss,
                                    StatusCode::kFailedPrecondition,
                                    StatusCode::kResourceExhausted};
  return std::find(kExpected.begin(), kExpected.end(), status.code()) != kExpected.end();
}

// Whether a change may have been made (mp_sdk/client.h).
bool OutcomeUnknown(const Status& status) {
  return status.code() == StatusCode::kAborted || status.code() == StatusCode::kDeadlineExceeded;
}

}  // namespace

ChaosLoad::ChaosLoad(const Options& options, std::vector<Named> clients,
                     std::function<void(const std::string&)> complain)
    : options_(options),
      clients_(std::move(clients)),
      complain_(std::move(complain)),
      records_(options.keys) {}

void ChaosLoad::Start(uint64_t seed, Duration pause) {
  pause_ = pause;
  stop_.emplace();
  Random seeds(seed);
  for (const Named& who : clients_) {
    for (int t = 0; t < options_.threads; ++t) {
      running_.fetch_add(1);
      threads_.emplace_back("chaos-load", [this, &who, own = seeds()] { Run(who, own); });
    }
  }
}

void ChaosLoad::Run(const Named& who, uint64_t seed) {
  Random random(seed);
  while (!stop_->WaitFor(kPause)) CallOnce(who, &random);
  running_.fetch_sub(1);
}

bool ChaosLoad::Stop() {
  if (stop_) stop_->Set();
  const Duration most = kTimeouts.back() + options_.late_max;
  if (!Eventually([this] { return running_.load() == 0; }, 2 * most)) return false;
  threads_.clear();
  return true;
}

std::vector<uint64_t> ChaosLoad::SomeKeys(size_t most, Random* random) const {
  std::set<uint64_t> keys;
  const size_t count = 1 + (*random)() % most;
  while (keys.size() < count) keys.insert((*random)() % options_.keys);
  return {keys.begin(), keys.end()};
}

void ChaosLoad::CallOnce(const Named& who, Random* random) {
  const uint64_t dice = (*random)() % 20;
  if (dice < 6) {
    (void)PutOne(who, (*random)() % options_.keys, SomeTimeout(random), random);
  } else if (dice < 7) {
    PutMany(who, SomeKeys(kBatchMost, random), random);
  } else if (dice < 9) {
    RemoveOnce(who, SomeKeys(dice == 7 ? 1 : 3, random), random);
  } else if (dice < 12) {
    GetMany(who, SomeKeys(kBatchMost, random), random);
  } else if (dice < 14) {
    ViewOnce(who, (*random)() % options_.keys, random);
  } else {
    GetOnce(who, (*random)() % options_.keys, SomeTimeout(random));
  }
}

TimedCall ChaosLoad::Ended(const Named& who, TimePoint begun, Duration timeout, const char* what) {
  const TimePoint now = Clock::System().Now();
  const Duration late = now - begun - timeout;
  {
    auto counts = counts_.Lock();
    ++counts->calls;
    counts->latest = std::max(counts->latest, late);
  }
  if (late > options_.late_max) {
    complain_(fmt::format("a {} of {} ended {} ms after its deadline", what, who.name,
                          late / milliseconds(1)));
  }
  return {.begun = begun, .ended = now, .by = who.name};
}

ChaosLoad::Prepared ChaosLoad::Prepare(uint64_t key, Random* random) {
  Prepared put{.key = key, .put_id = next_put_id_.fetch_add(1), .name = KeyName(key), .value = {}};
  const size_t bytes = kBytes[(*random)() % kBytes.size()] + (*random)() % kBytesMore;
  put.value = MakeValue(kNamespace, put.name, put.put_id, bytes);
  auto record = records_[key].Lock();
  record->BeginPut(put.put_id, Clock::System().Now());
  return put;
}

Status ChaosLoad::PutOne(const Named& who, uint64_t key, Duration timeout, Random* random) {
  const PutOptions options{
      .overwrite = true,
      .durability = (*random)() % 4 == 0 ? Durability::kSsd : Durability::kDram,
      .timeout = timeout};
  const Prepared put = Prepare(key, random);
  const TimePoint begun = Clock::System().Now();
  const Status status = who.client->Put(put.name, std::string_view(put.value), options);
  OnPut(put, Ended(who, begun, timeout, "Put"), timeout, status);
  return status;
}

void ChaosLoad::PutMany(const Named& who, const std::vector<uint64_t>& keys, Random* random) {
  const PutOptions options{.overwrite = true, .timeout = SomeTimeout(random)};
  std::vector<Prepared> puts;
  std::vector<PutItem> items;
  puts.reserve(keys.size());
  for (const uint64_t key : keys) {
    puts.push_back(Prepare(key, random));
    items.push_back({.key = puts.back().name, .value = std::string_view(puts.back().value)});
  }
  const TimePoint begun = Clock::System().Now();
  const std::vector<Status> statuses = who.client->MultiPut(items, options);
  const TimedCall call = Ended(who, begun, options.timeout, "MultiPut");
  for (size_t i = 0; i < puts.size(); ++i) OnPut(puts[i], call, options.timeout, statuses.at(i));
}

void ChaosLoad::OnPut(const Prepared& put, const TimedCall& call, Duration timeout,
                      const Status& status) {
  if (!IsExpected(status) || status.code() == StatusCode::kNotFound)
    complain_(fmt::format("a Put of {} by {}: {}", put.name, call.by, ToString(status)));
  const bool unknown = OutcomeUnknown(status);
  TimedCall effect = call;
  if (unknown)
    effect.ended = std::max(call.ended, call.begun + timeout) + pause_ + options_.effect_max;
  {
    auto record = records_[put.key].Lock();
    record->EndPut(put.put_id, effect,
                   status.ok() ? PutOutcome::kDone
                   : unknown   ? PutOutcome::kUnknown
                               : PutOutcome::kRefused);
  }
  auto counts = counts_.Lock();
  ++(status.ok() ? counts->acknowledged : unknown ? counts->unknown : counts->refused);
}

void ChaosLoad::RemoveOnce(const Named& who, const std::vector<uint64_t>& keys, Random* random) {
  const GetOptions options{.timeout = SomeTimeout(random)};
  std::vector<std::string> names;
  std::vector<KeyItem> items;
  names.reserve(keys.size());
  for (const uint64_t key : keys) {
    names.push_back(KeyName(key));
    items.push_back({.key = names.back()});
  }
  const TimePoint begun = Clock::System().Now();
  const std::vector<Status> statuses = keys.size() == 1
                                           ? std::vector{who.client->Remove(names[0], options)}
                                           : who.client->MultiRemove(items, options);
  const TimedCall call = Ended(who, begun, options.timeout, "Remove");
  for (size_t i = 0; i < keys.size(); ++i) OnRemove(keys[i], call, statuses.at(i));
}

void ChaosLoad::OnRemove(uint64_t key, const TimedCall& call, const Status& status) {
  if (!IsExpected(status))
    complain_(fmt::format("a Remove of {} by {}: {}", KeyName(key), call.by, ToString(status)));
  const bool done = status.ok() || status.code() == StatusCode::kNotFound;
  if (done) {
    auto record = records_[key].Lock();
    record->OnRemove(call);
  }
  auto counts = counts_.Lock();
  ++(done ? counts->acknowledged : OutcomeUnknown(status) ? counts->unknown : counts->refused);
}

void ChaosLoad::GetOnce(const Named& who, uint64_t key, Duration timeout) {
  const TimePoint begun = Clock::System().Now();
  const Result<std::string> value = who.client->Get(KeyName(key), {.timeout = timeout});
  const TimedCall call = Ended(who, begun, timeout, "Get");
  OnRead(key, call, value.status(), value.ok() ? std::string_view(*value) : std::string_view());
}

// The bytes stay as they are for as long as the view is there.
void ChaosLoad::ViewOnce(const Named& who, uint64_t key, Random* random) {
  const Duration timeout = SomeTimeout(random);
  const TimePoint begun = Clock::System().Now();
  const Result<ObjectView> view = who.client->GetView(KeyName(key), {.timeout = timeout});
  const TimedCall call = Ended(who, begun, timeout, "GetView");
  if (view.ok() && (*random)() % 4 == 0) (void)stop_->WaitFor(milliseconds((*random)() % 200));
  OnRead(key, call, view.status(), view.ok() ? AsText(view->bytes()) : std::string_view());
}

void ChaosLoad::GetMany(const Named& who, const std::vector<uint64_t>& keys, Random* random) {
  const GetOptions options{.timeout = SomeTimeout(random)};
  std::vector<std::string> names, buffers;
  std::vector<GetItem> items;
  names.reserve(keys.size());
  buffers.reserve(keys.size());
  for (const uint64_t key : keys) {
    names.push_back(KeyName(key));
    buffers.emplace_back(kBytes.back() + kBytesMore, '\0');
    items.push_back({.key = names.back(),
                     .into = MutableBytes(std::as_writable_bytes(std::span(buffers.back())))});
  }
  const TimePoint begun = Clock::System().Now();
  const std::vector<Result<uint64_t>> lengths = who.client->MultiGet(items, options);
  const TimedCall call = Ended(who, begun, options.timeout, "MultiGet");
  for (size_t i = 0; i < keys.size(); ++i) {
    const Result<uint64_t>& length = lengths.at(i);
    const std::string_view value =
        length.ok() ? std::string_view(buffers[i]).substr(0, *length) : std::string_view();
    OnRead(keys[i], call, length.status(), value);
  }
}

void ChaosLoad::OnRead(uint64_t key, const TimedCall& call, const Status& status,
                       std::string_view value) {
  if (!IsExpected(status))
    complain_(fmt::format("a read of {} by {}: {}", KeyName(key), call.by, ToString(status)));
  if (status.ok()) {
    const std::optional<uint64_t> put_id = VerifyValue(kNamespace, KeyName(key), value);
    if (put_id) {
      auto record = records_[key].Lock();
      record->OnRead(*put_id, call);
    } else {
      complain_(fmt::format("{} read {} bytes that are no whole value of {}", call.by, value.size(),
                            KeyName(key)));
    }
  }
  auto counts = counts_.Lock();
  const bool miss = status.code() == StatusCode::kNotFound;
  ++(status.ok() ? counts->hits : miss ? counts->misses : counts->errors);
}

bool ChaosLoad::PutAll(Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  Random random(next_put_id_.load());
  for (const Named& who : clients_) {
    for (uint64_t key = 0; key < options_.keys; ++key) {
      const auto succeeds = [&] { return PutOne(who, key, seconds(1), &random).ok(); };
      if (!Eventually(succeeds, deadline.Remaining())) return false;
    }
  }
  return true;
}

void ChaosLoad::ReadAll() {
  for (const Named& who : clients_)
    for (uint64_t key = 0; key < options_.keys; ++key) GetOnce(who, key, seconds(4));
}

std::vector<std::string> ChaosLoad::Check(TimePoint origin) {
  std::vector<std::string> unexplained;
  for (uint64_t key = 0; key < options_.keys; ++key) {
    auto record = records_[key].Lock();
    for (const std::string& text : record->Check(origin))
      unexplained.push_back(KeyName(key) + ": " + text);
  }
  return unexplained;
}

ChaosCounts ChaosLoad::counts() {
  auto counts = counts_.Lock();
  return *counts;
}

}  // namespace ems::testing
