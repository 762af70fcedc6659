// emsctl events: what has happened to the cluster since its controller started.
//
// Bound: with --follow the controller is asked once a second.
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cluster/controller_client.h"
#include "common/bytes.h"
#include "common/command_line.h"
#include "common/daemon.h"
#include "proto/controller.pb.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/events_text.h"
#include "tools/emsctl/output.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kFollowEvery = std::chrono::seconds(1);

struct Flags {
  std::string since;
  uint32_t limit = 100;
  bool follow = false;
};

std::string LineOf(const Context& context, const v1::ClusterEvent& event) {
  if (!context.json) return EventText(event);
  return EventJson(event).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A line an event, until a signal comes or standard output is gone. A controller that does not
// answer, as while it is started again, is said once and asked again.
int Follow(const Context& context, ControllerClient* controller, v1::ListEventsRequest request) {
  const StopSignals signals;
  bool silent = false;
  do {
    v1::ListEventsReply reply;
    const Status asked = controller->ListEvents(request, &reply, context.deadline());
    if (!asked.ok()) {
      if (!std::exchange(silent, true)) Remark(context, "note", ToString(asked));
      continue;
    }
    silent = false;
    for (const v1::ClusterEvent& event : reply.events())
      if (!Print(LineOf(context, event))) return kExitFailed;
    if (reply.run() != request.run()) request.set_after(0);
    request.set_run(reply.run());
    if (!reply.events().empty()) request.set_after(reply.events().rbegin()->sequence());
    request.set_limit(0);
  } while (signals.Wait(kFollowEvery) == 0);
  return kExitOk;
}

int RunEvents(const Context& context, const Flags& flags) {
  v1::ListEventsRequest request;
  request.set_limit(flags.limit);
  if (!flags.since.empty()) {
    const auto since = ParseSince(flags.since);
    if (!since) {
      return ComplainOfUsage(context, fmt::format("--since {}: write 90s, 10m, 2h, 1d or a time as "
                                                  "2026-11-27T12:00:00Z",
                                                  Printable(flags.since)));
    }
    request.set_age_ms_max(since->age_ms);
    request.set_since_unix_ms(since->unix_ms);
  }
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  if (flags.follow) return Follow(context, &controller, request);
  v1::ListEventsReply reply;
  if (const Status s = controller.ListEvents(request, &reply, context.deadline()); !s.ok())
    return Unreachable(context, s);
  Json json = Json::array();
  std::string text;
  for (const v1::ClusterEvent& event : reply.events()) {
    json.push_back(EventJson(event));
    text += EventText(event);
  }
  return Show(context, json, text);
}

}  // namespace

void AddEventsCommand(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* events = program->AddCommand("events", "What has happened since the controller started");
  events->AddOption("--since", &flags->since,
                    "Those of the last 90s, 10m, 2h or 1d, or since a time (RFC 3339)");
  events->AddOption("--limit", &flags->limit, "The newest so many of them; 0: all",
                    {.check = InRange<uint32_t>{0, 1000}});
  events->AddFlag("--follow", &flags->follow,
                  "Show later ones as well, until Ctrl-C; with --json a document a line");
  events->SetFooter(
      "The controller keeps the last 1,000 events in memory: with its restart they begin again, "
      "with controller_started.\n"
      "Example: emsctl events --since 1h --follow");
  events->SetRun([=] { return RunEvents(*context, *flags); });
}

}  // namespace ems::emsctl
