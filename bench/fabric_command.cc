#include "bench/fabric_command.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/cpu_placement.h"
#include "bench/fabric_bench.h"
#include "bench/report.h"
#include "common/command_line.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Table;

constexpr double kDeviationPercentMax = 5;
// A word, a page, a layer's block of 128 tokens, a chunk of four slots, a whole block (9 MB).
constexpr uint64_t kSizes[] = {64, 4 * kKiB, 147'456, kMiB, 8'994'816};

struct Flags {
  double scale = 100;
  uint32_t slots = 16;
  std::string slot_bytes = "256KiB";
  bool checksums = false;
  std::string json_path;
  bool quick = false;
  GateChoice gates;
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
  plan.ring.slots = flags.slots;
  plan.ring.checksums = flags.checksums;
  EMS_ASSIGN_OR_RETURN(plan.ring.slot_bytes, ParseBytes(flags.slot_bytes));
  if (!fabric::RingLayout::IsValid(plan.ring.slots, plan.ring.slot_bytes))
    return Error(StatusCode::kInvalidArgument, "a ring of {} slots of {}", flags.slots,
                 flags.slot_bytes);
  plan.time = std::chrono::milliseconds(flags.quick ? 60 : 600);
  return plan;
}

double Us(Duration duration) { return static_cast<double>(duration.count()) / 1e3; }
double Us(const LatencyRecorder& latencies, double q) { return latencies.QuantileMs(q) * 1e3; }

Status MeasureRing(const Plan& plan, RingBench* bench, Report* report) {
  Table table({{"message", terminal::Align::kRight},
               {"send p50 us"},
               {"p99"},
               {"GB/s"},
               {"memcpy p50 us"},
               {"GB/s"},
               {"GB/s vs memcpy"}});
  for (const uint64_t bytes : kSizes) {
    EMS_ASSIGN_OR_RETURN(const RingResult r, bench->Run(bytes, plan.time));
    table.AddRow({FormatBytes(bytes), fmt::format("{:.2f}", Us(r.send, 0.5)),
                  fmt::format("{:.2f}", Us(r.send, 0.99)), fmt::format("{:.3f}", r.send_gb_per_s),
                  fmt::format("{:.2f}", Us(r.copy, 0.5)), fmt::format("{:.3f}", r.copy_gb_per_s),
                  fmt::format("{:.3f}", r.ratio)});
    report->json()["ring"].push_back({{"bytes", bytes},
                                      {"messages", r.send.count()},
                                      {"send_p50_us", Us(r.send, 0.5)},
                                      {"send_p99_us", Us(r.send, 0.99)},
                                      {"send_gb_per_s", r.send_gb_per_s},
                                      {"memcpy_p50_us", Us(r.copy, 0.5)},
                                      {"memcpy_gb_per_s", r.copy_gb_per_s},
                                      {"bandwidth_vs_memcpy", r.ratio}});
  }
  EMS_ASSIGN_OR_RETURN(const LatencyRecorder probes, bench->RunProbes(plan.flags.quick ? 50 : 500));
  report->json()["probe"] = {{"p50_us", Us(probes, 0.5)}, {"p99_us", Us(probes, 0.99)}};
  report->Print(
      fmt::format("\nring to another process: send returns once the receiver has all of it\n{}\n"
                  "probe of the link: p50 {:.1f} us, p99 {:.1f} us\n",
                  table.Render(), Us(probes, 0.5), Us(probes, 0.99)));
  return OkStatus();
}

void GatePace(const PaceCase& one, const PaceResult& r, Report* report) {
  report->Gate(GateKind::kTimed, one.name + "_bandwidth_deviation_percent",
               r.bandwidth_deviation_percent(), GateOp::kAtMost, kDeviationPercentMax);
  report->Gate(GateKind::kTimed, one.name + "_latency_deviation_percent",
               r.latency_deviation_percent(), GateOp::kAtMost, kDeviationPercentMax);
}

Status MeasureAllPaces(const Plan& plan, Report* report) {
  Table table({{"transfer", terminal::Align::kLeft},
               {"hardware GB/s"},
               {"model GB/s"},
               {"achieved"},
               {"of model"},
               {"hardware us"},
               {"model us"},
               {"achieved p50"},
               {"of model"}});
  const double scale = plan.flags.scale;
  std::vector<std::pair<PaceCase, PaceResult>> results;
  for (PaceCase& one : AllPaceCases()) {
    EMS_ASSIGN_OR_RETURN(const PaceResult r, MeasurePace(plan.topology, one, plan.time));
    const double bandwidth = r.gb_per_s / r.model_gb_per_s;
    const double latency = Us(r.latency) / Us(r.model_latency);
    table.AddRow({one.name, fmt::format("{:.1f}", r.model_gb_per_s * scale),
                  fmt::format("{:.4f}", r.model_gb_per_s), fmt::format("{:.4f}", r.gb_per_s),
                  fmt::format("{:.3f}", bandwidth),
                  fmt::format("{:.1f}", Us(r.model_latency) / scale),
                  fmt::format("{:.1f}", Us(r.model_latency)), fmt::format("{:.1f}", Us(r.latency)),
                  fmt::format("{:.3f}", latency)});
    report->json()["pace"].push_back({{"transfer", one.name},
                                      {"model_gb_per_s", r.model_gb_per_s},
                                      {"gb_per_s", r.gb_per_s},
                                      {"bandwidth_of_model", bandwidth},
                                      {"model_latency_us", Us(r.model_latency)},
                                      {"latency_us", Us(r.latency)},
                                      {"latency_of_model", latency},
                                      {"copies", r.copies}});
    results.emplace_back(one, r);
  }
  report->Print(fmt::format("\nSDMA over emulated links, {} times slower than the hardware\n{}\n",
                            scale, table.Render()));
  for (const auto& [one, result] : results) GatePace(one, result, report);
  return OkStatus();
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  report->json()["settings"] = {{"scale", plan.flags.scale},
                                {"slots", plan.ring.slots},
                                {"slot_bytes", plan.ring.slot_bytes},
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

int RunFabric(const Flags& flags) {
  const Result<Plan> plan = MakePlan(flags);
  if (!plan.ok()) {
    fmt::print(stderr, "ems-bench fabric: {}\n", Message(plan.status()));
    return kExitUsage;
  }
  Report report("fabric", flags.json_path, flags.gates);
  const Status status = MeasureAndReport(*plan, &report);
  if (!status.ok()) report.Fail(ToString(status));
  return report.Finish();
}

}  // namespace

void AddFabricCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand(
      "fabric", "Measure the emulated fabric: rings beside memcpy, paced links beside their model");
  command->AddOption("--scale", &flags->scale, "How many times slower than the hardware links are");
  command->AddOption("--slots", &flags->slots, "Of the ring");
  command->AddOption("--slot-bytes", &flags->slot_bytes, "Of the ring; whole pages of 4 KiB");
  command->AddFlag("--checksums", &flags->checksums, "Checksum every chunk of the ring");
  command->AddOption("--json", &flags->json_path, "Write the figures to this file");
  command->AddFlag("--quick", &flags->quick, "Seconds only");
  AddGateOption(command, &flags->gates);
  command->SetFooter(
      "Needs no cluster. Ring: messages to another process through shared memory, each beside a\n"
      "memcpy of as many bytes; read the ratio. Paced links: bandwidth of SDMA over each plane "
      "and\n"
      "the latency of 512 bytes, beside the figures of the model (docs/FABRIC.md).\n"
      "Exit codes: 0 all went well; 1 an error or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench fabric --gate\n"
      "  ems-bench fabric --scale 1000 --json fabric.json");
  command->SetRun([flags] { return RunFabric(*flags); });
}

}  // namespace ems::bench
