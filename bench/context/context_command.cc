#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/context/context_workload.h"
#include "bench/context/paged_bench.h"
#include "bench/harness/bench_cluster.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/trace_payload.h"
#include "bench/trace/ideal_lru.h"
#include "bench/trace/trace_replay.h"
#include "cluster/controller_client.h"
#include "ems_context/context_cache.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kBlockBytesMax = 64 * kMiB;
constexpr uint64_t kLadderBlocksMax = 64;
constexpr int kLadderRepeats = 9;
constexpr double kHitDeltaMax = 1.0;  // points from the ideal LRU
// Points, of a workload that does not fit. What bounds it: each server has an LRU over its share of
// the quota, not of the keys, and a document is loaded up to its first block that is missing on
// any of them. The ideal has one LRU.
constexpr double kOverflowDeltaMax = 4;
constexpr double kLoadVsMemcpyMin = 0.75;
constexpr double kLayersRatioMax = 1.15;
constexpr double kLookupMax = 300;  // µs, of 1,000 blocks
constexpr double kSubmitMax = 100;  // µs, p99

struct Flags : ClusterFlags {
  std::vector<std::string> workloads = WorkloadNames();
  std::string block_bytes = "256KiB";
  WorkloadSettings workload;
  TtftModel ttft;
  uint32_t concurrency = 1;
  PagedSettings paged;
  bool no_paged = false;
  bool pause_servers = false;
  uint64_t bytes_of_block = 0;
};

// A namespace of the bench's own, and a client in it. Threading: one thread.
struct Ground {
  std::unique_ptr<TemporaryNamespace> name_space;
  std::unique_ptr<Client> client;
};

// `capacity_bytes` 0: all there is.
// Errors: kResourceExhausted  the servers have less than that
Result<Ground> OpenGround(const Flags& flags, uint64_t capacity_bytes) {
  ControllerClient controller(flags.controller, "ems-bench");
  EMS_ASSIGN_OR_RETURN(const v1::ListNodesReply nodes, ListNodes(&controller));
  const uint64_t pool = PoolBytes(nodes);
  if (capacity_bytes > pool)
    return Error(StatusCode::kResourceExhausted,
                 "{} are needed, the servers have {} in all: lower --block-bytes, --prompts, "
                 "--prompt-tokens or --rounds",
                 FormatBytes(capacity_bytes), FormatBytes(pool));
  Ground ground;
  EMS_ASSIGN_OR_RETURN(ground.name_space,
                       TemporaryNamespace::Create(flags.controller, capacity_bytes));
  ClientOptions options = ClientOptionsOf(flags, ground.name_space->name());
  options.connections_per_server_max =
      std::max(options.connections_per_server_max, flags.concurrency);
  EMS_ASSIGN_OR_RETURN(ground.client, Client::Connect(options));
  EMS_RETURN_IF_ERROR(WaitUntilReady(ground.client.get()));
  return ground;
}

// The difference that one round makes to the sums.
struct Round {
  double hit_percent = 0, ideal_percent = 0, load_gbps = 0;
};

Round RoundBetween(const ReplayTotals& before, const ReplayTotals& after) {
  const uint64_t blocks = after.blocks - before.blocks;
  return {
      Percent(after.arrived_blocks - before.arrived_blocks, blocks),
      Percent(after.ideal_blocks - before.ideal_blocks, blocks),
      GbPerSecond(after.loaded_bytes - before.loaded_bytes, after.load_time - before.load_time)};
}

void JudgeWorkload(const Workload& workload, const ReplayTotals& totals, Report* report) {
  report->AtMost(kExact, workload.name + "_wrong_bytes", totals.wrong_bytes, 0);
  // Where documents come in turn and do not fit, the ideal LRU has next to no hits either.
  if (workload.name == "overflow") return;
  const bool fits = workload.capacity_blocks >= workload.trace.unique_blocks;
  report->AtMost(kExact, workload.name + "_points_below_ideal",
                 totals.IdealPercent() - totals.ArrivedPercent(),
                 fits ? kHitDeltaMax : kOverflowDeltaMax);
}

