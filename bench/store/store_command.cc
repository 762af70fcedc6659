#include <sys/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/cpu_placement.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/store/peer_comparison.h"
#include "bench/store/store_bench.h"
#include "bench/store/store_gates.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMemoryMax = 8 * kGiB;  // values and room for them
constexpr uint64_t kExistsRounds = 21;
constexpr uint64_t kValueBytesMaxOfPeers = 64 * kMiB;
const std::vector<std::string> kSizes = {"4KiB", "64KiB", "1MiB"};

struct Flags : ClusterFlags {
  std::string name_space;
  std::vector<std::string> sizes;  // empty: kSizes, or those of --peers
  StoreSettings settings;
  uint64_t rounds = 0;  // 0: as many as such a run has by itself
  std::vector<uint32_t> threads = {1};
  bool peers = false;
  std::string transport = "auto";
  std::string only;
  std::vector<pid_t> server_pids;
  bool no_verify = false;
  bool no_raw = false;
  std::string placement = "auto";
  std::optional<double> expect_get_gbps, expect_put_gbps;
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  std::vector<uint64_t> sizes;
  std::vector<Section> sections;
  TransportChoice transport = TransportChoice::kAuto;
};

// Errors: kInvalidArgument  what the user has to change
Status CheckGate(const Flags& flags, std::vector<uint64_t>* sizes) {
  if (flags.settings.batch != 1 || flags.settings.threads != 1 || flags.no_raw || flags.no_verify ||
      flags.transport == "unix" || !flags.only.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--gate is stated for TCP, one thread, single calls and all sections: leave out "
                 "--batch, --threads, --no-raw, --no-verify, --only and --transport unix");
  }
  for (const uint64_t needed : {4 * kKiB, 64 * kKiB, kMiB}) {
    if (std::find(sizes->begin(), sizes->end(), needed) == sizes->end()) sizes->push_back(needed);
  }
  return OkStatus();
}

Result<Plan> MakePlan(Flags flags) {
  if (flags.threads.size() != 1) {
    return Error(StatusCode::kInvalidArgument,
                 "--threads: several numbers of callers are for --peers");
  }
  flags.settings.threads = flags.threads[0];
  if (flags.rounds != 0) flags.settings.rounds = flags.rounds;
  if (flags.sizes.empty()) flags.sizes = kSizes;
  if (flags.quick) {
    flags.settings.keys = std::min<uint64_t>(flags.settings.keys, 16);
    flags.settings.rounds = std::min<uint64_t>(flags.settings.rounds, 5);
    flags.settings.warmup_rounds = 1;
  }
  flags.settings.verify = !flags.no_verify;
  Plan plan;
  EMS_ASSIGN_OR_RETURN(plan.sizes, ParseSizes("--sizes", flags.sizes, 1, kMemoryMax / 2));
  if (flags.gates == GateSet::kAll) {
    EMS_RETURN_IF_ERROR(CheckGate(flags, &plan.sizes));
    flags.transport = "tcp";
    flags.settings.one_server = true;
  }
  const uint64_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  if (largest > kMemoryMax / 2 / flags.settings.keys) {
    return Error(StatusCode::kInvalidArgument,
                 "--keys {} of {} need more than {} of memory: take fewer keys or smaller sizes",
                 flags.settings.keys, FormatBytes(largest), FormatBytes(kMemoryMax));
  }
  for (const Section section : {Section::kStore, Section::kLookup, Section::kLoad}) {
    std::string name(SectionName(section));
    name[0] = static_cast<char>(name[0] + ('a' - 'A'));
    if (flags.only.empty() || flags.only == name) plan.sections.push_back(section);
  }
  plan.transport = ParseTransport(flags.transport);
  plan.flags = std::move(flags);
  return plan;
}

