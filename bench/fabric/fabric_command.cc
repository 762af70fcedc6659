#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/fabric/fabric_bench.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/cpu_placement.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"

namespace ems::bench {
namespace {

constexpr double kDeviationPercentMax = 5;
// A word, a page, a layer's block of 128 tokens, a chunk of four entries, a whole block (9 MB).
constexpr uint64_t kSizes[] = {64, 4 * kKiB, 147'456, kMiB, 8'994'816};

struct Flags : CommonFlags {
  double scale = 100;
  uint32_t entries = 16;
  std::string entry_bytes = "256KiB";
  bool checksums = false;
};

struct Plan {
  Flags flags;
  fabric::EmulatedTopology topology;
  fabric::RingOptions ring;
  Duration time{0};  // of each measurement
};

Result<Plan> MakePlan(const Flags& flags) {
  Plan plan{.flags = flags, .topology = {}, .ring = {}};
  EMS_ASSIGN_OR_RETURN(const auto model, fabric::EmulatedLinkModel::Create(flags.scale));
  EMS_ASSIGN_OR_RETURN(plan.topology,
                       fabric::EmulatedTopology::Create(fabric::EmulatedTopology::kSmall, model));
  plan.ring.entries = flags.entries;
  plan.ring.checksums = flags.checksums;
  EMS_ASSIGN_OR_RETURN(plan.ring.entry_bytes, ParseBytes(flags.entry_bytes));
  if (!fabric::RingLayout::IsValid(plan.ring.entries, plan.ring.entry_bytes))
    return Error(StatusCode::kInvalidArgument, "a ring of {} entries of {}", flags.entries,
                 flags.entry_bytes);
  plan.time = std::chrono::milliseconds(flags.quick ? 60 : 600);
  return plan;
}

Status MeasureRing(const Plan& plan, RingBench* bench, Report* report) {
  FigureTable table;
  for (const uint64_t bytes : kSizes) {
    if (Interrupted()) return Interruption();
    EMS_ASSIGN_OR_RETURN(const RingResult r, bench->Run(bytes, plan.time));
    table.AddRow();
    table.Figure("message", "bytes", bytes, FormatBytes(bytes));
    table.Field("messages", r.send.count());
    table.Figure("send p50 us", "send_p50_us", r.send.QuantileUs(0.5), 2);
    table.Figure("p99", "send_p99_us", r.send.QuantileUs(0.99), 2);
    table.Figure("GB/s", "send_gb_per_s", r.send_gb_per_s, 3);
    table.Figure("memcpy p50 us", "memcpy_p50_us", r.copy.QuantileUs(0.5), 2);
    table.Figure("GB/s", "memcpy_gb_per_s", r.copy_gb_per_s, 3);
    table.Figure("GB/s vs memcpy", "bandwidth_vs_memcpy", r.ratio, 3);
  }
  report->json()["ring"] = table.json();
  EMS_ASSIGN_OR_RETURN(const LatencyRecorder probes, bench->RunProbes(plan.flags.quick ? 50 : 500));
  report->json()["probe"] = {{"p50_us", probes.QuantileUs(0.5)},
                             {"p99_us", probes.QuantileUs(0.99)}};
  report->Print(
      fmt::format("\nring to another process: send returns once the receiver has all of it\n{}\n"
                  "probe of the link: p50 {:.1f} us, p99 {:.1f} us\n",
                  table.Render(), probes.QuantileUs(0.5), probes.QuantileUs(0.99)));
  return OkStatus();
}

Status MeasureAllPaces(const Plan& plan, Report* report) {
  FigureTable table;
  const double scale = plan.flags.scale;
  std::vector<std::pair<std::string, PaceResult>> results;
  for (const PaceCase& one : AllPaceCases()) {
    if (Interrupted()) return Interruption();
    EMS_ASSIGN_OR_RETURN(const PaceResult r, MeasurePace(plan.topology, one, plan.time));
    const double model_us = Micros(r.model_latency), us = Micros(r.latency);
    table.AddRow();
    table.Label("transfer", "transfer", one.name);
    table.Cell("hardware GB/s", Fixed(r.model_gb_per_s * scale, 1));
    table.Figure("model GB/s", "model_gb_per_s", r.model_gb_per_s, 4);
    table.Figure("achieved", "gb_per_s", r.gb_per_s, 4);
    table.Figure("of model", "bandwidth_of_model", r.gb_per_s / r.model_gb_per_s, 3);
    table.Cell("hardware us", Fixed(model_us / scale, 1));
    table.Figure("model us", "model_latency_us", model_us, 1);
    table.Figure("achieved p50", "latency_us", us, 1);
    table.Figure("of model", "latency_of_model", us / model_us, 3);
    table.Field("copies", r.copies);
    results.emplace_back(one.name, r);
  }
  report->json()["pace"] = table.json();
  report->Print(fmt::format("\nSDMA over emulated links, {} times slower than the hardware\n{}\n",
                            scale, table.Render()));
  for (const auto& [name, r] : results) {
    report->AtMost(kTimed, name + "_bandwidth_deviation_percent", r.bandwidth_deviation_percent(),
                   kDeviationPercentMax);
    report->AtMost(kTimed, name + "_latency_deviation_percent", r.latency_deviation_percent(),
                   kDeviationPercentMax);
  }
  return OkStatus();
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  report->json()["settings"] = {{"scale", plan.flags.scale},
                                {"entries", plan.ring.entries},
                                {"entry_bytes", plan.ring.entry_bytes},
                                {"checksums", plan.ring.checksums}};
  {
    // Before this process has threads; gone before its receiver could disturb what comes next.
    EMS_ASSIGN_OR_RETURN(const std::unique_ptr<RingBench> bench, RingBench::Start(plan.ring));
    // As on two machines; with one CPU they share it.
    CpuPlacement placement;
    const bool apart = placement.Apart(std::vector{bench->receiver()}).ok();
    report->json()["settings"]["cpus_apart"] = apart;
    EMS_RETURN_IF_ERROR(MeasureRing(plan, bench.get(), report));
  }
  return MeasureAllPaces(plan, report);
}

}  // namespace

void AddFabricCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand(
      "fabric", "Measure the emulated fabric: rings beside memcpy, paced links beside their model");
  command->AddOption("--scale", &flags->scale, "How many times slower than the hardware links are");
  command->AddOption("--entries", &flags->entries, "Of the ring");
  command->AddOption("--entry-bytes", &flags->entry_bytes, "Of the ring; whole pages of 4 KiB");
  command->AddFlag("--checksums", &flags->checksums, "Checksum every chunk of the ring");
  AddCommonOptions(
      command, flags.get(),
      {.quick = "Seconds only",
       .about =
           "Needs no cluster. Ring: messages to another process through shared memory, each beside "
           "a\nmemcpy of as many bytes; read the ratio. Paced links: bandwidth of SDMA over each "
           "plane and\nthe latency of 512 bytes, beside the figures of the model "
           "(docs/FABRIC.md).",
       .failures = "an error or a failed gate",
       .examples = {"fabric --gate", "fabric --scale 1000 --json fabric.json"}});
  command->SetRun([=] { return RunPlanned("fabric", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
