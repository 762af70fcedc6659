#include "bench/harness/report.h"

#include <fmt/format.h>
#include <time.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t kFailuresShownMax = 20;
// Linux's PID_MAX_LIMIT. The number of a process's clock has no room for more and would be
// another's.
constexpr pid_t kPidMax = 1 << 22;

}  // namespace

bool GateResult::passed() const { return op == GateOp::kAtLeast ? value >= bound : value <= bound; }

std::string GateResult::Line() const {
  return fmt::format("gate {} {:.4g} {} {:.4g} {}", name, value,
                     op == GateOp::kAtLeast ? ">=" : "<=", bound, passed() ? "pass" : "fail");
}

Report::Report(std::string command, std::string json_path, GateSet gates)
    : command_(std::move(command)),
      json_path_(std::move(json_path)),
      gates_(gates),
      record_(RunRecord::Begin()),
      json_(std::make_unique<Json>(Json{{"command", command_}})) {}
Report::~Report() = default;

Json& Report::json() { return *json_; }

void Report::Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

bool Report::Wants(GateKind kind) const {
  return gates_ == GateSet::kAll || (gates_ == GateSet::kExact && kind == GateKind::kExact);
}

void Report::Gate(GateKind kind, std::string name, double value, GateOp op, double bound) {
  if (!Wants(kind)) return;
  ++gates_checked_;
  Expect(std::move(name), value, op, bound);
  (*json_)["gates"].back()["kind"] = kind == GateKind::kExact ? "exact" : "timed";
}

void Report::MustBeZero(const std::string& name, uint64_t count) {
  AtMost(kExact, name, count, 0);
  if (count > 0 && !Wants(kExact)) Fail(fmt::format("{}: {}", name, count));
}

void Report::Expect(std::string name, double value, GateOp op, double bound) {
  const GateResult gate{std::move(name), value, op, bound};
  Print(gate.Line() + "\n");
  (*json_)["gates"].push_back({{"name", gate.name},
                               {"value", value},
                               {"op", op == GateOp::kAtLeast ? ">=" : "<="},
                               {"bound", bound},
                               {"passed", gate.passed()}});
  if (!gate.passed()) ++failures_;
}

void Report::Fail(std::string_view what) {
  if (++failures_ > kFailuresShownMax) return;
  std::fprintf(stderr, "ems-bench %s: %.*s\n", command_.c_str(), static_cast<int>(what.size()),
               what.data());
}

int Report::Finish() {
  if (gates_ != GateSet::kNone && gates_checked_ == 0 && !failed())
    Fail("--gate: this run has measured nothing that has a gate of the kind asked for");
  record_.End();
  Print(record_.Text());
  (*json_)["run"] = record_.ToJson();
  (*json_)["passed"] = !failed();
  if (!json_path_.empty()) {
    const Status written = WriteWhole(json_path_, json_->dump(2) + "\n");
    if (!written.ok()) Fail(Message(written));
  }
  return failed() ? kExitFailed : kExitOk;
}

Json LatencyJson(const LatencyRecorder& latencies) {
  return {{"count", latencies.count()},           {"avg_ms", latencies.avg_ms()},
          {"min_ms", latencies.min_ms()},         {"max_ms", latencies.max_ms()},
          {"p25_ms", latencies.QuantileMs(0.25)}, {"p50_ms", latencies.p50_ms()},
          {"p75_ms", latencies.QuantileMs(0.75)}, {"p99_ms", latencies.p99_ms()}};
}

Result<CpuMeter> CpuMeter::Make(std::vector<pid_t> server_pids) {
  for (const pid_t pid : server_pids) EMS_RETURN_IF_ERROR(CpuTimeOf(pid).status());
  return CpuMeter(std::move(server_pids));
}

void CpuMeter::Start() {
  servers_start_ = ServersNow();
  client_start_ = ProcessCpuTime();
}

void CpuMeter::Stop() {
  client_ += ProcessCpuTime() - client_start_;
  servers_ += ServersNow() - servers_start_;
}

// A server that has died meanwhile counts as zero from then on.
Duration CpuMeter::ServersNow() const {
  Duration total{0};
  for (const pid_t pid : pids_) total += CpuTimeOf(pid).value_or(Duration{0});
  return total;
}

double CpuMeter::SecondsPerGb(uint64_t bytes) const {
  if (bytes == 0) return 0;
  return Seconds(client_ + servers_) / (static_cast<double>(bytes) / 1e9);
}

Result<Duration> CpuTimeOf(pid_t pid) {
  clockid_t clock = 0;
  timespec time{};
  if (pid <= 0 || pid > kPidMax || clock_getcpuclockid(pid, &clock) != 0 ||
      clock_gettime(clock, &time) != 0) {
    return Error(StatusCode::kNotFound, "process {} is not running on this machine", pid);
  }
  return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
}

Status WriteWhole(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  bool ok = file != nullptr;
  if (ok) ok = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) ok = std::fclose(file) == 0 && ok;
  if (ok) ok = std::rename(temporary.c_str(), path.c_str()) == 0;
  if (ok) return OkStatus();
  return Error(StatusCode::kInternal, "cannot write {}: {}", path,
               std::generic_category().message(errno));
}

}  // namespace ems::bench