// What --peers runs. Errors: kInvalidArgument  what the user has to change
Result<PeerPlan> MakePeersPlan(const Flags& flags) {
  if (flags.settings.batch != 1 || flags.no_verify || flags.transport == "unix" ||
      flags.placement == "apart" || !flags.only.empty() || !flags.name_space.empty() ||
      flags.expect_get_gbps || flags.expect_put_gbps) {
    return Error(StatusCode::kInvalidArgument,
                 "--peers measures single Gets and Puts over TCP in a namespace of its own: leave "
                 "out --batch, --no-verify, --only, --namespace, --transport unix, --placement "
                 "apart and --expect-…-gbps");
  }
  EMS_ASSIGN_OR_RETURN(std::vector<uint64_t> sizes,
                       ParseSizes("--sizes", flags.sizes, 1, kValueBytesMaxOfPeers));
  return MakePeerPlan(flags, std::move(sizes), flags.rounds, flags.threads);
}

// The raw sockets that this run may compare with. Forks, so it comes before anything that makes
// threads.
struct RawSockets {
  std::unique_ptr<RawSocket> tcp, local;
  RawSocket* For(bool local_transport) const { return local_transport ? local.get() : tcp.get(); }
};

Result<RawSockets> StartRawSockets(const Plan& plan) {
  RawSockets sockets;
  if (plan.flags.no_raw) return sockets;
  if (plan.transport != TransportChoice::kUnix) {
    EMS_ASSIGN_OR_RETURN(sockets.tcp, RawSocket::Start(RawTransport::kTcp));
  }
  if (plan.transport != TransportChoice::kTcp) {
    EMS_ASSIGN_OR_RETURN(sockets.local, RawSocket::Start(RawTransport::kUnix));
  }
  return sockets;
}

std::string HitRate(uint64_t hits, uint64_t keys) {
  return keys == 0 ? "-" : PercentText(Share(hits, keys), 2);
}

void AddRow(const SectionResult& r, uint64_t rounds, bool with_raw, FigureTable* table) {
  const LatencyRecorder& calls = r.ems.calls;
  table->AddRow();
  table->Cell("size", FormatBytes(r.value_bytes));
  table->Count("rounds", "", rounds);
  table->Count("keys/round", "", r.keys);
  table->Cell("success", fmt::format("{}/{}", r.succeeded, r.attempted));
  table->Cell("avg ms", FormatMs(calls.avg_ms()));
  table->Cell("min ms", FormatMs(calls.min_ms()));
  table->Cell("max ms", FormatMs(calls.max_ms()));
  table->Cell("p50 ms", FormatMs(calls.p50_ms()));
  table->Cell("p99 ms", FormatMs(calls.p99_ms()));
  table->Cell("ops/s", Fixed(r.ops_per_second(), 0));
  table->Cell("ms/key", FormatMs(r.ms_per_key()));
  if (r.section == Section::kLookup) {
    table->Cell("expected hits", HitRate(r.expected_hits, r.looked_up));
    table->Cell("actual hits", HitRate(r.hits, r.looked_up));
    return;
  }
  table->Cell("GB/s", FixedAboveZero(r.gb_per_second(), 3));
  table->Cell("CPU s/GB", FixedAboveZero(r.cpu_seconds_per_gb, 3));
  if (!with_raw) return;
  table->Cell("raw GB/s", FixedAboveZero(r.GbPerSecondOf(r.raw), 3));
  table->Cell("raw p50 ms", r.raw.calls.count() == 0 ? "-" : FormatMs(r.raw.calls.p50_ms()));
  table->Cell("GB/s vs raw", FixedAboveZero(r.throughput_vs_raw(), 3));
  table->Cell("p50 vs raw", FixedAboveZero(r.p50_vs_raw(), 2));
}

