#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/interrupt.h"
#include "bench/serve/serve_bench.h"
#include "bench/serve/serve_report.h"
#include "bench/serve/serving_loop.h"
#include "common/bytes.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kModelsTimeout = std::chrono::seconds(10);
constexpr const char* kWithoutEms = "without EMS";
constexpr const char* kWithEms = "with EMS";

constexpr uint32_t kConcurrencyClosed = 4;
constexpr uint64_t kPrompts = 24;  // of a part: enough to say how far they spread
constexpr uint64_t kWarmupPrompts = 4;

struct Flags : CommonFlags {
  ServeSettings serve;
  uint32_t concurrency = 0;  // 0: depends on the loop
  PdcLoopOptions loop;
  std::string api;          // of a loop that runs; empty: starts two
  std::string api_without;  // of one without EMS, to compare with
  bool own_system = false;
  bool brief = false;
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  ServeSettings settings;
};

// Loops of this run, and what asks them. Threading: one thread.
struct Loops {
  std::vector<std::unique_ptr<PdcLoop>> started;  // ended when this goes
  std::vector<ServeSide> sides;
  std::vector<std::string> names;
};

Status AddSide(std::string name, const std::string& address, SideCache cache, Loops* loops) {
  Result<std::string> model = ServedModel(address, kModelsTimeout);
  if (!model.ok()) return Prefixed(model.status(), fmt::format("no serving loop at {}", address));
  loops->names.push_back(name);
  loops->sides.push_back(
      {.name = std::move(name), .client = ServeClient(address, *model), .cache = cache});
  return OkStatus();
}

Result<Loops> OpenLoops(const Flags& flags) {
  Loops loops;
  if (!flags.api.empty() && flags.api_without.empty()) {
    EMS_RETURN_IF_ERROR(AddSide(flags.api, flags.api, SideCache::kUnknown, &loops));
    return loops;
  }
  for (const bool with_ems : {false, true}) {
    std::string address = with_ems ? flags.api : flags.api_without;
    if (flags.api.empty()) {
      EMS_ASSIGN_OR_RETURN(auto loop, PdcLoop::Start(flags.loop, with_ems));
      address = loop->address();
      loops.started.push_back(std::move(loop));
    }
    EMS_RETURN_IF_ERROR(AddSide(with_ems ? kWithEms : kWithoutEms, address,
                                with_ems ? SideCache::kExpected : SideCache::kNone, &loops));
  }
  return loops;
}

// Errors: kInvalidArgument  flags that contradict each other, or make no workload
Result<Plan> MakePlan(const Flags& flags) {
  Plan plan{.flags = flags, .settings = flags.serve};
  ServeSettings& settings = plan.settings;
  settings.chat.shared_system = !flags.own_system;
  settings.load.concurrency = flags.concurrency;
  if (flags.concurrency == 0)
    settings.load.concurrency = settings.load.rate > 0 ? kConcurrencyMax : kConcurrencyClosed;
  settings.chat.seed = settings.load.seed = settings.prefix.seed;
  if (flags.quick) {
    settings.prefix.prompts = std::min<uint64_t>(settings.prefix.prompts, 4);
    settings.warmup_prompts = std::min<uint64_t>(settings.warmup_prompts, 1);
    settings.chat.conversations = std::min<uint64_t>(settings.chat.conversations, 2);
    settings.chat.rounds = std::min<uint64_t>(settings.chat.rounds, 2);
  }
  settings.prefix.groups = std::min(settings.prefix.groups, settings.prefix.prompts);
  // Blocks of earlier runs at the same loop would be hits that this one did not earn.
  settings.cache_salt =
      fmt::format("bench-{}-{:x}", getpid(), Clock::System().Now().time_since_epoch().count());
  if (flags.api.empty() && !flags.api_without.empty())
    return Error(StatusCode::kInvalidArgument, "--api-without: there is no --api to compare");
  for (const double reuse : settings.reuses) {
    SharedPrefixSettings prefix = settings.prefix;
    prefix.reuse = reuse;
    EMS_RETURN_IF_ERROR(MakeSharedPrefix(prefix).status());
  }
  if (flags.gates == GateSet::kNone) return plan;
  const bool two = flags.api.empty() || !flags.api_without.empty();
  const bool has_target =
      std::ranges::any_of(settings.reuses, [](double reuse) { return TargetFall(reuse) > 0; });
  if (!two || !has_target)
    return Error(
        StatusCode::kInvalidArgument,
        "--gate: a loop with EMS and one without are compared, at a --reuse of 0.5 or 0.9");
  return plan;
}

