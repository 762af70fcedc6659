#include "tests/fault/crashtest/crash_load.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr seconds kRest{1};    // ssd/record_reader.cc
constexpr int kRestsMax = 10;  // of one check

}  // namespace

std::vector<std::string> NextQuiet(uint64_t* life, bool written) {
  constexpr std::array kQuietMs = {5, 50, 2000, 0};
  const size_t among = written ? 2 : kQuietMs.size();
  return {"--set", fmt::format("ssd.overwrite_quiet_ms={}", kQuietMs[(*life)++ % among])};
}

uint64_t QuietWrites(Client* client, const std::string& server) {
  const auto text = client->ServerStats(server, seconds(1));
  if (!text.ok()) return 0;
  return nlohmann::json::parse(*text)["ssd"]["quiet_objects"];
}

CrashLoad::CrashLoad(const Options& options, std::function<void(const std::string&)> complain)
    : options_(options), complain_(std::move(complain)), histories_(options.keys) {}

void CrashLoad::Start(Client* client, uint64_t seed) {
  client_ = client;
  stop_.emplace();
  std::mt19937_64 seeds(seed);
  for (int t = 0; t < options_.threads; ++t) {
    threads_.emplace_back("crash-load", [this, t, own = seeds()] {
      std::mt19937_64 random(own);
      while (!stop_->IsSet()) CallOnce(static_cast<uint64_t>(t), random);
    });
  }
}

void CrashLoad::Stop() {
  if (stop_) stop_->Set();
  threads_.clear();
}

uint64_t CrashLoad::KeyOf(uint64_t thread, std::mt19937_64& random) const {
  const auto threads = static_cast<uint64_t>(options_.threads);
  return random() % (options_.keys / threads) * threads + thread;
}

void CrashLoad::CallOnce(uint64_t thread, std::mt19937_64& random) {
  const uint64_t number = KeyOf(thread, random);
  const std::string key = "key-" + std::to_string(number);
  const uint64_t dice = random() % 10;
  calls_.fetch_add(1);
  if (dice < 5) {
    PutOnce(number, key, random);
  } else if (dice < 6) {
    const Status removed = client_->Remove(key);
    auto history = histories_[number].Lock();
    history->OnRemove(removed.ok() || removed.code() == StatusCode::kNotFound);
  } else {
    GetOnce(number, key, true);
  }
}

void CrashLoad::PutOnce(uint64_t number, const std::string& key, std::mt19937_64& random) {
  const uint64_t put_id = next_put_id_.fetch_add(1);
  const size_t sizes[] = {8, 900, 5000, 70'000, 200'000};
  const size_t bytes = sizes[random() % std::size(sizes)] + random() % 100;
  const std::string value = MakeValue(options_.name_space, key, put_id, bytes);
  PutOptions put;
  put.overwrite = true;
  put.durability = random() % 2 == 0 ? Durability::kSsd : Durability::kDram;
  const Status status = client_->Put(key, std::string_view(value), put);
  const bool durable = put.durability == Durability::kSsd && !options_.may_lose_durable;
  auto history = histories_[number].Lock();
  history->OnPut(put_id, durable, status.ok());
}

// Only the key's own thread, or everybody when nothing else goes on, may compare with its
// history.
bool CrashLoad::GetOnce(uint64_t number, const std::string& key, bool may_fail) {
  const Result<std::string> value = client_->Get(key);
  uint64_t found = KeyHistory::kMiss;
  if (value.ok()) {
    const std::optional<uint64_t> id = VerifyValue(options_.name_space, key, *value);
    if (!id) {
      complain_(fmt::format("{}/{}: {} bytes that are no whole value of it", options_.name_space,
                            key, value->size()));
      return true;
    }
    found = *id;
  } else if (value.status().code() != StatusCode::kNotFound) {
    if (!may_fail)
      complain_(fmt::format("{}/{}: {}", options_.name_space, key, ToString(value.status())));
    return false;
  }
  auto history = histories_[number].Lock();
  const bool allowed = history->Allows(found, options_.may_be_evicted);
  const std::string text = allowed ? "" : history->ToText();
  history.Unlock();
  if (!allowed) {
    if (found == KeyHistory::kMiss && WaitWhileTierRests()) return GetOnce(number, key, may_fail);
    complain_(
        fmt::format("{}/{}: found {}, but it must be {}", options_.name_space, key, found, text));
  }
  return found != KeyHistory::kMiss;
}

// A disk that answers slowly is left alone for a moment, and what lies on it is a miss until
// then: nothing is lost by that. False: no read has been refused since it was asked last.
bool CrashLoad::WaitWhileTierRests() {
  if (server_.empty() || rests_ == kRestsMax) return false;
  const auto text = client_->ServerStats(server_, seconds(5));
  if (!text.ok()) return false;
  const auto stats = nlohmann::json::parse(*text);
  const uint64_t refused = stats["ssd"]["reads_refused"];
  if (std::exchange(refused_, refused) == refused) return false;
  ++rests_;
  StopFlag never;
  never.WaitFor(kRest);
  return true;
}

CrashLoad::Checked CrashLoad::Check(Client* client, const std::string& server, bool may_die) {
  client_ = client;
  server_ = server;
  refused_ = 0;
  rests_ = 0;
  Checked checked;
  for (uint64_t i = 0; i < options_.keys; ++i) {
    ++checked.keys;
    if (GetOnce(i, "key-" + std::to_string(i), may_die)) ++checked.hits;
  }
  server_.clear();
  return checked;
}

}  // namespace ems::testing