Json ResultJson(const SectionResult& r, uint64_t rounds) {
  Json json = {{"section", SectionName(r.section)},
               {"value_bytes", r.value_bytes},
               {"rounds", rounds},
               {"keys_per_round", r.keys},
               {"keys_attempted", r.attempted},
               {"keys_succeeded", r.succeeded},
               {"call_latency", LatencyJson(r.ems.calls)},
               {"ops_per_second", r.ops_per_second()},
               {"ms_per_key", r.ms_per_key()},
               {"wrong_bytes", r.wrong_bytes},
               {"errors", r.errors}};
  if (r.section != Section::kStore) {
    json["expected_hits"] = r.expected_hits;
    json["hits"] = r.hits;
    json["looked_up"] = r.looked_up;
  }
  if (r.section == Section::kLookup) return json;
  json["gb_per_second"] = r.gb_per_second();
  json["cpu_seconds_per_gb"] = r.cpu_seconds_per_gb;
  json["cpu_client_seconds"] = r.cpu_client_seconds;
  json["cpu_server_seconds"] = r.cpu_server_seconds;
  if (r.raw.calls.count() == 0) return json;
  json["raw"] = {{"call_latency", LatencyJson(r.raw.calls)},
                 {"gb_per_second", r.GbPerSecondOf(r.raw)},
                 {"throughput_vs_raw", r.throughput_vs_raw()},
                 {"p50_vs_raw", r.p50_vs_raw()}};
  return json;
}

void PrintSection(Section section, const std::vector<SectionResult>& results, const Plan& plan,
                  Report* report) {
  FigureTable table;
  for (const SectionResult& result : results) {
    if (result.section == section)
      AddRow(result, plan.flags.settings.rounds, !plan.flags.no_raw, &table);
  }
  report->Print(fmt::format("\n{}\n{}", SectionName(section), table.Render()));
}

void JudgeExpectations(const std::vector<SectionResult>& results, const Plan& plan,
                       Report* report) {
  const uint64_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  const auto expect = [&](const char* name, Section section, std::optional<double> bound) {
    if (!bound) return;
    const SectionResult* r = FindResult(results, section, largest);
    report->Expect(name, r == nullptr ? std::nan("") : r->gb_per_second(), GateOp::kAtLeast,
                   *bound);
  };
  expect("get_gbps", Section::kLoad, plan.flags.expect_get_gbps);
  expect("put_gbps", Section::kStore, plan.flags.expect_put_gbps);
}

Status Measure(const Plan& plan, StoreBench* bench, std::vector<SectionResult>* results) {
  for (const uint64_t bytes : plan.sizes) {
    EMS_RETURN_IF_ERROR(bench->Prepare(bytes));
    for (const Section section : plan.sections) {
      EMS_ASSIGN_OR_RETURN(SectionResult result, bench->Run(section));
      results->push_back(std::move(result));
    }
  }
  return OkStatus();
}

bool UsesUnix(const Plan& plan, const DhtView& view) {
  if (plan.transport != TransportChoice::kAuto) return plan.transport == TransportChoice::kUnix;
  return LocalServerPids(view).size() == view.nodes().size();
}

void Announce(const Plan& plan, const std::string& name_space, const DhtView& view, bool unix_used,
              const CpuMeter& cpu, Report* report) {
  const StoreSettings& s = plan.flags.settings;
  const char* transport = unix_used ? "unix" : "tcp";
  report->Print(fmt::format(
      "ems-bench store: {}{} servers, {}, {} thread{}, {}, namespace {}, verification {}\n"
      "Latencies are of one call. GB/s and ops/s are of the median round. CPU is that of this "
      "process{}.\n",
      s.one_server ? "one of " : "", view.nodes().size(), transport, s.threads, Plural(s.threads),
      s.batch == 1 ? "single calls" : fmt::format("{} keys a call", s.batch), name_space,
      s.verify ? "on" : "OFF", cpu.knows_servers() ? " and the servers" : " alone"));
  if (!plan.flags.no_raw) {
    report->Print(
        "raw: a plain request/response socket, one connection, no checksum; ratios are medians of "
        "paired rounds.\n");
  }
  report->json()["settings"] = {{"servers", view.nodes().size()},
                                {"one_server", s.one_server},
                                {"transport", transport},
                                {"threads", s.threads},
                                {"batch", s.batch},
                                {"namespace", name_space},
                                {"verify", s.verify},
                                {"warmup_rounds", s.warmup_rounds},
                                {"cpu_of_servers_known", cpu.knows_servers()}};
}

