#include <algorithm>
#include <chrono>
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
#include "bench/harness/interrupt.h"
#include "bench/trace/ideal_lru.h"
#include "bench/trace/trace_placement.h"
#include "bench/trace/trace_replay.h"
#include "bench/trace/trace_report.h"
#include "bench/trace/trace_source.h"
#include "cluster/controller_client.h"
#include "common/thread_pool.h"
#include "ems_context/context_cache.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

constexpr uint64_t kQuickRequests = 1000;
constexpr uint64_t kServerBlocksMin = 2;
constexpr uint64_t kBlockBytesMax = 64 * kMiB;
constexpr uint64_t kMemoryMax = 8 * kGiB;  // of all workers
constexpr Duration kControlTimeout = std::chrono::seconds(5);
constexpr Duration kHeartbeatWaitMax = std::chrono::seconds(4);
constexpr Duration kPollInterval = std::chrono::milliseconds(50);

struct Flags : ClusterFlags {
  std::string name_space;
  TraceChoice trace;
  std::string block_bytes = "16KiB";
  double capacity_percent = 10;
  uint64_t mark_percent = 10;
  double timeout_s = 1;
  std::string transport = "auto";
  ReplaySettings settings;
  TraceExpectations expect;
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  Trace trace;
  uint64_t capacity_bytes = 0;  // for a namespace of its own
};

Status CheckMemory(const Flags& flags, const Trace& trace) {
  const uint64_t each = trace.request_blocks_max * flags.settings.block_bytes;
  if (each <= kMemoryMax / flags.settings.concurrency) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "{} concurrent requests of up to {} blocks of {} need more than {} here: lower "
               "--concurrency or --block-bytes",
               flags.settings.concurrency, trace.request_blocks_max,
               FormatBytes(flags.settings.block_bytes), FormatBytes(kMemoryMax));
}

// Errors: kInvalidArgument and the like  what the user has to change
Result<Plan> MakePlan(Flags flags) {
  if (flags.quick && flags.trace.requests == 0) flags.trace.requests = kQuickRequests;
  EMS_ASSIGN_OR_RETURN(flags.settings.block_bytes, ParseBytes(flags.block_bytes));
  if (flags.settings.block_bytes == 0 || flags.settings.block_bytes > kBlockBytesMax)
    return Error(StatusCode::kInvalidArgument, "--block-bytes {}: 1 to {} are allowed",
                 flags.block_bytes, FormatBytes(kBlockBytesMax));
  Plan plan;
  EMS_ASSIGN_OR_RETURN(plan.trace, TakeTrace(&flags.trace));
  EMS_RETURN_IF_ERROR(CheckMemory(flags, plan.trace));
  const double blocks =
      std::floor(static_cast<double>(plan.trace.unique_blocks) * flags.capacity_percent / 100);
  plan.capacity_bytes = static_cast<uint64_t>(std::max(blocks, 1.0)) * flags.settings.block_bytes;
  flags.settings.mark_every_requests = (plan.trace.requests.size() * flags.mark_percent + 99) / 100;
  plan.flags = std::move(flags);
  return plan;
}

// Heartbeats carry usage: waits until each live server has sent one after `moment`, a few seconds
// at most.
Result<v1::ListNodesReply> UsageSince(TimePoint moment, ControllerClient* controller) {
  const Deadline deadline = Deadline::After(kHeartbeatWaitMax);
  StopFlag never;
  while (true) {
    EMS_ASSIGN_OR_RETURN(v1::ListNodesReply nodes, ListNodes(controller));
    const auto since =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - moment);
    const bool fresh =
        std::all_of(nodes.nodes().begin(), nodes.nodes().end(), [&](const v1::NodeStatus& node) {
          return !IsLive(node) || node.heartbeat_age_ms() < static_cast<uint64_t>(since.count());
        });
    if (fresh || deadline.Passed()) return nodes;
    never.WaitFor(kPollInterval);
  }
}

// What the replay added to each server.
std::vector<ServerBytes> BytesAdded(const v1::ListNodesReply& before,
                                    const v1::ListNodesReply& after) {
  std::vector<ServerBytes> servers;
  for (const v1::NodeStatus& node : after.nodes()) {
    uint64_t base = 0;
    for (const v1::NodeStatus& old : before.nodes())
      if (old.node().boot_id() == node.node().boot_id()) base = old.usage().dram_used_bytes();
    const uint64_t now = node.usage().dram_used_bytes();
    servers.push_back({node.node().name(), IsLive(node), now > base ? now - base : 0});
  }
  return servers;
}

// How many objects the servers have answered from their SSDs since they started.
uint64_t SsdHits(Client* client) {
  uint64_t hits = 0;
  for (const NodeInfo& node : client->views().view()->nodes()) {
    const Result<std::string> stats = client->ServerStats(node.name, std::chrono::seconds(1));
    if (!stats.ok()) continue;  // it has died: what it had answered is not known any more
    const auto json = nlohmann::json::parse(*stats, nullptr, false);
    if (json.is_object()) hits += json.value("ssd_hits", uint64_t{0});
  }
  return hits;
}