Status RunWorkload(const Flags& flags, const Workload& workload, FigureTable* table,
                   Report* report) {
  const uint64_t capacity = workload.capacity_blocks * flags.bytes_of_block;
  EMS_ASSIGN_OR_RETURN(const Ground ground, OpenGround(flags, capacity));
  context::ClientBlockStore store(ground.client.get());
  context::ContextCache cache(&store, {.block_tokens = static_cast<uint32_t>(kTraceBlockTokens)});
  IdealLru ideal(capacity, flags.bytes_of_block);
  ReplaySettings settings;
  settings.block_bytes = flags.bytes_of_block;
  settings.concurrency = flags.concurrency;
  settings.ttft = flags.ttft;
  settings.mark_every_requests = workload.requests_per_round;
  report->Print(fmt::format("{}: {} requests, {} references to {} blocks, capacity {}\n",
                            workload.name, workload.trace.requests.size(),
                            workload.trace.block_references, workload.trace.unique_blocks,
                            FormatBytes(capacity)));
  TraceReplay replay(&workload.trace, &cache, &ideal, settings);
  Json rounds = Json::array();
  ReplayTotals last;
  const auto on_mark = [&](const ReplayTotals& totals) {
    const Round round = RoundBetween(last, totals);
    last = totals;
    rounds.push_back({{"loaded_blocks_percent", round.hit_percent},
                      {"ideal_lru_blocks_percent", round.ideal_percent},
                      {"load_gb_per_s", round.load_gbps}});
    report->Print(fmt::format("  round {}: {:.1f} % of the blocks loaded, ideal LRU {:.1f} %, {}\n",
                              rounds.size(), round.hit_percent, round.ideal_percent,
                              FormatGbps(round.load_gbps)));
  };
  const ReplayResult result = replay.Run(
      on_mark, [](uint64_t) {}, Interrupted);
  const ReplayTotals& totals = result.totals;
  const ReplayLatencies& times = result.latencies;
  table->AddRow();
  table->Label("workload", "name", workload.name);
  table->Field("requests", totals.requests);
  table->Field("block_references", totals.blocks);
  table->Field("unique_blocks", workload.trace.unique_blocks);
  table->Field("capacity_blocks", workload.capacity_blocks);
  table->Figure("loaded %", "loaded_blocks_percent", totals.ArrivedPercent(), 1);
  table->Field("loaded_tokens_percent", totals.ArrivedTokenPercent());
  table->Figure("ideal %", "ideal_lru_blocks_percent", totals.IdealPercent(), 1);
  table->Field("wrong_bytes", totals.wrong_bytes);
  const auto calls = [table](const char* title, const char* key, const LatencyRecorder& of) {
    table->Cell(title, FormatMs(of.p50_ms()));
    table->Cell("p99 ms", FormatMs(of.p99_ms()));
    table->Field(key, LatencyJson(of));
  };
  calls("Lookup p50", "lookup", times.lookup);
  calls("Load p50", "load", times.load);
  calls("Save p50", "save", times.save);
  table->Figure("load GB/s", "load_gb_per_s", GbPerSecond(totals.loaded_bytes, totals.load_time),
                2);
  table->Field("save_gb_per_s", GbPerSecond(totals.saved_bytes, totals.save_time));
  table->Cell("TTFT ms", FormatMs(times.ttft_cached.avg_ms()));
  table->Field("ttft_cached", LatencyJson(times.ttft_cached));
  table->Cell("without", FormatMs(times.ttft_uncached.avg_ms()));
  table->Field("ttft_uncached", LatencyJson(times.ttft_uncached));
  table->Field("rounds", rounds);
  if (!totals.errors.empty()) table->Field("errors", totals.errors);
  report->json()["workloads"] = table->json();
  if (totals.wrong_bytes > 0)
    report->Fail(fmt::format("{}: {} wrong bytes", workload.name, totals.wrong_bytes));
  for (const auto& [kind, count] : totals.errors)
    report->Fail(fmt::format("{}: {}: {} blocks", workload.name, kind, count));
  JudgeWorkload(workload, totals, report);
  return totals.interrupted ? Interruption() : OkStatus();
}