void PrintResults(const ServeResults& results, std::span<const std::string> names, bool brief,
                  Report* report) {
  for (const ServePhase& phase : results.phases) {
    if (phase.alone || brief) continue;  // its times are in the table of reuse
    report->Print(fmt::format("\n{}\n{}", phase.name, ServingBlock(phase.sides, names)));
  }
  if (!results.rounds.empty()) report->Print("\n" + RoundTable(results, names));
  if (std::ranges::any_of(results.phases, [](const ServePhase& one) { return one.reuse > 0; })) {
    report->Print("\n" + ReuseTable(results, names));
    report->Print(
        "reuse: prompts whose beginning was stored before, by one that does not count. TTFT: mean, "
        "and within which the middle half of the requests lies\n\n");
  }
}

void FailWhatFailed(const ServeResults& results, std::span<const std::string> names,
                    Report* report) {
  for (const std::string& difference : results.differences) report->Fail(difference);
  for (const ServePhase& phase : results.phases) {
    for (size_t side = 0; side < phase.sides.size(); ++side) {
      for (const auto& [text, count] : phase.sides[side].errors)
        report->Fail(fmt::format("{}, {}: {} requests: {}", phase.name, names[side], count, text));
    }
  }
}

Json SettingsJson(const ServeSettings& settings) {
  return {{"conversations", settings.chat.conversations},
          {"rounds", settings.chat.rounds},
          {"system_tokens", settings.chat.system_tokens},
          {"shared_system", settings.chat.shared_system},
          {"user_tokens", settings.chat.user_tokens},
          {"chat_output_tokens", settings.chat_output_tokens},
          {"prompts", settings.prefix.prompts},
          {"warmup_prompts", settings.warmup_prompts},
          {"groups", settings.prefix.groups},
          {"prompt_tokens", settings.prefix.prompt_tokens},
          {"block_tokens", settings.prefix.block_tokens},
          {"output_tokens", settings.output_tokens},
          {"reuses", settings.reuses},
          {"concurrency", settings.load.concurrency},
          {"rate", settings.load.rate},
          {"seed", settings.prefix.seed}};
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  const ServeSettings& settings = plan.settings;
  EMS_ASSIGN_OR_RETURN(const Loops loops, OpenLoops(plan.flags));
  report->json()["settings"] = SettingsJson(settings);
  if (plan.flags.api.empty()) report->json()["settings"]["model"] = plan.flags.loop.model;
  report->Print(fmt::format(
      "{} conversations of {} rounds; {} prompts of {} tokens in {} groups that begin alike; {}\n",
      settings.chat.conversations, settings.chat.rounds, settings.prefix.prompts,
      settings.prefix.prompt_tokens, settings.prefix.groups,
      settings.load.rate > 0 ? fmt::format("{:g} requests a second", settings.load.rate)
                             : fmt::format("{} at a time", settings.load.concurrency)));
  ServeBench bench(settings, loops.sides, Interrupted);
  EMS_ASSIGN_OR_RETURN(const ServeResults results, bench.Run([&](const std::string& phase) {
    report->Print(fmt::format("  {} …\n", phase));
  }));
  PrintResults(results, loops.names, plan.flags.brief, report);
  FailWhatFailed(results, loops.names, report);
  if (loops.sides.size() > 1 && results.differences.empty())
    report->Print("every answer is the same with EMS and without, greedy and sampled\n");
  report->json().update(ServeJson(results, loops.names));
  AddServeGates(results, report);
  return OkStatus();
}

