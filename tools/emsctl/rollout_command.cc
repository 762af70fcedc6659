// emsctl rollout restart: all servers, one after another.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/command_line.h"
#include "mp_sdk/client.h"
#include "proto/controller.pb.h"
#include "tools/emsctl/ask_servers.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/rollout/restarts.h"
#include "tools/emsctl/rollout/run_words.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::vector<std::string> servers;
  std::string command;
  std::string method = "auto";
  double wait_seconds = 900;
  bool dry_run = false;
  bool allow_cold = false;

  RestartOptions options(const Context& context) const {
    RestartOptions options;
    options.servers = servers;
    options.cold_is_fine = allow_cold;
    if (method != "auto")
      options.method = method == "hold" ? RestartMethod::kHold : RestartMethod::kDrain;
    options.patience = {
        .call = context.timeout(),
        .whole = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(wait_seconds))};
    return options;
  }
};

Json CountJson(const std::optional<uint64_t>& count) { return count ? Json(*count) : Json(); }

Json PlanJson(const std::vector<RestartStep>& steps) {
  Json list = Json::array();
  for (const RestartStep& step : steps)
    list.push_back({{"name", step.name},
                    {"host", step.host},
                    {"method", MethodText(step.method)},
                    {"command", step.words}});
  return {{"plan", list}};
}

std::string PlanText(const std::vector<RestartStep>& steps) {
  std::string text;
  for (const RestartStep& step : steps)
    text += fmt::format("{}: {}\n    {}\n", Printable(step.name), MethodText(step.method),
                        Quoted(step.words));
  return text.empty() ? "no server to restart\n" : text;
}

// Of objects in the server's memory; nothing when it does not say.
std::optional<uint64_t> ObjectsOf(const Context& context, ControllerClient* controller,
                                  const std::string& name) {
  const Deadline deadline = context.deadline();
  ViewCache cache;
  if (!controller->Refresh(&cache, deadline).ok()) return std::nullopt;
  const auto client = ConnectToAny(context, *cache.namespaces(), deadline);
  if (!client.ok()) return std::nullopt;
  const Result<std::string> json = (*client)->ServerStats(name, context.timeout());
  ServerCounts counts;
  CountsByNamespace namespaces;
  if (!json.ok() || !ReadCounts(*json, &counts, &namespaces)) return std::nullopt;
  return counts.objects;
}

// Lines on standard error, with what is left: people wait for it.
class Report final {
 public:
  Report(const Context& context, size_t servers)
      : context_(context), servers_(servers), begin_(Clock::System().Now()) {}

  void Begin(const std::string& name) { name_ = name; }
  void Say(const std::string& text) {
    if (context_.json) return;
    std::fprintf(stderr, "[%zu/%zu] %s: %s\n", done_ + 1, servers_, Printable(name_).c_str(),
                 text.c_str());
  }
  void End(const RestartResult& result) {
    ++done_;
    Json one = {{"name", result.name},
                {"method", MethodText(result.method)},
                {"seconds", result.seconds},
                {"objects_before", CountJson(result.objects_before)},
                {"objects_after", CountJson(result.objects_after)}};
    results_.push_back(std::move(one));
    if (context_.json) return;
    const std::string bar =
        terminal::BarText("rollout", done_, servers_, "servers", Clock::System().Now() - begin_);
    std::fprintf(stderr, "%s\n", bar.c_str());
  }
  // So far.
  const Json& results() const { return results_; }

 private:
  const Context& context_;
  const size_t servers_;
  const TimePoint begin_;
  size_t done_ = 0;
  std::string name_;
  Json results_ = Json::array();
};

int RunRestart(const Context& context, const Flags& flags) {
  const Result<CommandWords> command = CommandWords::Parse(flags.command);
  if (!command.ok())
    return ComplainOfUsage(context, fmt::format("--command: {}", Message(command.status())));
  const RestartOptions options = flags.options(context);
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  v1::ListNodesReply nodes;
  if (const Status s = controller.ListNodes(&nodes, context.deadline()); !s.ok())
    return Unreachable(context, s);
  const Result<std::vector<RestartStep>> steps = PlanRestarts(nodes, *command, options);
  if (!steps.ok()) return Complain(context, "rollout", steps.status());
  if (flags.dry_run) return Show(context, PlanJson(*steps), PlanText(*steps));

  Report report(context, steps->size());
  Rollout rollout(
      {.controller = &controller,
       .run = RunWords,
       .objects = [&](const std::string& name) { return ObjectsOf(context, &controller, name); },
       .say = [&](const std::string& text) { report.Say(text); }},
      options);
  for (const RestartStep& step : *steps) {
    report.Begin(step.name);
    const Result<RestartResult> restarted = rollout.Restart(step);
    if (restarted.ok()) {
      report.End(*restarted);
      continue;
    }
    (void)Show(context, {{"restarted", report.results()}, {"failed", step.name}},
               fmt::format("{} of {} servers are restarted; the others are as they were\n",
                           report.results().size(), steps->size()));
    return Complain(context, fmt::format("server {}", step.name), restarted.status());
  }
  return ShowChange(context, Json::object({{"restarted", report.results()}}),
                    fmt::format("{} servers are restarted\n", steps->size()));
}

}  // namespace

void AddRolloutCommands(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* rollout = program->AddCommand("rollout", "Change all servers, one after another");
  Command* restart = rollout->AddCommand("restart", "Restart them without losing what they have");
  restart->SetFooter(
      "For each server: waits until the cluster is well and nothing moves, runs the command, and "
      "waits until the server is back with the newest view, its slots and what it had. Servers "
      "whose memory or SSD tier outlives their process (restart in place) are restarted as they "
      "are, and have to be back within lease_ms; the others are drained first and get their slots "
      "back. The first failure ends it; what it waits for and how far it is goes to standard "
      "error.\n"
      "\n"
      "The command is split into words and run without a shell. {name} and {host} are replaced by "
      "the server's name and the host of its address.\n"
      "\n"
      "  emsctl rollout restart --command 'ssh {host} systemctl restart mp-server'\n"
      "  emsctl rollout restart --command 'systemctl restart ems-server@{name}' --dry-run");
  restart->AddOption("server", &flags->servers,
                     "Names of servers, in the order wanted (all that are not drained, by name)");
  restart->AddOption("--command", &flags->command, "What restarts a server", {.required = true});
  restart->AddOption("--method", &flags->method,
                     "hold: restart it as it is; drain: its slots go to others before, and come "
                     "back; auto: as its deployment is",
                     {.check = OneOf{{"auto", "hold", "drain"}}});
  restart->AddOption("--wait", &flags->wait_seconds,
                     "Seconds that each wait, and the command, may take",
                     {.check = InRange{0.001, 86400.0}});
  restart->AddFlag("--dry-run", &flags->dry_run, "Show what would be done, and do nothing");
  restart->AddFlag("--allow-cold", &flags->allow_cold,
                   "Go on when a server came back without what it had");
  restart->SetRun([=] { return RunRestart(*context, *flags); });
}

}  // namespace ems::emsctl
