#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/hot/hot_bench.h"

namespace ems::bench {
namespace {

// Four servers could give four times as much as one.
constexpr double kRatioMin = 2.5;
constexpr uint32_t kGateCopies = 3;

struct Flags : CommonFlags {
  HotSettings settings;
  uint64_t nic_mb_per_s = 100;
};

Result<HotSettings> MakePlan(const Flags& flags) {
  HotSettings settings = flags.settings;
  settings.nic_bytes_per_s = static_cast<double>(flags.nic_mb_per_s) * 1e6;
  if (flags.quick) settings.seconds = std::min(settings.seconds, 2.0);
  if (settings.copies >= settings.servers) {
    return Error(StatusCode::kInvalidArgument, "--copies {} needs {} servers; --servers is {}",
                 settings.copies, settings.copies + 1, settings.servers);
  }
  return settings;
}

void AddRow(FigureTable* table, const HotSide& side, const HotSettings& settings) {
  const double limit = settings.nic_bytes_per_s / 1e9;
  table->AddRow();
  table->Count("copies", "copies", side.copies);
  table->Figure("GB/s", "gbps", side.gbps, 3);
  table->Figure("limit of one server", "limit_gbps", limit, 3);
  table->Figure("of its limit", "of_limit", side.gbps / limit, 2);
  table->Figure("p50 ms", "p50_ms", side.calls.p50_ms(), 1);
  table->Figure("p99 ms", "p99_ms", side.calls.p99_ms(), 1);
  table->Count("reads", "reads", side.reads);
  table->Count("of copies", "copy_reads", side.copy_reads);
  table->Count("in vain", "copy_misses", side.copy_misses);
}

Status MeasureAndReport(const HotSettings& settings, Report* report) {
  EMS_ASSIGN_OR_RETURN(const HotResult result, RunHotBench(settings));
  FigureTable table;
  AddRow(&table, result.off, settings);
  AddRow(&table, result.on, settings);
  report->json()["sides"] = table.json();
  report->json()["ratio"] = result.ratio();
  report->json()["server_gbps"] = result.on.server_gbps;
  report->Print(
      fmt::format("\n{} readers of one object of {}, {} servers behind {:.0f} MB/s each\n{}\n"
                  "with copies: {} times as much\n",
                  settings.readers, FormatBytes(settings.value_bytes), settings.servers,
                  settings.nic_bytes_per_s / 1e6, table.Render(), Fixed(result.ratio(), 2)));
  report->MustBeZero("wrong_bytes", result.off.wrong_bytes + result.on.wrong_bytes);

  if (settings.copies >= kGateCopies)
    report->AtLeast(kTimed, "hot_copies_ratio", result.ratio(), kRatioMin);
  return OkStatus();
}

}  // namespace

void AddHotCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand(
      "hot", "Measure many readers of one object, with copies on other servers and without");
  HotSettings& settings = flags->settings;
  command->AddOption("--readers", &settings.readers, "Clients that read, one thread each",
                     {.check = InRange{1, 256}});
  command->AddOption("--servers", &settings.servers, "Servers", {.check = InRange{1, 16}});
  command->AddOption("--copies", &settings.copies, "Copies of a hot object (hot.copies)",
                     {.check = InRange{1, 3}});
  command->AddOption("--nic-mb-per-s", &flags->nic_mb_per_s,
                     "What each server's network card moves, in 1e6 bytes a second: little enough "
                     "that it is what bounds the readers",
                     {.check = InRange{1, 100'000}});
  command->AddOption("--seconds", &settings.seconds, "Of each measurement",
                     {.check = InRange{1.0, 600.0}});
  command->AddOption("--programs", &settings.programs,
                     "Folder of mp-controller and mp-server; beside this program by default");
  AddCommonOptions(
      command, flags.get(),
      {.quick = "Two seconds a measurement",
       .about = "Starts a controller and servers of its own, twice: without copies of hot objects "
                "and with\nthem. Each server is behind a proxy that passes on what it sends no "
                "faster than a network\ncard of the stated speed.",
       .examples = {"hot --gate", "hot --nic-mb-per-s 50 --readers 16"}});
  command->SetRun([=] { return RunPlanned("hot", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
