#include "bench/local_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "bench/report.h"
#include "bench/store_bench.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Table;

constexpr LocalOp kOps[] = {LocalOp::kGet,      LocalOp::kGetChecked, LocalOp::kGetView,
                            LocalOp::kExists,   LocalOp::kLookup,     LocalOp::kPut,
                            LocalOp::kPutBatch, LocalOp::kPutOrdinary};

std::string Number(double value, int decimals) {
  return value <= 0 ? "-" : fmt::format("{:.{}f}", value, decimals);
}

bool MovesBytes(LocalOp op) { return IsGet(op) || IsPut(op); }

// What another side does that does not know this operation: its plain Get, or its Set.
LocalOp Counterpart(LocalOp op) { return IsPut(op) ? LocalOp::kPutOrdinary : LocalOp::kGet; }

// GB/s of a lane beside another side's, from paired rounds; 0 where there is none.
double Ratio(const LocalResults& results, const LaneResult& lane, const std::string& contender,
             LocalOp op) {
  const LaneResult* other = results.Find(contender, op, lane.value_bytes, lane.threads);
  if (other == nullptr || other == &lane) return 0;
  return MedianRatio(lane.All(Gbps), other->All(Gbps));
}

std::vector<terminal::Column> Columns(LocalOp op) {
  std::vector<terminal::Column> columns = {
      {"size"}, {"side", terminal::Align::kLeft}, {"threads"}, {"p50 us"}, {"p99 us"}, {"ops/s"}};
  if (MovesBytes(op)) {
    columns.insert(columns.end(),
                   {{"GB/s"}, {"client CPU s/GB"}, {"server CPU s/GB"}, {"GB/s vs memcpy"}});
  }
  if (!IsPut(op)) columns.push_back({"one-sided"});
  if (op == LocalOp::kPutBatch) columns.push_back({"values/call"});
  return columns;
}

std::vector<std::string> Row(const LocalResults& results, const LaneResult& lane) {
  std::vector<std::string> row = {
      FormatBytes(lane.value_bytes),        lane.contender,
      fmt::format("{}", lane.threads),      Number(lane.MedianOf(P50), 2),
      Number(lane.calls.p99_ms() * 1e3, 2), Number(lane.MedianOf(Ops), 0)};
  if (MovesBytes(lane.op)) {
    row.push_back(Number(lane.MedianOf(Gbps), 2));
    row.push_back(Number(lane.MedianOf(ClientCpu), 3));
    row.push_back(Number(lane.MedianOf(ServerCpu), 3));
    row.push_back(Number(Ratio(results, lane, "memcpy", LocalOp::kGet), 2));
  }
  if (!IsPut(lane.op)) {
    row.push_back(lane.contender == "EMS" ? fmt::format("{:.1f} %", 100 * lane.one_sided_share)
                                          : "");
  }
  if (lane.op == LocalOp::kPutBatch) row.push_back(fmt::format("{}", lane.batch));
  return row;
}

// What a side did at an operation, or at its counterpart when it does not know the operation.
const LaneResult* LaneFor(const LocalResults& results, const std::string& contender, LocalOp op,
                          uint64_t value_bytes, uint32_t threads) {
  const LaneResult* lane = results.Find(contender, op, value_bytes, threads);
  if (lane != nullptr || !MovesBytes(op)) return lane;
  return results.Find(contender, Counterpart(op), value_bytes, threads);
}

std::string TableOf(const LocalResults& results, LocalOp op) {
  std::set<uint32_t> threads;
  for (const LaneResult& lane : results.lanes) {
    if (lane.op == op) threads.insert(lane.threads);
  }
  Table table(Columns(op));
  for (const uint64_t bytes : results.Sizes()) {
    for (const uint32_t callers : threads) {
      for (const std::string& contender : results.Contenders()) {
        const LaneResult* lane = LaneFor(results, contender, op, bytes, callers);
        if (lane != nullptr) table.AddRow(Row(results, *lane));
      }
    }
  }
  return table.empty() ? "" : fmt::format("\n{}\n{}", OpTitle(op), table.Render());
}