// The namespace that is replayed into. Threading: one thread.
struct Target {
  std::unique_ptr<TemporaryNamespace> temporary;  // null: the user's
  std::string name;
  uint64_t capacity_bytes = 0;
};

// The quota of a namespace that is made: each server has a part of it, which holds blocks however
// short the trace is.
uint64_t QuotaFor(const Plan& plan, const v1::ListNodesReply& nodes) {
  const auto live =
      static_cast<uint64_t>(std::count_if(nodes.nodes().begin(), nodes.nodes().end(), IsLive));
  return std::max(plan.capacity_bytes, live * kServerBlocksMin * plan.flags.settings.block_bytes);
}

Result<Target> OpenTarget(const Plan& plan, const v1::ListNodesReply& nodes,
                          ControllerClient* controller) {
  const uint64_t pool_bytes = PoolBytes(nodes), quota = QuotaFor(plan, nodes);
  Target target;
  if (!plan.flags.name_space.empty()) {
    EMS_ASSIGN_OR_RETURN(
        const NamespaceInfo info,
        controller->GetNamespace(plan.flags.name_space, Deadline::After(kControlTimeout)));
    target.name = info.name;
    target.capacity_bytes =
        info.dram_quota_bytes == 0 ? pool_bytes : std::min(info.dram_quota_bytes, pool_bytes);
    return target;
  }
  if (quota > pool_bytes)
    return Error(StatusCode::kResourceExhausted,
                 "{:g} % of the unique blocks are {}, but the servers have {} in all: lower "
                 "--capacity-percent or --block-bytes",
                 plan.flags.capacity_percent, FormatBytes(quota), FormatBytes(pool_bytes));
  EMS_ASSIGN_OR_RETURN(target.temporary, TemporaryNamespace::Create(plan.flags.controller, quota));
  target.name = target.temporary->name();
  target.capacity_bytes = quota;
  return target;
}

Result<std::unique_ptr<Client>> ConnectClient(const Flags& flags, const std::string& name_space) {
  ClientOptions options = ClientOptionsOf(flags, name_space);
  options.connections_per_server_max =
      std::max(options.connections_per_server_max, flags.settings.concurrency);
  options.transport = ParseTransport(flags.transport);
  return Client::Connect(options);
}

void Announce(const Plan& plan, const Target& target, size_t servers, Report* report) {
  const ReplaySettings& settings = plan.flags.settings;
  const Trace& trace = plan.trace;
  report->Print(
      fmt::format("ems-bench trace: {}\n"
                  "{} requests, {} references to {} unique blocks of {} tokens, {} each\n"
                  "{} servers, namespace {}, capacity {} = {:.2f} % of the unique bytes\n"
                  "{} concurrent, {}, verification {}\n\n",
                  plan.flags.trace.path, trace.requests.size(), trace.block_references,
                  trace.unique_blocks, kTraceBlockTokens, FormatBytes(settings.block_bytes),
                  servers, target.name, FormatBytes(target.capacity_bytes),
                  100 * static_cast<double>(target.capacity_bytes) /
                      static_cast<double>(trace.unique_blocks * settings.block_bytes),
                  settings.concurrency,
                  settings.speedup > 0 ? fmt::format("the trace's times / {:g}", settings.speedup)
                                       : "as fast as possible",
                  settings.verify ? "on" : "OFF"));
  if (settings.concurrency > 1)
    report->Print("note: the ideal LRU sees the requests in the trace's order\n\n");
  report->json()["trace"] = plan.flags.trace.path;
  report->json()["namespace"] = target.name;
}

ReplayResult Replay(const Plan& plan, const Target& target, Client* client, Report* report) {
  context::ClientBlockStore store(client);
  context::ContextCacheOptions options;
  options.block_tokens = static_cast<uint32_t>(kTraceBlockTokens);
  options.timeout = Duration(std::llround(plan.flags.timeout_s * 1e9));
  context::ContextCache cache(&store, options);
  IdealLru ideal(target.capacity_bytes, plan.flags.settings.block_bytes);
  TraceReplay replay(&plan.trace, &cache, &ideal, plan.flags.settings);
  const uint64_t requests = plan.trace.requests.size();
  terminal::ProgressBar bar({.label = "replaying", .total = requests, .unit = "requests"});
  report->Print(MarkTitle());
  const auto on_mark = [&](const ReplayTotals& totals) {
    bar.Clear();
    report->Print(MarkLine(totals, requests));
  };
  return replay.Run(
      on_mark, [&](uint64_t done) { bar.Update(done); }, Interrupted);
}

// Where the keys belong, in a namespace that nothing else has a say in.
Result<std::vector<PlacedBytes>> Placement(const Plan& plan) {
  EMS_ASSIGN_OR_RETURN(const auto name_space, TemporaryNamespace::Create(plan.flags.controller));
  EMS_ASSIGN_OR_RETURN(const auto client, ConnectClient(plan.flags, name_space->name()));
  EMS_RETURN_IF_ERROR(WaitUntilReady(client.get()));
  return MeasurePlacement(plan.trace, plan.flags.settings.block_bytes, name_space->name(),
                          client.get());
}

