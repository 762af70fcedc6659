#pragma once
// The result of a bench command: text for people, JSON for scripts, gates, one exit code.
//
//   Report report("trace", json_path, GateSet::kAll);
//   report.Print(table.Render());       // figure_table.h, tools/terminal.h
//   report.json()["hit_rate"] = 0.36;   // include <nlohmann/json.hpp> in the .cc
//   report.AtLeast(kExact, "hit_rate", 0.36, 0.35);
//   return report.Finish();
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "bench/harness/run_record.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

// Exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

enum class GateOp { kAtLeast, kAtMost };  // ">=", "<="

// The conditions on which a gate's figure depends.
enum class GateKind {
  kExact,  // a count, bytes, a hit rate, a comparison of values: holds on any machine, busy or not
  kTimed,  // a time, a rate, CPU seconds or a ratio of these: needs an idle machine
};
using enum GateKind;
// The gates that a run checks.
enum class GateSet { kNone, kExact, kAll };

// "gate get_1MiB_vs_raw 0.913 >= 0.85 pass". A value that is not a number fails.
struct GateResult {
  std::string name;
  double value = 0;
  GateOp op = GateOp::kAtLeast;
  double bound = 0;
  bool passed() const;
  std::string Line() const;
};

// Threading: one thread.
class Report final {
 public:
  // `json_path` empty: no JSON is written.
  Report(std::string command, std::string json_path, GateSet gates = GateSet::kNone);
  ~Report();

  // The document that Finish writes; starts with {"command": …}.
  nlohmann::ordered_json& json();
  // Text for people, to standard output, as it is.
  void Print(std::string_view text);
  // Checks a figure when its kind is among the run's gates: prints its line, keeps it in the
  // document's "gates", and makes the command fail when it does not hold. Else nothing.
  void Gate(GateKind kind, std::string name, double value, GateOp op, double bound);
  void AtLeast(GateKind kind, std::string name, double value, double bound) {
    Gate(kind, std::move(name), value, GateOp::kAtLeast, bound);
  }
  void AtMost(GateKind kind, std::string name, double value, double bound) {
    Gate(kind, std::move(name), value, GateOp::kAtMost, bound);
  }
  void AtMost(GateKind kind, std::string name, uint64_t count, uint64_t bound) {
    AtMost(kind, std::move(name), static_cast<double>(count), static_cast<double>(bound));
  }
  // A count of what must not happen in any run: a gate where exact gates are checked; elsewhere the
  // command fails when it is above zero.
  void MustBeZero(const std::string& name, uint64_t count);
  // The same as Gate for a bound that a flag of its own asks for: always checked.
  void Expect(std::string name, double value, GateOp op, double bound);
  bool Wants(GateKind kind) const;
  // Something went wrong that no gate names: says so on standard error and makes the command fail.
  // The first 20 are printed.
  void Fail(std::string_view what);
  bool failed() const { return failures_ > 0; }
  // Prints on what the run took place (RunRecord), and writes the document with that ("run") and
  // "passed" beside its name and renames it. 0, or 1 when a gate or
  // anything else failed, or when gates were asked for and none was checked.
  int Finish();

 private:
  const std::string command_;
  const std::string json_path_;
  const GateSet gates_;
  RunRecord record_;
  std::unique_ptr<nlohmann::ordered_json> json_;
  uint64_t gates_checked_ = 0;
  uint64_t failures_ = 0;
};

// {"count": …, "avg_ms": …, "min_ms": …, "max_ms": …, "p25_ms": …, "p50_ms": …, "p75_ms": …,
// "p99_ms": …}
nlohmann::ordered_json LatencyJson(const LatencyRecorder& latencies);

// CPU time used by this process and, when their pids are known, by servers, between Start and Stop.
// Threading: one thread.
class CpuMeter final {
 public:
  // Errors: kNotFound  a pid is not a process here
  static Result<CpuMeter> Make(std::vector<pid_t> server_pids);
  void Start();
  void Stop();
  void Reset() { client_ = servers_ = Duration{0}; }
  Duration client() const { return client_; }
  // Zero when no pids are known.
  Duration servers() const { return servers_; }
  bool knows_servers() const { return !pids_.empty(); }
  // CPU seconds, client and servers together, for each 1e9 bytes; 0 when there were none.
  double SecondsPerGb(uint64_t bytes) const;

 private:
  explicit CpuMeter(std::vector<pid_t> pids) : pids_(std::move(pids)) {}
  Duration ServersNow() const;
  std::vector<pid_t> pids_;
  Duration client_{0}, servers_{0};
  Duration client_start_{0}, servers_start_{0};
};

// User and system time of another process, to the nanosecond (its CPU clock).
// Errors: kNotFound  no such process
Result<Duration> CpuTimeOf(pid_t pid);

// A file with this text, written beside its name and renamed. Errors: kInternal  it cannot be
Status WriteWhole(const std::string& path, std::string_view text);

}  // namespace ems::bench
