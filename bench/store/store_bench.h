#pragma once
// Measures Put, Exists and Get of one value size against a running cluster, round by round, each
// round beside a round of the raw socket, so that whatever disturbs the machine disturbs both.
//
// Invariant: only calls are timed; making values and checking them happens between the rounds.
// Bound: 2 × keys × value bytes of memory here, as much in the raw socket's child, keys × value
// bytes in the servers (a round overwrites the values of the one before).
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/figures.h"
#include "bench/harness/latency_recorder.h"
#include "bench/harness/raw_socket.h"
#include "bench/harness/report.h"
#include "mp_sdk/client.h"

namespace ems::bench {

enum class Section { kStore, kLookup, kLoad };
std::string_view SectionName(Section section);

struct StoreSettings {
  uint64_t keys = 64;          // a round
  uint64_t rounds = 20;        // measured
  uint64_t warmup_rounds = 2;  // not measured
  uint64_t batch = 1;          // keys a call; 1: the single calls, more: the Multi calls
  uint64_t threads = 1;        // callers at once
  double hit_rate = 0.75;      // share of the keys of a Lookup that were stored
  bool verify = true;
  // All keys go to one server, so that one caller uses one connection, as the raw socket does.
  bool one_server = false;
};

// Rounds of one kind.
struct RoundSeries {
  LatencyRecorder calls;
  std::vector<double> wall_ms;  // one a round
  std::vector<double> p50_ms;   // one a round
  void AddRound(const LatencyRecorder& round_calls, Duration wall);
};

struct SectionResult {
  Section section = Section::kStore;
  uint64_t value_bytes = 0;
  uint64_t keys = 0;  // a round
  uint64_t batch = 1;
  RoundSeries ems;
  RoundSeries raw;                        // empty for Lookup and without a raw socket
  uint64_t attempted = 0, succeeded = 0;  // keys
  // Lookup and Load, in all rounds, the warm-up too
  uint64_t looked_up = 0, expected_hits = 0, hits = 0;
  uint64_t wrong_bytes =
      0;  // values that were not what had been stored, and keys found that never were
  double cpu_seconds_per_gb = 0;  // 0: no payload
  double cpu_client_seconds = 0, cpu_server_seconds = 0;
  std::map<std::string, uint64_t> errors;  // by text; 16 kinds at most

  double GbPerSecondOf(const RoundSeries& rounds) const;  // from the median round
  double gb_per_second() const;                           // of EMS; 0: no payload
  double ops_per_second() const;
  double ms_per_key() const;
  // How EMS compares with the raw socket: medians over paired rounds; 0 without one.
  double throughput_vs_raw() const { return MedianRatio(raw.wall_ms, ems.wall_ms); }
  double p50_vs_raw() const { return MedianRatio(ems.p50_ms, raw.p50_ms); }
};

// Threading: one thread.
class StoreBench final {
 public:
  // `raw` may be null. `on_round` is called after each round. All must outlive this object.
  StoreBench(Client* client, std::string name_space, StoreSettings settings, RawSocket* raw,
             CpuMeter cpu, std::function<void()> on_round);

  // Makes keys and values of one size and stores them; tries for 10 s, as servers may hear of a new
  // namespace a moment late. Errors: what the last Put said
  Status Prepare(uint64_t value_bytes);
  // Needs Prepare. Errors: kInternal  the raw socket broke    kCancelled  interrupted
  Result<SectionResult> Run(Section section);

  struct ExistsTimes {
    double single_ms = 0;  // one Exists, p50
    double multi_ms = 0;   // one MultiExists of `keys` keys, median
    uint64_t found = 0;    // of the keys, in the worst round
  };
  // MultiExists of many keys beside single ones. Errors: of storing the keys, and of the calls
  Result<ExistsTimes> MeasureMultiExists(uint64_t keys, uint64_t rounds);

 private:
  // Handles keys [first, first + count); returns how many went well.
  using Call = std::function<uint64_t(uint64_t first, uint64_t count)>;
  struct RoundTime {
    LatencyRecorder calls;
    Duration wall{0};
    uint64_t succeeded = 0;
  };

  RoundTime RunRound(uint64_t batch, uint64_t threads, const Call& call) const;
  Status RunEmsRound(Section section, bool measured, SectionResult* result);
  Status RunRawRound(Section section, bool measured, SectionResult* result);
  uint64_t CallStore(uint64_t first, uint64_t count);
  uint64_t CallLookup(uint64_t first, uint64_t count);
  uint64_t CallLoad(uint64_t first, uint64_t count);
  bool Count(uint64_t key, const Status& status);

  uint64_t ValueId(std::string_view key, uint64_t put_id) const;
  std::string_view RouteKey() const { return settings_.one_server ? "bench" : ""; }
  void FillValues();
  void CheckLookup(SectionResult* result) const;
  void CheckLoad(SectionResult* result) const;
  uint64_t StoredKeys() const;  // of a Lookup round
  MutableBytes Value(uint64_t i) { return {values_.data() + i * stride_, value_bytes_}; }
  MutableBytes Into(uint64_t i) { return {into_.data() + i * stride_, value_bytes_}; }
  ConstBytes Into(uint64_t i) const { return {into_.data() + i * stride_, value_bytes_}; }

  enum class Outcome : uint8_t { kFailed, kMiss, kOk };

  Client* const client_;
  const std::string name_space_;
  const StoreSettings settings_;
  RawSocket* const raw_;
  CpuMeter cpu_;
  const std::function<void()> on_round_;

  uint64_t value_bytes_ = 0;
  uint64_t stride_ = 0;
  uint64_t put_id_ = 0;  // of the values that are stored
  std::vector<std::string> keys_, lookup_keys_;
  std::vector<std::byte> values_, into_;
  std::vector<PutItem> put_items_;
  std::vector<GetItem> get_items_;
  std::vector<KeyItem> lookup_items_;
  // By key, of the round that ran last; each caller thread writes its own keys.
  std::vector<Outcome> outcomes_;
  std::vector<Status> failures_;
};

}  // namespace ems::bench