Status RunWorkloads(const Flags& flags, Report* report) {
  FigureTable table;
  for (const std::string& name : flags.workloads) {
    EMS_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(name, flags.workload));
    EMS_RETURN_IF_ERROR(RunWorkload(flags, workload, &table, report));
  }
  report->Print("\n" + table.Render());
  report->Print(fmt::format(
      "TTFT: mean of measured look-up, KV of the hits at the rate of the measured loads, "
      "and missed tokens; no queueing.\n{}\n\n",
      flags.ttft.Text()));
  return OkStatus();
}

// From which length of a prefix on loading it is faster than computing it.
Status RunLadder(const Flags& flags, Report* report) {
  const uint64_t longest = flags.quick ? kLadderBlocksMax / 8 : kLadderBlocksMax;
  EMS_ASSIGN_OR_RETURN(const Ground ground, OpenGround(flags, 0));
  context::ClientBlockStore store(ground.client.get());
  context::ContextCache cache(&store);
  std::vector<std::byte> memory(longest * flags.bytes_of_block);
  std::vector<std::string> keys;
  std::vector<ConstBuffers> values;
  std::vector<MutableBuffers> into;
  for (uint64_t i = 0; i < longest; ++i) {
    const MutableBytes block =
        std::span(memory).subspan(i * flags.bytes_of_block, flags.bytes_of_block);
    FillBlock(i, block);
    keys.push_back(fmt::format("ladder-{}", i));
    values.emplace_back(ConstBytes(block));
    into.emplace_back(block);
  }
  for (const Status& status : cache.Save(keys, values).blocks) EMS_RETURN_IF_ERROR(status);
  FigureTable table;
  uint64_t break_even = 0;
  for (uint64_t blocks = 1; blocks <= longest; blocks *= 2) {
    LatencyRecorder lookups, loads;
    for (int i = 0; i < kLadderRepeats; ++i) {
      const TimePoint start = Clock::System().Now();
      const size_t found = cache.Lookup(std::span(keys).first(blocks)).leading_blocks;
      lookups.Record(Clock::System().Now() - start);
      const TimePoint found_at = Clock::System().Now();
      const size_t loaded =
          cache.Load(std::span(keys).first(blocks), std::span(into).first(blocks)).leading_blocks;
      loads.Record(Clock::System().Now() - found_at);
      if (found != blocks || loaded != blocks)
        return Error(StatusCode::kNotFound, "{} of {} blocks of the ladder are stored", loaded,
                     blocks);
    }
    const uint64_t tokens = blocks * kTraceBlockTokens;
    const double recompute_ms = Millis(flags.ttft.Compute(tokens));
    const double kv_share = static_cast<double>(tokens * flags.ttft.kv_bytes_per_token) /
                            static_cast<double>(blocks * flags.bytes_of_block);
    const double load_ms = lookups.p50_ms() + loads.p50_ms() * kv_share;
    if (load_ms < recompute_ms && break_even == 0) break_even = tokens;
    if (load_ms >= recompute_ms) break_even = 0;
    table.AddRow();
    table.Count("prefix tokens", "tokens", tokens);
    table.Figure("measured p50 ms", "measured_ms", lookups.p50_ms() + loads.p50_ms(), 3);
    table.Figure("look up + load of the KV ms", "load_ms", load_ms, FormatMs(load_ms));
    table.Figure("recompute ms", "recompute_ms", recompute_ms, FormatMs(recompute_ms));
    table.Figure("ratio", "", load_ms / recompute_ms, 4);
  }
  for (uint64_t i = 0; i < longest; ++i) {
    if (CountWrongBytes(i, into[i].parts()[0]) > 0)
      return Error(StatusCode::kDataLoss, "block {} of the ladder has wrong bytes", i);
  }
  report->json()["ladder"] = table.json();
  report->json()["break_even_tokens"] = break_even;
  report->Print(table.Render());
  report->Print(
      break_even == 0
          ? fmt::format("loading never pays up to {} tokens\n\n", longest * kTraceBlockTokens)
          : fmt::format(
                "break-even: a prefix of {} tokens{} is loaded faster than computed: {}\n\n",
                break_even, break_even == kTraceBlockTokens ? " or less" : "", flags.ttft.Text()));
  return OkStatus();
}

