// emsctl namespace create, list, update, delete.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "cluster/while_starting.h"
#include "common/command_line.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/namespace_text.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/policy_words.h"

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

int RunUpdate(const Context& context, const Flags& flags) {
  if (flags.policy.empty()) {
    return ComplainOfUsage(context,
                           "namespace update: give at least one of the policy's flags, see --help");
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

int RunList(const Context& context) {
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  const Result<std::vector<NamespaceInfo>> list = controller.ListNamespaces(context.deadline());
  if (!list.ok()) return Unreachable(context, list.status());
  Json json = Json::array();
  for (const NamespaceInfo& info : *list) json.push_back(NamespaceJson(info));
  return Show(context, json, NamespacesText(*list));
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
  command->AddOption("--checksum", &policy.checksum,
                     "Mapped reads verify: always, sampled (one in 64), never; reads over a "
                     "socket always do");
}

}  // namespace

void AddNamespaceCommands(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* group = program->AddCommand("namespace", "Create, list, change and delete namespaces");
  group->SetAlias("ns");

  Command* create = group->AddCommand("create", "Make a namespace");
  AddPolicyFlags(create, flags.get());
  create->AddFlag("--immutable", &flags->immutable,
                  "A key has one value for ever, as a hash of what it names: no Put replaces, and "
                  "servers that are cut off from the controller may still be read");
  create->SetFooter(
      "Example: emsctl namespace create chat --dram-quota 64GiB --dram-reserved 16GiB");
  create->SetRun([=] { return RunCreate(*context, *flags); });

  Command* list = group->AddCommand("list", "All namespaces and their policies");
  list->SetRun([=] { return RunList(*context); });

  Command* update = group->AddCommand("update", "Change the given parts of a policy");
  AddPolicyFlags(update, flags.get());
  update->SetRun([=] { return RunUpdate(*context, *flags); });

  Command* remove = group->AddCommand("delete", "Delete a namespace and all it holds");
  remove->AddOption("name", &flags->name, "Name of the namespace", {.required = true});
  remove->SetRun([=] { return RunDelete(*context, *flags); });
}

}  // namespace ems::emsctl