Status ReplayAndReport(const Plan& plan, Report* report) {
  ControllerClient controller(plan.flags.controller, "ems-bench");
  // Fresh, so that what an earlier run has left and given back since is not counted.
  EMS_ASSIGN_OR_RETURN(const v1::ListNodesReply before,
                       UsageSince(Clock::System().Now(), &controller));
  EMS_ASSIGN_OR_RETURN(const Target target, OpenTarget(plan, before, &controller));
  EMS_ASSIGN_OR_RETURN(const auto client, ConnectClient(plan.flags, target.name));
  EMS_RETURN_IF_ERROR(WaitUntilReady(client.get()));
  Announce(plan, target, client->views().view()->nodes().size(), report);
  TraceFigures figures;
  figures.trace = &plan.trace;
  figures.settings = plan.flags.settings;
  figures.capacity_bytes = target.capacity_bytes;
  const uint64_t ssd_hits_before = SsdHits(client.get());
  figures.replay = Replay(plan, target, client.get(), report);
  const uint64_t ssd_hits_after = SsdHits(client.get());
  figures.ssd_hits = ssd_hits_after - std::min(ssd_hits_after, ssd_hits_before);
  EMS_ASSIGN_OR_RETURN(const v1::ListNodesReply after,
                       UsageSince(Clock::System().Now(), &controller));
  figures.servers = BytesAdded(before, after);
  if (plan.flags.gates != GateSet::kNone) {
    EMS_ASSIGN_OR_RETURN(figures.placement, Placement(plan));
  }
  ReportTrace(figures, plan.flags.expect, report);
  return OkStatus();
}

void AddWorkloadFlags(Command* command, Flags* flags) {
  ReplaySettings& settings = flags->settings;
  AddTraceOptions(command, &flags->trace);
  command->AddOption("--block-bytes", &flags->block_bytes, "Payload that stands for 512 tokens");
  command->AddOption("--requests", &flags->trace.requests,
                     "Only the first N requests; 0: all, or 5000 that are made");
  command->AddOption("--concurrency", &settings.concurrency,
                     "Concurrent requests; 1 keeps their order", {.check = InRange{1, 256}});
  command->AddOption("--speedup", &settings.speedup,
                     "Honour the trace's times divided by this; 0: as fast as possible",
                     {.check = InRange{0.0, 1e6}});
  AddTtftOptions(command, &settings.ttft);
  command->AddOption("--timeout", &flags->timeout_s,
                     "Deadline of a call in seconds, to which its bytes at 100 MB/s are added",
                     {.check = InRange{0.001, 30.0}});
  command->AddOption("--mark-percent", &flags->mark_percent,
                     "Print the hit rate so far after each such share of the requests",
                     {.check = InRange{1, 100}});
  command->AddFlag("--verify,!--no-verify", &settings.verify,
                   "Compare every loaded byte (default)");
}

}  // namespace

void AddTraceCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* trace = program->AddCommand(
      "trace", "Replay a request trace through context caching, beside an ideal LRU");
  AddClusterOptions(trace, flags.get());
  trace->AddOption(
      "--namespace", &flags->name_space,
      "Namespace to use, its quota being the capacity; without it one is made and deleted");
  trace->AddOption("--capacity-percent", &flags->capacity_percent,
                   "Quota of the made namespace, as a share of the trace's unique blocks",
                   {.check = InRange{0.01, 100.0}});
  trace->Exclude("--capacity-percent", "--namespace");
  AddTransportOption(trace, &flags->transport);
  AddWorkloadFlags(trace, flags.get());
  trace->AddOption("--expect-hit-rate", &flags->expect.hit_rate_percent,
                   "Fail when fewer than this percentage of the blocks were loaded");
  trace->AddOption("--expect-hit-rate-delta", &flags->expect.hit_delta_points,
                   "Fail when the hit rate is more points away from the ideal LRU's");
  trace->AddFlag("--expect-errors", &flags->expect.errors,
                 "Calls may fail, as servers are stopped meanwhile: they count as misses");
  AddCommonOptions(
      trace, flags.get(),
      {.quick = "Seconds only: the first 1000 requests",
       .about =
           "Each request looks its blocks up, loads the leading ones that are stored and saves the "
           "rest.",
       .examples = {"trace", "trace --capacity-percent 25 --gate --json trace.json",
                    "trace --make cyclic --capacity-percent 50",
                    "trace --format sharegpt --trace ShareGPT_V3_unfiltered_cleaned_split.json",
                    "trace --speedup 60 --concurrency 8 --block-bytes 256KiB"}});
  trace->SetRun([=] { return RunPlanned("trace", *flags, MakePlan(*flags), ReplayAndReport); });
}

}  // namespace ems::bench