Status RunPaged(const Flags& flags, Report* report) {
  PagedSettings settings = flags.paged;
  if (flags.quick) {
    settings.blocks = std::min<uint64_t>(settings.blocks, 4);
    settings.rounds = 2;
    settings.submits = 200;
  }
  EMS_ASSIGN_OR_RETURN(const Ground ground, OpenGround(flags, 0));
  if (flags.pause_servers) {
    EMS_ASSIGN_OR_RETURN(settings.pause, RequireLocalServers(*ground.client->views().view()));
  }
  context::ClientBlockStore store(ground.client.get());
  EMS_ASSIGN_OR_RETURN(const auto bench, PagedBench::Make(settings, &store));
  EMS_ASSIGN_OR_RETURN(const PagedResult result, bench->Run());
  report->Print(fmt::format(
      "paged KV: {} blocks of {} tokens, {} layers of MLA {}+{}, {} each, {} compared\n"
      "  memcpy {}, Load {} = {:.2f} of it, {:.3f} CPU s/GB; Save {}\n"
      "  layer by layer: load {} ms, computing as long, both {} ms = {:.2f} of the larger\n"
      "  Lookup of {} blocks: p50 {:.0f} us, p99 {:.0f} us\n"
      "  submit of an asynchronous Load: p50 {:.1f} us, p99 {:.1f} us{}\n\n",
      result.blocks, settings.block_tokens, settings.layers, settings.latent, settings.rope,
      FormatBytes(result.block_bytes), FormatBytes(result.load_checked),
      FormatGbps(result.memcpy_gbps), FormatGbps(result.load_gbps), result.load_vs_memcpy,
      result.load_cpu_s_per_gb, FormatGbps(result.save_gbps), FormatMs(result.layers_load_ms),
      FormatMs(result.layers_both_ms), result.layers_ratio, result.lookup_blocks,
      result.lookup.QuantileUs(0.5), result.lookup.QuantileUs(0.99), result.submit.QuantileUs(0.5),
      result.submit.QuantileUs(0.99),
      settings.pause.empty() ? ""
                             : fmt::format("; servers stopped: p99 {:.1f} us",
                                           result.submit_paused.QuantileUs(0.99))));
  report->json()["paged"] = {{"block_bytes", result.block_bytes},
                             {"blocks", result.blocks},
                             {"memcpy_gb_per_s", result.memcpy_gbps},
                             {"load_gb_per_s", result.load_gbps},
                             {"save_gb_per_s", result.save_gbps},
                             {"load_vs_memcpy", result.load_vs_memcpy},
                             {"load_cpu_s_per_gb", result.load_cpu_s_per_gb},
                             {"layers_load_ms", result.layers_load_ms},
                             {"layers_both_ms", result.layers_both_ms},
                             {"layers_ratio", result.layers_ratio},
                             {"lookup", LatencyJson(result.lookup)},
                             {"submit", LatencyJson(result.submit)},
                             {"submit_paused", LatencyJson(result.submit_paused)}};
  report->AtLeast(kTimed, "load_vs_memcpy", result.load_vs_memcpy, kLoadVsMemcpyMin);
  report->AtMost(kTimed, "layers_vs_larger", result.layers_ratio, kLayersRatioMax);
  report->AtMost(kTimed, "lookup_1000_p50_us", result.lookup.QuantileUs(0.5), kLookupMax);
  report->AtMost(kTimed, "submit_p99_us", result.submit.QuantileUs(0.99), kSubmitMax);
  if (!settings.pause.empty())
    report->AtMost(kTimed, "submit_paused_p99_us", result.submit_paused.QuantileUs(0.99),
                   kSubmitMax);
  return OkStatus();
}

