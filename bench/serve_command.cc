#include "bench/serve_command.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/interrupt.h"
#include "bench/report.h"
#include "bench/serve_bench.h"
#include "bench/serve_report.h"
#include "bench/serving_loop.h"
#include "common/bytes.h"
#include "common/command_line.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kModelsTimeout = std::chrono::seconds(10);
constexpr const char* kWithoutEms = "without EMS";
constexpr const char* kWithEms = "with EMS";

constexpr uint32_t kConcurrencyClosed = 4;

struct Flags {
  ServeSettings serve;
  uint32_t concurrency = 0;  // 0: depends on the loop
  PdcLoopOptions loop;
  std::string api;          // of a loop that runs; empty: starts two
  std::string api_without;  // of one without EMS, to compare with
  bool own_system = false;
  std::string json_path;
  bool quick = false;
  bool brief = false;
  GateChoice gates;
};

// Loops of this run, and what asks them. Threading: one thread.
struct Loops {
  std::vector<std::unique_ptr<ServingLoop>> started;  // ended when this goes
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
      loops.started.push_back(std::make_unique<PdcLoop>(flags.loop));
      EMS_ASSIGN_OR_RETURN(address, loops.started.back()->Start(with_ems));
    }
    EMS_RETURN_IF_ERROR(AddSide(with_ems ? kWithEms : kWithoutEms, address,
                                with_ems ? SideCache::kExpected : SideCache::kNone, &loops));
  }
  return loops;
}

// Errors: kInvalidArgument  flags that contradict each other, or make no workload
Result<ServeSettings> SettingsOf(const Flags& flags) {
  ServeSettings settings = flags.serve;
  settings.chat.shared_system = !flags.own_system;
  settings.load.concurrency = flags.concurrency;
  if (flags.concurrency == 0)
    settings.load.concurrency = settings.load.rate > 0 ? kConcurrencyMax : kConcurrencyClosed;
  settings.chat.seed = settings.load.seed = settings.prefix.seed;
  if (flags.quick) {
    settings.prefix.prompts = std::min<uint64_t>(settings.prefix.prompts, 4);
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
    const auto made = MakeSharedPrefix(prefix);
    if (!made.ok()) return made.status();
  }
  if (flags.gates == GateSet::kNone) return settings;
  const bool two = flags.api.empty() || !flags.api_without.empty();
  const bool promised =
      std::ranges::any_of(settings.reuses, [](double reuse) { return PromisedFall(reuse) > 0; });
  if (!two || !promised)
    return Error(
        StatusCode::kInvalidArgument,
        "--gate: a loop with EMS and one without are compared, at a --reuse of 0.5 or 0.9");
  return settings;
}

void PrintResults(const ServeResults& results, std::span<const std::string> names, bool brief,
                  Report* report) {
  for (const ServePhase& phase : results.phases) {
    if (phase.alone || brief) continue;  // its times are in the table of reuse
    report->Print(fmt::format("\n{}\n{}", phase.name,
                              names.size() > 1 ? ServingBlockSideBySide(phase.sides, names)
                                               : ServingBlock(phase.sides[0])));
  }
  if (!results.rounds.empty()) report->Print("\n" + RoundTable(results, names));
  if (std::ranges::any_of(results.phases, [](const ServePhase& one) { return one.reuse > 0; })) {
    report->Print("\n" + ReuseTable(results, names));
    report->Print(
        "reuse: prompts whose beginning was stored before, by one that does not count\n\n");
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
          {"groups", settings.prefix.groups},
          {"prompt_tokens", settings.prefix.prompt_tokens},
          {"block_tokens", settings.prefix.block_tokens},
          {"output_tokens", settings.output_tokens},
          {"reuses", settings.reuses},
          {"concurrency", settings.load.concurrency},
          {"rate", settings.load.rate},
          {"seed", settings.prefix.seed}};
}

int RunServe(const Flags& flags) {
  CatchInterrupts();
  Report report("serve", flags.json_path, flags.gates);
  const Result<ServeSettings> settings = SettingsOf(flags);
  if (!settings.ok()) {
    report.Fail(ToString(settings.status()));
    return kExitUsage;
  }
  const Result<Loops> loops = OpenLoops(flags);
  if (!loops.ok()) {
    report.Fail(ToString(loops.status()));
    return report.Finish();
  }
  report.json()["settings"] = SettingsJson(*settings);
  if (flags.api.empty()) report.json()["settings"]["model"] = flags.loop.model;
  report.Print(fmt::format(
      "{} conversations of {} rounds; {} prompts of {} tokens in {} groups that begin alike; {}\n",
      settings->chat.conversations, settings->chat.rounds, settings->prefix.prompts,
      settings->prefix.prompt_tokens, settings->prefix.groups,
      settings->load.rate > 0 ? fmt::format("{:g} requests a second", settings->load.rate)
                              : fmt::format("{} at a time", settings->load.concurrency)));
  ServeBench bench(*settings, loops->sides, Interrupted);
  const Result<ServeResults> results =
      bench.Run([&](const std::string& phase) { report.Print(fmt::format("  {} …\n", phase)); });
  if (!results.ok()) {
    report.Fail(ToString(results.status()));
    return report.Finish();
  }
  PrintResults(*results, loops->names, flags.brief, &report);
  FailWhatFailed(*results, loops->names, &report);
  if (loops->sides.size() > 1 && results->differences.empty())
    report.Print("every answer is the same with EMS and without, greedy and sampled\n");
  report.json().update(ServeJson(*results, loops->names));
  AddServeGates(*results, &report);
  return report.Finish();
}

void AddWorkloadOptions(Command* serve, Flags* flags) {
  ServeSettings& settings = flags->serve;
  serve->AddOption("--prompts", &settings.prefix.prompts, "Prompts of each reuse, twice",
                   {.check = InRange{1, 1'000'000}});
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
  Command* serve = program->AddCommand(
      "serve",
      "The serving loop with a real engine: conversations and shared prefixes, with EMS "
      "and without");
  AddLoopOptions(serve, flags.get());
  AddWorkloadOptions(serve, flags.get());
  serve->AddOption("--json", &flags->json_path, "Write the figures to this file");
  serve->AddFlag("--quick", &flags->quick, "Few prompts, conversations and rounds");
  serve->AddFlag("--brief", &flags->brief, "Print hit rates and TTFT alone");
  AddGateOption(serve, &flags->gates);
  serve->SetFooter(
      "Two loops, one with EMS behind it and one without, answer the same requests in turns; each\n"
      "answer has to be the same. Half of the requests are greedy, half sampled with a seed.\n"
      "Prompts of a stated reuse are asked one at a time, for TTFT without queueing, and others\n"
      "like them under load. A token is a byte.\n"
      "Exit codes: 0 all went well; 1 an error, an answer that differs or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench serve --gate\n"
      "  ems-bench serve --model small --rounds 8 --concurrency 8 --reuse 0.25,0.5,0.75,0.9\n"
      "  ems-bench serve --api 127.0.0.1:8000 --rate 20 --prompts 1000");
  serve->SetRun([flags] { return RunServe(*flags); });
}

}  // namespace ems::bench
