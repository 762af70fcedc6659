#include "bench/local/local_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/report.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

// GB/s of a trial beside another side's, from paired rounds; 0 where there is none.
double Ratio(const SideResults& results, const TrialResult& trial, const std::string& subject,
             SideOp op) {
  const TrialResult* other = results.Find(subject, op, trial.value_bytes, trial.threads);
  if (other == nullptr || other == &trial) return 0;
  return MedianRatio(trial.All(Gbps), other->All(Gbps));
}

// `op`: of the table, at which the trial may be of its counterpart.
void AddRow(const SideResults& results, SideOp op, const TrialResult& trial, FigureTable* table) {
  table->AddRow();
  table->Cell("size", FormatBytes(trial.value_bytes));
  table->Label("side", "", trial.subject);
  table->Count("threads", "", trial.threads);
  table->Cell("p50 us", FixedAboveZero(trial.MedianOf(P50), 2));
  table->Cell("p99 us", FixedAboveZero(trial.calls.p99_ms() * 1e3, 2));
  table->Cell("ops/s", FixedAboveZero(trial.MedianOf(Ops), 0));
  if (MovesBytes(op)) {
    table->Cell("GB/s", FixedAboveZero(trial.MedianOf(Gbps), 2));
    table->Cell("client CPU s/GB", FixedAboveZero(trial.MedianOf(ClientCpu), 3));
    table->Cell("server CPU s/GB", FixedAboveZero(trial.MedianOf(ServerCpu), 3));
    table->Cell("GB/s vs memcpy", FixedAboveZero(Ratio(results, trial, "memcpy", SideOp::kGet), 2));
  }
  if (!IsPut(op))
    table->Cell("one-sided", trial.subject == "EMS" ? PercentText(trial.one_sided_share) : "");
  if (op == SideOp::kPutBatch) table->Count("values/call", "", trial.batch);
}

// What a side did at an operation, or at its counterpart when it does not know the operation.
const TrialResult* TrialFor(const SideResults& results, const std::string& subject, SideOp op,
                            uint64_t value_bytes, uint32_t threads) {
  const TrialResult* trial = results.Find(subject, op, value_bytes, threads);
  if (trial != nullptr || !MovesBytes(op)) return trial;
  return results.Find(subject, Counterpart(op), value_bytes, threads);
}

std::string TableOf(const SideResults& results, SideOp op) {
  std::set<uint32_t> threads;
  for (const TrialResult& trial : results.trials) {
    if (trial.op == op) threads.insert(trial.threads);
  }
  FigureTable table;
  for (const uint64_t bytes : results.Sizes()) {
    for (const uint32_t callers : threads) {
      for (const std::string& subject : results.Subjects()) {
        const TrialResult* trial = TrialFor(results, subject, op, bytes, callers);
        if (trial != nullptr) AddRow(results, op, *trial, &table);
      }
    }
  }
  return table.empty() ? "" : fmt::format("\n{}\n{}", OpTitle(op), table.Render());
}

Json TrialJson(const TrialResult& trial) {
  return {{"side", trial.subject},
          {"operation", OpName(trial.op)},
          {"value_bytes", trial.value_bytes},
          {"threads", trial.threads},
          {"values_per_call", trial.op == SideOp::kLookup ? kLookupKeys : trial.batch},
          {"p50_us", trial.MedianOf(P50)},
          {"p99_us", trial.calls.p99_ms() * 1e3},
          {"gb_per_second", trial.MedianOf(Gbps)},
          {"ops_per_second", trial.MedianOf(Ops)},
          {"client_cpu_seconds_per_gb", trial.MedianOf(ClientCpu)},
          {"server_cpu_seconds_per_gb", trial.MedianOf(ServerCpu)},
          {"one_sided_share", trial.one_sided_share},
          {"call_latency", LatencyJson(trial.calls)},
          {"rounds",
           {{"gb_per_second", trial.All(Gbps)},
            {"p50_us", trial.All(P50)},
            {"cpu_seconds_per_gb", trial.All(Cpu)}}}};
}

}  // namespace

std::string LocalTables(const SideResults& results) {
  std::string text;
  for (const SideOp op : kAllOps) text += TableOf(results, op);
  for (const StormResult& storm : results.storms) {
    text += fmt::format("{}Storm of {:.0f} Gets/s of {}: the servers used {:.2f} % of one core\n",
                        &storm == results.storms.data() ? "\n" : "", storm.reads_per_second,
                        FormatBytes(storm.value_bytes), 100 * storm.server_cores);
  }
  return text;
}

Json LocalJson(const SideResults& results) {
  Json json = {{"lanes", Json::array()}, {"storms", Json::array()}, {"missing", results.missing}};
  for (const TrialResult& trial : results.trials) json["lanes"].push_back(TrialJson(trial));
  for (const StormResult& storm : results.storms) {
    json["storms"].push_back({{"value_bytes", storm.value_bytes},
                              {"reads_per_second", storm.reads_per_second},
                              {"server_cores", storm.server_cores}});
  }
  return json;
}

}  // namespace ems::bench