Result<std::unique_ptr<Client>> ConnectClient(const Plan& plan, const std::string& name_space) {
  ClientOptions options = ClientOptionsOf(plan.flags, name_space);
  options.transport = plan.transport;
  options.connections_per_server_max = static_cast<uint32_t>(plan.flags.settings.threads);
  return Client::Connect(options);
}

// One caller and its servers on two cores, unless the run asks otherwise; says what it did.
// Errors: kFailedPrecondition, kPermissionDenied  --placement apart cannot be had
Status PlaceApart(const Plan& plan, const RawSocket* raw, std::vector<pid_t> servers,
                  CpuPlacement* placement, Report* report) {
  const bool wanted = plan.flags.placement == "apart";
  if (!wanted && (plan.flags.placement == "free" || plan.flags.gates != GateSet::kAll))
    return OkStatus();
  if (raw != nullptr) servers.push_back(raw->child());
  Status apart = placement->Apart(servers);
  if (apart.ok()) {
    report->Print("placement: the caller on one core, every server on another.\n");
    report->json()["settings"]["placement"] = "apart";
    return apart;
  }
  if (wanted) return Prefixed(apart, "--placement apart");
  report->Print(
      fmt::format("placement: left to the scheduler ({}); ratios vary more.\n", Message(apart)));
  return OkStatus();
}

Status MeasureIn(const std::string& name_space, const Plan& plan, const RawSockets& raw,
                 Report* report) {
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, ConnectClient(plan, name_space));
  const ViewCache::View view = client->views().view();
  const std::vector<pid_t> pids =
      plan.flags.server_pids.empty() ? LocalServerPids(*view) : plan.flags.server_pids;
  EMS_ASSIGN_OR_RETURN(const CpuMeter cpu, CpuMeter::Make(pids));
  const bool unix_used = UsesUnix(plan, *view);
  Announce(plan, name_space, *view, unix_used, cpu, report);
  CpuPlacement placement;
  EMS_RETURN_IF_ERROR(PlaceApart(plan, raw.For(unix_used), pids, &placement, report));

  const StoreSettings& settings = plan.flags.settings;
  const uint64_t rounds = settings.rounds + settings.warmup_rounds;
  terminal::ProgressBar bar({.label = "measuring",
                             .total = rounds * plan.sizes.size() * plan.sections.size(),
                             .unit = "rounds"});
  uint64_t done = 0;
  StoreBench bench(client.get(), name_space, settings, raw.For(unix_used), cpu,
                   [&] { bar.Update(++done); });
  std::vector<SectionResult> results;
  const Status measured = Measure(plan, &bench, &results);
  bar.Clear();
  EMS_RETURN_IF_ERROR(measured);

  for (const Section section : plan.sections) PrintSection(section, results, plan, report);
  report->Print("\n");
  for (const SectionResult& result : results) {
    report->json()["results"].push_back(ResultJson(result, settings.rounds));
    JudgeResult(result, report);
  }
  JudgeExpectations(results, plan, report);
  JudgeCounts(results, settings.verify, report);
  if (plan.flags.gates != GateSet::kAll) return OkStatus();
  JudgeGates(results, report);
  EMS_ASSIGN_OR_RETURN(const StoreBench::ExistsTimes exists,
                       bench.MeasureMultiExists(kExistsKeys, kExistsRounds));
  JudgeExists(exists, view->nodes().size(), report);
  return OkStatus();
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  EMS_ASSIGN_OR_RETURN(const RawSockets raw, StartRawSockets(plan));
  if (!plan.flags.name_space.empty()) return MeasureIn(plan.flags.name_space, plan, raw, report);
  EMS_ASSIGN_OR_RETURN(const auto temporary, TemporaryNamespace::Create(plan.flags.controller));
  return MeasureIn(temporary->name(), plan, raw, report);
}