Json LaneJson(const LaneResult& lane) {
  return {{"side", lane.contender},
          {"operation", OpName(lane.op)},
          {"value_bytes", lane.value_bytes},
          {"threads", lane.threads},
          {"values_per_call", lane.op == LocalOp::kLookup ? kLookupKeys : lane.batch},
          {"p50_us", lane.MedianOf(P50)},
          {"p99_us", lane.calls.p99_ms() * 1e3},
          {"gb_per_second", lane.MedianOf(Gbps)},
          {"ops_per_second", lane.MedianOf(Ops)},
          {"client_cpu_seconds_per_gb", lane.MedianOf(ClientCpu)},
          {"server_cpu_seconds_per_gb", lane.MedianOf(ServerCpu)},
          {"one_sided_share", lane.one_sided_share},
          {"call_latency", LatencyJson(lane.calls)},
          {"rounds",
           {{"gb_per_second", lane.All(Gbps)},
            {"p50_us", lane.All(P50)},
            {"cpu_seconds_per_gb", lane.All(Cpu)}}}};
}

struct PlotLine {
  const char* name;
  const char* contender;
  LocalOp op;
  const char* color;
  bool dashed, bold;
};
constexpr PlotLine kLines[] = {
    {"memcpy", "memcpy", LocalOp::kGet, "#6e7781", true, false},
    {"EMS Get", "EMS", LocalOp::kGet, "#0969da", false, true},
    {"EMS Get, checksum verified", "EMS", LocalOp::kGetChecked, "#54aeff", false, true},
    {"EMS GetView, in place", "EMS", LocalOp::kGetView, "#8250df", false, true},
    {"redis, Unix", "redis unix", LocalOp::kGet, "#cf222e", false, false},
    {"redis, TCP", "redis tcp", LocalOp::kGet, "#cf222e", true, false},
    {"memcached, Unix", "memcached unix", LocalOp::kGet, "#1a7f37", false, false},
    {"memcached, TCP", "memcached tcp", LocalOp::kGet, "#1a7f37", true, false},
};
PlotSeries SeriesOf(const LocalResults& results, const PlotLine& line,
                    const std::vector<uint64_t>& sizes, Figure figure) {
  PlotSeries series{.name = line.name,
                    .color = line.color,
                    .dashed = line.dashed,
                    .bold = line.bold,
                    .values = {}};
  for (const uint64_t bytes : sizes) {
    const LaneResult* lane = results.Find(line.contender, line.op, bytes, 1);
    const double value = lane == nullptr ? 0 : lane->MedianOf(figure);
    series.values.push_back(value > 0 ? std::optional(value) : std::nullopt);
  }
  return series;
}

}  // namespace

std::string LocalTables(const LocalResults& results) {
  std::string text;
  for (const LocalOp op : kOps) text += TableOf(results, op);
  for (const StormResult& storm : results.storms) {
    text += fmt::format("{}Storm of {:.0f} Gets/s of {}: the servers used {:.2f} % of one core\n",
                        &storm == results.storms.data() ? "\n" : "", storm.reads_per_second,
                        FormatBytes(storm.value_bytes), 100 * storm.server_cores);
  }
  return text;
}

Json LocalJson(const LocalResults& results) {
  Json json = {{"lanes", Json::array()}, {"storms", Json::array()}, {"missing", results.missing}};
  for (const LaneResult& lane : results.lanes) json["lanes"].push_back(LaneJson(lane));
  for (const StormResult& storm : results.storms) {
    json["storms"].push_back({{"value_bytes", storm.value_bytes},
                              {"reads_per_second", storm.reads_per_second},
                              {"server_cores", storm.server_cores}});
  }
  return json;
}

Plot LocalPlot(const LocalResults& results, std::string subtitle) {
  std::vector<uint64_t> sizes = results.Sizes();
  std::sort(sizes.begin(), sizes.end());
  PlotPanel speed{.title = "Reading: throughput",
                  .x_label = "value size",
                  .y_label = "GB/s",
                  .places = {},
                  .log_y = false,
                  .series = {}};
  PlotPanel latency{.title = "Reading: median latency",
                    .x_label = "value size",
                    .y_label = "p50, microseconds (logarithmic)",
                    .places = {},
                    .log_y = true,
                    .series = {}};
  for (const uint64_t bytes : sizes) speed.places.push_back(FormatBytes(bytes));
  latency.places = speed.places;
  for (const PlotLine& line : kLines) {
    speed.series.push_back(SeriesOf(results, line, sizes, Gbps));
    latency.series.push_back(SeriesOf(results, line, sizes, P50));
  }
  return {.title = "Reading a value on the server's host",
          .subtitle = std::move(subtitle),
          .panels = {std::move(speed), std::move(latency)}};
}

}  // namespace ems::bench
