// emsctl namespace list, show, mrc, create, set, delete.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "cluster/while_starting.h"
#include "common/command_line.h"
#include "tools/emsctl/ask_servers.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/curve_text.h"
#include "tools/emsctl/namespace_text.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/policy_words.h"
#include "tools/emsctl/server_counts.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string name;
  PolicyFlags policy;
  bool immutable = false;
};

int ShowChanged(const Context& context, const NamespaceInfo& info) {
  return ShowChange(context, NamespaceJson(info), NamespacesText({info}));
}

int Failed(const Context& context, const std::string& name, const Status& status) {
  return Complain(context, fmt::format("namespace {}", name), status);
}

int RunCreate(const Context& context, const Flags& flags) {
  NamespaceInfo wanted;
  wanted.name = flags.name;
  wanted.immutable = flags.immutable;
  if (const Status s = ApplyPolicy(flags.policy, &wanted); !s.ok())
    return ComplainOfUsage(context, Message(s));
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  const Result<NamespaceInfo> made = WhileStarting(context.deadline(), [&](Deadline until) {
    return controller.CreateNamespace(wanted, until);
  });
  return made.ok() ? ShowChanged(context, *made) : Failed(context, flags.name, made.status());
}

int RunSet(const Context& context, const Flags& flags) {
  if (flags.policy.empty()) {
    return ComplainOfUsage(context,
                           "namespace set: give at least one of the policy's flags, see --help");
  }
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  Result<NamespaceInfo> info = controller.GetNamespace(flags.name, context.deadline());
  if (!info.ok()) return Failed(context, flags.name, info.status());
  if (const Status s = ApplyPolicy(flags.policy, &*info); !s.ok())
    return ComplainOfUsage(context, Message(s));
  const Result<NamespaceInfo> updated = WhileStarting(
      context.deadline(), [&](Deadline until) { return controller.UpdateNamespace(*info, until); });
  return updated.ok() ? ShowChanged(context, *updated)
                      : Failed(context, flags.name, updated.status());
}

// The namespaces, and what they hold as far as servers answer.
Status Look(const Context& context, ViewCache* cache, CountsByNamespace* counts) {
  const Deadline deadline = context.deadline();
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  EMS_RETURN_IF_ERROR(controller.Refresh(cache, deadline));
  const ViewCache::View view = cache->view();
  if (view == nullptr || cache->namespaces()->by_id.empty()) return OkStatus();
  const auto client = ConnectToAny(context, *cache->namespaces(), deadline);
  const std::vector<ServerStats> servers = AskServers(context, client, *view, deadline);
  for (const ServerStats& one : servers) {
    if (one.json.ok()) continue;
    Remark(context, "note",
           fmt::format("server {} is not counted: {}", one.name, ToString(one.json.status())));
  }
  *counts = CountsOf(servers);
  return OkStatus();
}

int RunList(const Context& context) {
  ViewCache cache;
  CountsByNamespace counts;
  if (const Status s = Look(context, &cache, &counts); !s.ok()) return Unreachable(context, s);
  Json json = Json::array();
  std::vector<NamespaceInfo> list;
  for (const auto& [id, info] : cache.namespaces()->by_id) {
    list.push_back(info);
    json.push_back(NamespaceUsageJson(info, counts));
  }
  return Show(context, json, NamespaceUsageText(list, counts));
}

int RunShow(const Context& context, const Flags& flags) {
  ViewCache cache;
  CountsByNamespace counts;
  if (const Status s = Look(context, &cache, &counts); !s.ok()) return Unreachable(context, s);
  const ViewCache::Namespaces namespaces = cache.namespaces();
  const NamespaceInfo* const info = namespaces->Find(flags.name);
  if (info == nullptr) {
    return Failed(context, flags.name,
                  Error(StatusCode::kNotFound,
                        "no such namespace; `emsctl namespace list` shows "
                        "those there are"));
  }
  return Show(context, NamespaceUsageJson(*info, counts),
              NamespacesText({*info}) + "\n" + NamespaceUsageText({*info}, counts));
}

int RunMrc(const Context& context, const Flags& flags) {
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  const auto curve = controller.GetHitCurve(flags.name, context.deadline());
  if (!curve.ok()) return Failed(context, flags.name, curve.status());
  return Show(context, CurveJson(flags.name, *curve), CurveText(flags.name, *curve));
}

int RunDelete(const Context& context, const Flags& flags) {
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  const Status s = WhileStarting(context.deadline(), [&](Deadline until) {
    return controller.DeleteNamespace(flags.name, until);
  });
  return s.ok() ? ShowDone(context, "deleted", flags.name) : Failed(context, flags.name, s);
}

void AddPolicyFlags(Command* command, Flags* flags) {
  PolicyFlags& policy = flags->policy;
  command->AddOption("name", &flags->name, "1 to 128 of A-Z a-z 0-9 . _ -", {.required = true});
  command->AddOption("--dram-quota", &policy.dram_quota,
                     "Most DRAM over all servers, e.g. 64GiB; 0: as much as the pool has");
  command->AddOption("--dram-reserved", &policy.dram_reserved,
                     "DRAM that other namespaces never take; at most the quota");
  command->AddOption("--ssd-quota", &policy.ssd_quota, "Most SSD; 0: as much as the tier has");
  command->AddOption("--ssd-reserved", &policy.ssd_reserved, "SSD that others never take");
  command->AddOption(
      "--durability", &policy.durability,
      "When a Put is acknowledged: dram (in memory), ssd (on the SSD tier), ssd-relaxed (there, "
      "but not yet safe from a power failure)");
  command->AddOption("--replicas", &policy.replicas,
                     "On how many servers an object is: 1 to 3; above 1 in immutable namespaces "
                     "alone, and each copy counts in the quota");
  command->AddOption("--checksum", &policy.checksum,
                     "Mapped reads verify: always, sampled (one in 64), never; reads over a "
                     "socket always do");
}

}  // namespace

void AddNamespaceCommands(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* group =
      program->AddCommand("namespace", "List, show, create, change and delete namespaces");
  group->SetAlias("ns");

  Command* list = group->AddCommand("list", "All namespaces: what they hold, and quotas");
  list->SetRun([=] { return RunList(*context); });

  Command* show = group->AddCommand("show", "One namespace: its policy, and what it holds");
  show->AddOption("name", &flags->name, "Name of the namespace", {.required = true});
  show->SetRun([=] { return RunShow(*context, *flags); });

  Command* mrc = group->AddCommand(
      "mrc", "What share of look-ups would hit in DRAM with a quarter to 8 times the memory");
  mrc->AddOption("name", &flags->name, "Name of the namespace", {.required = true});
  mrc->SetRun([=] { return RunMrc(*context, *flags); });

  Command* create = group->AddCommand("create", "Make a namespace");
  AddPolicyFlags(create, flags.get());
  create->AddFlag("--immutable", &flags->immutable,
                  "A key has one value for ever, as a hash of what it names: no Put replaces, and "
                  "servers that are cut off from the controller may still be read");
  create->SetFooter(
      "Example: emsctl namespace create chat --dram-quota 64GiB --dram-reserved 16GiB");
  create->SetRun([=] { return RunCreate(*context, *flags); });

  Command* set = group->AddCommand("set", "Change the given parts of a policy");
  AddPolicyFlags(set, flags.get());
  set->SetRun([=] { return RunSet(*context, *flags); });

  Command* remove = group->AddCommand("delete", "Delete a namespace and all it holds");
  remove->AddOption("name", &flags->name, "Name of the namespace", {.required = true});
  remove->SetRun([=] { return RunDelete(*context, *flags); });
}

}  // namespace ems::emsctl
