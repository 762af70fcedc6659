#include "tests/fault/crashtest/crash_run.h"

#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "tests/support/cluster.h"
#include "tests/support/key_history.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr std::string_view kNamespace = "default";
constexpr uint64_t kCapacityMiB = 256;
constexpr uint64_t kTightMiB = 28;  // 16 for the index, 12 regions
constexpr size_t kBrokenMax = 20;
constexpr seconds kRest{1};    // ssd/record_reader.cc
constexpr int kRestsMax = 10;  // of one check
constexpr std::array kPlaces = {"put.after_publish",    "ssd.before_write", "ssd.after_write",
                                "ssd.before_sync",      "ssd.after_sync",   "ssd.before_commit",
                                "ssd.after_commit",     "ssd.before_begin", "ssd.reclaim",
                                "fetch.before_publish", "remove.after_ssd", "ssd.reclaimed"};

uint64_t DiskBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::recursive_directory_iterator(); at.increment(error)) {
    if (at->is_regular_file(error)) bytes += at->file_size(error);
  }
  return bytes;
}

}  // namespace

// Threading: one thread drives, the load's threads share what is Guarded.
class CrashRun final {
 public:
  explicit CrashRun(const CrashOptions& options)
      : options_(options), random_(options.seed), histories_(options.keys) {}

  Result<CrashReport> Run() {
    EMS_RETURN_IF_ERROR(Start());
    while (report_.kills < options_.kills) {
      EMS_RETURN_IF_ERROR(KillOnce());
      EMS_RETURN_IF_ERROR(CheckAll());
    }
    report_.calls = calls_.load();
    auto broken = broken_.Lock();
    report_.broken = *broken;
    return report_;
  }

 private:
  struct Key {
    Guarded<KeyHistory> history;
  };

  Status Start() {
    const uint64_t capacity = options_.tight ? kTightMiB : kCapacityMiB;
    Cluster::Options wanted;
    wanted.servers = 1;
    wanted.controller_flags = {"--set", "damping_ms=0", "--set", "settle_ms=10"};
    wanted.server_flags = {"--set", fmt::format("ssd.capacity_bytes={}MiB", capacity),
                           "--set", "ssd.region_bytes=1MiB",
                           "--set", "dram.bytes=64MiB",
                           "--set", "ssd.dirty_bytes_max=16MiB"};
    EMS_ASSIGN_OR_RETURN(cluster_, Cluster::Start(wanted));
    if (!options_.places.empty()) {
      cluster_->server(0).Kill();
      EMS_RETURN_IF_ERROR(StartArmed());
    }
    return Connect();
  }

  Status Connect() {
    client_.reset();
    EMS_ASSIGN_OR_RETURN(client_, cluster_->Connect(TransportChoice::kAuto, seconds(2)));
    return OkStatus();
  }

  // Load until the server dies, at a fail point or because it is killed; then a new start.
  Status KillOnce() {
    StopFlag stop;
    {
      std::vector<Thread> threads;
      threads.reserve(static_cast<size_t>(options_.threads));
      for (int t = 0; t < options_.threads; ++t) {
        threads.emplace_back("crash-load", [this, t, &stop, seed = random_()] {
          std::mt19937_64 random(seed);
          while (!stop.IsSet()) CallOnce(static_cast<uint64_t>(t), random);
        });
      }
      const auto span = static_cast<uint64_t>((options_.run_max - options_.run_min).count());
      const Duration run = options_.run_min + Duration(random_() % span);
      Daemon& server = cluster_->server(0);
      const Duration patience =
          options_.places.empty() ? (armed_ ? 4 * run : run) : options_.place_patience;
      const Result<int> died = server.WaitExit(patience);
      if (died.ok()) ++report_.inside;
      if (!died.ok() && !options_.places.empty()) Complain("the place was not reached");
      server.Kill();
      ++report_.kills;
      stop.Set();
    }
    return StartArmed();
  }

  // Starts the server with what is to kill it next.
  Status StartArmed() {
    while (true) {
      const std::string spec = NextKill();
      armed_ = !spec.empty();
      server_note_ = armed_ ? spec : "kill -9 from outside";
      const TimePoint begin = Clock::System().Now();
      const Status started = cluster_->RestartServer(0, ArmFlags(spec));
      if (started.ok()) {
        report_.slowest_start = std::max(report_.slowest_start, Clock::System().Now() - begin);
        break;
      }
      if (!armed_) return Prefixed(started, "after " + server_note_);
      ++report_.kills;  // it has died before it was ready: that counts, too
      ++report_.inside;
    }
    EMS_RETURN_IF_ERROR(cluster_->WaitForServers(1, seconds(20)));
    return Connect();
  }

  // Empty: from outside.
  std::string NextKill() {
    const bool chosen = !options_.places.empty();
    if (report_.kills >= options_.kills) return "";
    if (!chosen && (!options_.fail_points || random_() % 2 != 0)) return "";
    const std::string place =
        chosen ? options_.places[static_cast<size_t>(report_.kills) % options_.places.size()]
               : std::string(kPlaces[random_() % kPlaces.size()]);
    return fmt::format("{}=kill@{}", place, 1 + random_() % (chosen ? 4 : 40));
  }

