#include "bench/store/peer_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

constexpr const char* kEms = "EMS";
constexpr const char* kPeers[] = {"memcached", "redis"};
constexpr double kVsPeerMin = 1;

struct OpText {
  SideOp op;
  const char* key;  // of gates and JSON
  const char* title;
};
constexpr OpText kOps[] = {{SideOp::kGet, "get", "Get: EMS compares the checksum"},
                           {SideOp::kPutOrdinary, "put", "Put: EMS computes a checksum"}};

void AddRow(const SideResults& results, const TrialResult& trial, FigureTable* table) {
  table->AddRow();
  table->Figure("size", "value_bytes", trial.value_bytes, FormatBytes(trial.value_bytes));
  table->Count("callers", "callers", trial.threads);
  table->Label("side", "side", trial.subject);
  table->Figure("ops/s", "ops_per_second", trial.MedianOf(Ops), 0);
  table->Figure("GB/s", "gb_per_second", trial.MedianOf(Gbps), 3);
  table->Figure("p50 us", "p50_us", trial.MedianOf(P50), 1);
  table->Figure("p99 us", "p99_us", trial.calls.p99_ms() * 1e3, 1);
  table->Figure("client CPU s/GB", "client_cpu_seconds_per_gb", trial.MedianOf(ClientCpu), 3);
  table->Figure("server CPU s/GB", "server_cpu_seconds_per_gb", trial.MedianOf(ServerCpu), 3);
  const bool ems = trial.subject == kEms;
  const double ratio =
      ems ? VsBetterPeer(results, trial.op, trial.value_bytes, trial.threads) : std::nan("");
  table->Cell("vs better peer", ems ? Fixed(ratio, 2) : "");
  if (!std::isnan(ratio)) table->Field("vs_better_peer", ratio);
}

}  // namespace

double VsBetterPeer(const SideResults& results, SideOp op, uint64_t value_bytes, uint32_t callers) {
  const TrialResult* const ems = results.Find(kEms, op, value_bytes, callers);
  if (ems == nullptr) return std::nan("");
  std::vector<double> better(ems->rounds.size(), 0);
  for (const char* const name : kPeers) {
    const TrialResult* const peer = results.Find(name, op, value_bytes, callers);
    if (peer == nullptr || peer->rounds.size() != better.size()) return std::nan("");
    for (size_t i = 0; i < better.size(); ++i)
      better[i] = std::max(better[i], Ops(peer->rounds[i]));
  }
  return MedianRatio(ems->All(Ops), better);
}

void ReportPeers(const SideResults& results, Report* report) {
  for (const OpText& op : kOps) {
    FigureTable table;
    for (const TrialResult& trial : results.trials) {
      if (trial.op == op.op) AddRow(results, trial, &table);
    }
    report->Print(fmt::format("\n{}\n{}", op.title, table.Render()));
    report->json()[op.key] = table.json();
  }
  report->json()["missing"] = results.missing;
}

void JudgePeers(const SideResults& results, const std::vector<uint32_t>& callers, Report* report) {
  report->Print("\n");
  for (const OpText& op : kOps) {
    for (const uint64_t bytes : kPeerSizes) {
      for (const uint32_t count : callers) {
        report->AtLeast(kTimed,
                        fmt::format("{}_{}_{}_callers_vs_peer", op.key, SizeName(bytes), count),
                        VsBetterPeer(results, op.op, bytes, count), kVsPeerMin);
      }
    }
  }
}

}  // namespace ems::bench