void AddWorkloadFlags(Command* command, Flags* flags) {
  StoreSettings& s = flags->settings;
  command->AddOption("--sizes", &flags->sizes,
                     "Value sizes; by default 4KiB,64KiB,1MiB, with --peers also 9MiB",
                     {.delimiter = ','});
  command->AddOption("--keys", &s.keys, "Keys in a round", {.check = InRange{1, 1'000'000}});
  command->AddOption("--rounds", &flags->rounds, "Measured rounds; by default 20, with --peers 5",
                     {.check = InRange{1, 1'000'000}, .show_default = false});
  command->AddOption("--warmup-rounds", &s.warmup_rounds, "Rounds before, not measured",
                     {.check = InRange{0, 1'000'000}});
  command->AddOption("--batch", &s.batch, "Keys in a call; above 1 the Multi calls are measured",
                     {.check = InRange{1, 16384}});
  command->AddOption("--threads", &flags->threads,
                     "Concurrent callers; they share the keys of a round. With --peers several "
                     "numbers, e.g. 1,2,8",
                     {.check = InRange{1, 256}, .delimiter = ','});
  command->AddOption("--hit-rate", &s.hit_rate, "Share of the keys of a Lookup that were stored",
                     {.check = InRange{0.0, 1.0}});
  command->AddOption("--only", &flags->only, "Measure one section (what it needs is stored before)",
                     {.check = OneOf{{"store", "lookup", "load"}}});
}

}  // namespace

void AddStoreCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* store = program->AddCommand(
      "store", "Measure Put, Exists and Get beside the raw socket of the same run");
  AddClusterOptions(store, flags.get());
  store->AddOption("--namespace", &flags->name_space,
                   "Namespace to use; without it one is made and deleted at the end");
  AddWorkloadFlags(store, flags.get());
  AddTransportOption(store, &flags->transport);
  store->AddFlag("--peers", &flags->peers,
                 "Get and Put over TCP beside memcached and Redis instead; of a cluster of one "
                 "server on this host");
  store->AddOption("--server-pids", &flags->server_pids,
                   "Server processes whose CPU counts; found by itself for Unix sockets",
                   {.delimiter = ','});
  store->AddOption("--placement", &flags->placement,
                   "apart: the caller on one core, the servers of this machine and the raw one on "
                   "another, for as long as the run takes; free: as the scheduler likes; auto: "
                   "apart with --gate",
                   {.check = OneOf{{"auto", "apart", "free"}}});
  store->AddFlag("--no-verify", &flags->no_verify, "Do not compare what comes back");
  store->AddFlag("--no-raw", &flags->no_raw, "Do not measure the raw socket");
  store->AddOption("--expect-get-gbps", &flags->expect_get_gbps,
                   "Fail when Get of the largest size is slower");
  store->AddOption("--expect-put-gbps", &flags->expect_put_gbps,
                   "Fail when Put of the largest size is slower");
  AddCommonOptions(store, flags.get(),
                   {.quick = "A few seconds at most: 16 keys, 5 rounds",
                    .failures = "an error, a wrong byte, a missing key or a failed gate",
                    .examples = {"store", "store --transport tcp --gate --json store.json",
                                 "store --peers --threads 1,2,8 --gate",
                                 "store --sizes 128KiB --keys 512 --batch 64 --threads 4"}});
  store->SetRun([=] {
    return flags->peers ? RunPlanned("store", *flags, MakePeersPlan(*flags), ComparePeers)
                        : RunPlanned("store", *flags, MakePlan(*flags), MeasureAndReport);
  });
}

}  // namespace ems::bench