Status RunAll(const Flags& flags, Report* report) {
  report->Print(
      fmt::format("ems-bench context: blocks of {} tokens and {}, {} concurrent request{}\n\n",
                  kTraceBlockTokens, FormatBytes(flags.bytes_of_block), flags.concurrency,
                  Plural(flags.concurrency)));
  EMS_RETURN_IF_ERROR(RunWorkloads(flags, report));
  EMS_RETURN_IF_ERROR(RunLadder(flags, report));
  return flags.no_paged ? OkStatus() : RunPaged(flags, report);
}

// Errors: kInvalidArgument  flags that make no sense
Result<Flags> MakePlan(Flags flags) {
  EMS_ASSIGN_OR_RETURN(flags.bytes_of_block, ParseBytes(flags.block_bytes));
  if (flags.bytes_of_block == 0 || flags.bytes_of_block > kBlockBytesMax)
    return Error(StatusCode::kInvalidArgument, "--block-bytes {}: 1 to {} are allowed",
                 flags.block_bytes, FormatBytes(kBlockBytesMax));
  if (flags.quick) {
    flags.workload.prompts = std::min<uint64_t>(flags.workload.prompts, 4);
    flags.workload.rounds = std::min<uint64_t>(flags.workload.rounds, 2);
    flags.workload.prompt_tokens = std::min<uint64_t>(flags.workload.prompt_tokens, 4096);
  }
  for (const std::string& name : flags.workloads)
    EMS_RETURN_IF_ERROR(MakeWorkload(name, flags.workload).status());
  return flags;
}

void AddWorkloadFlags(Command* command, Flags* flags) {
  command->AddOption("--workloads", &flags->workloads, "Which to run",
                     {.check = OneOf{WorkloadNames()}, .delimiter = ','});
  command->AddOption("--rounds", &flags->workload.rounds, "Times that each prompt is asked",
                     {.check = InRange{1, 10'000}});
  command->AddOption("--prompts", &flags->workload.prompts, "Documents, users or prompts a round",
                     {.check = InRange{1, 100'000}});
  command->AddOption("--prompt-tokens", &flags->workload.prompt_tokens,
                     "Of a document, of a random prompt", {.check = InRange{1, 100'000'000}});
  command->AddOption("--shared-tokens", &flags->workload.shared_tokens, "Of the system prompt");
  command->AddOption("--turn-tokens", &flags->workload.turn_tokens, "Of a question, of a turn",
                     {.check = InRange{1, 100'000'000}});
  command->AddOption("--seed", &flags->workload.seed, "Of the order of questions");
}

}  // namespace

void AddContextCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* context = program->AddCommand(
      "context", "Measure context caching under synthetic workloads and with paged KV");
  AddClusterOptions(context, flags.get());
  AddWorkloadFlags(context, flags.get());
  context->AddOption("--block-bytes", &flags->block_bytes, "Payload that stands for 512 tokens");
  context->AddOption("--concurrency", &flags->concurrency, "Concurrent requests",
                     {.check = InRange{1, 256}});
  AddTtftOptions(context, &flags->ttft);
  context->AddFlag("--no-paged", &flags->no_paged, "Leave the paged KV out");
  context->AddOption("--paged-blocks", &flags->paged.blocks, "Blocks of 9.0 MB that are loaded",
                     {.check = InRange{1, 4096}});
  context->AddFlag("--pause-servers", &flags->pause_servers,
                   "Time submits with the servers of this host stopped (SIGSTOP), too");
  AddCommonOptions(
      context, flags.get(),
      {.quick = "Seconds only: few and short prompts",
       .about =
           "long-doc-qa: documents that are asked about again and again. chat: users behind one "
           "system\nprompt whose conversations grow. random: nothing in common. overflow: 5 % more "
           "than fits.\nEvery loaded byte is compared. Each workload has a namespace of its own, "
           "deleted at its end.",
       .examples = {"context --gate",
                    "context --workloads chat --rounds 10 --prompts 64 --block-bytes 1MiB"}});
  context->SetRun([=] { return RunPlanned("context", *flags, MakePlan(*flags), RunAll); });
}

}  // namespace ems::bench