  static std::vector<std::string> ArmFlags(const std::string& spec) {
    if (spec.empty()) return {};
    return {"--set", "fail_points=" + spec};
  }

  uint64_t KeyOf(uint64_t thread, std::mt19937_64& random) const {
    const auto threads = static_cast<uint64_t>(options_.threads);
    return random() % (options_.keys / threads) * threads + thread;
  }

  void CallOnce(uint64_t thread, std::mt19937_64& random) {
    const uint64_t number = KeyOf(thread, random);
    const std::string key = "key-" + std::to_string(number);
    const uint64_t dice = random() % 10;
    calls_.fetch_add(1);
    if (dice < 5) {
      PutOnce(number, key, random);
    } else if (dice < 6) {
      const Status removed = client_->Remove(key);
      auto history = histories_[number].history.Lock();
      history->OnRemove(removed.ok() || removed.code() == StatusCode::kNotFound);
    } else {
      GetOnce(number, key, true);
    }
  }

  void PutOnce(uint64_t number, const std::string& key, std::mt19937_64& random) {
    const uint64_t put_id = next_put_id_.fetch_add(1);
    const size_t sizes[] = {8, 900, 5000, 70'000, 200'000};
    const size_t bytes = sizes[random() % std::size(sizes)] + random() % 100;
    const std::string value = MakeValue(kNamespace, key, put_id, bytes);
    PutOptions put;
    put.overwrite = true;
    put.durability = random() % 2 == 0 ? Durability::kSsd : Durability::kDram;
    const Status status = client_->Put(key, std::string_view(value), put);
    auto history = histories_[number].history.Lock();
    history->OnPut(put_id, put.durability == Durability::kSsd, status.ok());
  }

  // Only the key's own thread, or everybody when nothing else goes on, may compare with its
  // history.
  bool GetOnce(uint64_t number, const std::string& key, bool running) {
    const Result<std::string> value = client_->Get(key);
    uint64_t found = KeyHistory::kMiss;
    if (value.ok()) {
      const std::optional<uint64_t> id = VerifyValue(kNamespace, key, *value);
      if (!id) {
        Complain(fmt::format("{}: {} bytes that are no whole value of it", key, value->size()));
        return true;
      }
      found = *id;
    } else if (value.status().code() != StatusCode::kNotFound) {
      if (!running) Complain(fmt::format("{}: {}", key, ToString(value.status())));
      return false;
    }
    auto history = histories_[number].history.Lock();
    const bool allowed = history->Allows(found, options_.tight);
    const std::string text = allowed ? "" : history->ToText();
    history.Unlock();
    if (!allowed) {
      if (found == KeyHistory::kMiss && checking_ && WaitWhileTierRests())
        return GetOnce(number, key, running);
      Complain(fmt::format("{}: found {}, but it must be {}", key, found, text));
    }
    return found != KeyHistory::kMiss;
  }

  // A disk that answers slowly is left alone for a moment, and what lies on it is a miss until
  // then: nothing is lost by that. False: no read has been refused since it was asked last.
  bool WaitWhileTierRests() {
    const auto text = client_->ServerStats(Cluster::ServerName(0), seconds(5));
    if (!text.ok() || rests_ == kRestsMax) return false;
    const auto stats = nlohmann::json::parse(*text);
    const uint64_t refused = stats["ssd"]["reads_refused"];
    if (std::exchange(refused_, refused) == refused) return false;
    ++rests_;
    StopFlag never;
    never.WaitFor(kRest);
    return true;
  }

  Status CheckAll() {
    refused_ = 0;
    rests_ = 0;
    checking_ = true;
    for (uint64_t i = 0; i < options_.keys; ++i) {
      ++report_.checks;
      if (GetOnce(i, "key-" + std::to_string(i), armed_)) ++report_.hits;
    }
    checking_ = false;
    const uint64_t most = (options_.tight ? kTightMiB : kCapacityMiB) * kMiB;
    const uint64_t disk = DiskBytes(cluster_->folder() + "/" + Cluster::ServerName(0) + "/ssd");
    if (disk > most) Complain(fmt::format("{} on the disk of {}", disk, most));
    return OkStatus();
  }

  void Complain(const std::string& what) {
    auto broken = broken_.Lock();
    if (broken->size() < kBrokenMax)
      broken->push_back(fmt::format("kill {} ({}): {}", report_.kills, server_note_, what));
  }

  const CrashOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  std::vector<Key> histories_;
  std::atomic<uint64_t> next_put_id_{1};
  std::atomic<uint64_t> calls_{0};
  Guarded<std::vector<std::string>> broken_;
  uint64_t refused_ = 0;  // reads, by the server that is being checked
  int rests_ = 0;
  bool checking_ = false;  // nothing else goes on
  bool armed_ = false;
  std::string server_note_ = "first start";
  CrashReport report_;
};

std::vector<std::string> CrashPlaces() { return {kPlaces.begin(), kPlaces.end()}; }

Result<CrashReport> RunCrashes(const CrashOptions& options) { return CrashRun(options).Run(); }

}  // namespace ems::testing