void AddWorkloadOptions(Command* serve, Flags* flags) {
  ServeSettings& settings = flags->serve;
  serve->AddOption("--prompts", &settings.prefix.prompts, "Prompts of each reuse, twice",
                   {.check = InRange{1, 1'000'000}});
  serve->AddOption("--warmup-prompts", &settings.warmup_prompts,
                   "Of each loop, before anything counts", {.check = InRange{0, 1'000'000}});
  serve->AddOption("--groups", &settings.prefix.groups, "That they are in; a group begins alike",
                   {.check = InRange{1, 100'000}});
  serve->AddOption("--prompt-tokens", &settings.prefix.prompt_tokens, "Length of each of them",
                   {.check = InRange{32, 1'000'000}});
  serve->AddOption("--output-tokens", &settings.output_tokens, "Length of their answers",
                   {.check = InRange{1, 100'000}});
  serve->AddOption("--reuse", &settings.reuses, "Shares of a prompt that were stored before",
                   {.check = InRange{0.0, 1.0}, .delimiter = ','});
  serve->AddOption("--block-tokens", &settings.prefix.block_tokens,
                   "Tokens of a cached block: shares are whole ones", {.check = InRange{16, 512}});
  serve->AddOption("--conversations", &settings.chat.conversations, "Of several rounds",
                   {.check = InRange{0, 100'000}});
  serve->AddOption("--rounds", &settings.chat.rounds, "Of each conversation; 0: no conversations",
                   {.check = InRange{0, 1'000}});
  serve->AddOption("--system-tokens", &settings.chat.system_tokens, "What each begins with",
                   {.check = InRange{0, 1'000'000}});
  serve->AddFlag("--own-system", &flags->own_system, "Each begins with words of its own");
  serve->AddOption("--user-tokens", &settings.chat.user_tokens, "What a user says in a round",
                   {.check = InRange{1, 1'000'000}});
  serve->AddOption("--chat-output-tokens", &settings.chat_output_tokens, "Length of an answer",
                   {.check = InRange{1, 100'000}});
  serve->AddOption("--concurrency", &flags->concurrency,
                   "Requests under way at a time; 4, or with --rate at most 64",
                   {.check = InRange{1U, kConcurrencyMax}, .show_default = false});
  serve->AddOption("--rate", &settings.load.rate,
                   "Requests arrive so many a second (Poisson); 0: as others end",
                   {.check = InRange{0.0, 1e6}});
  serve->AddOption("--seed", &settings.prefix.seed, "Of texts and arrivals");
}

void AddLoopOptions(Command* serve, Flags* flags) {
  serve->AddOption("--model", &flags->loop.model, "Preset of the loops that are started",
                   {.check = OneOf{{"tiny", "small", "base", "large"}}});
  serve->AddOption("--controller", &flags->loop.controller,
                   "host:port of the pool's; without: a pool of the bench's own",
                   {.environment = "EMS_CONTROLLER"});
  serve->AddOption("--pool-bytes", &flags->loop.pool_bytes, "DRAM of that pool");
  serve->AddOption("--set", &flags->loop.settings, "KEY=VALUE for the ems-pdc that are started");
  serve->AddOption("--api", &flags->api, "host:port of a serving loop that runs; starts none");
  serve->AddOption("--api-without", &flags->api_without,
                   "host:port of one without EMS, to compare it with");
}

}  // namespace

void AddServeCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  flags->serve.prefix.prompts = kPrompts;
  flags->serve.warmup_prompts = kWarmupPrompts;
  Command* serve = program->AddCommand(
      "serve",
      "The serving loop with a real engine: conversations and shared prefixes, with EMS "
      "and without");
  AddLoopOptions(serve, flags.get());
  AddWorkloadOptions(serve, flags.get());
  serve->AddFlag("--brief", &flags->brief, "Print hit rates and TTFT alone");
  AddCommonOptions(
      serve, flags.get(),
      {.quick = "Few prompts, conversations and rounds",
       .about =
           "Two loops, one with EMS behind it and one without, answer the same requests in turns; "
           "each\nanswer has to be the same. Half of the requests are greedy, half sampled with a "
           "seed.\nPrompts of a stated reuse are asked one at a time, for TTFT without queueing, "
           "and others\nlike them under load. A token is a byte.",
       .failures = "an error, an answer that differs or a failed gate",
       .examples = {"serve --gate",
                    "serve --model small --rounds 8 --concurrency 8 --reuse 0.25,0.5,0.75,0.9",
                    "serve --api 127.0.0.1:8000 --rate 20 --prompts 1000"}});
  serve->SetRun([=] { return RunPlanned("serve", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
