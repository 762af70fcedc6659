// emsctl namespace create, list, update, delete.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mp_controller/view/controller_client.h"
#include "tools/emsctl/cluster_text.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/policy_words.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string name;
  PolicyFlags policy;
};

int Show(const Context& context, const NamespaceInfo& info) {
  const bool printed =
      context.json ? PrintJson(NamespaceJson(info)) : Print(NamespacesText({info}));
  return printed ? kExitOk : kExitFailed;
}

int Failed(const std::string& name, const Status& status) {
  return Complain(fmt::format("namespace {}", name), status);
}

int RunCreate(const Context& context, const Flags& flags) {
  NamespaceInfo wanted;
  wanted.name = flags.name;
  if (const Status s = ApplyPolicy(flags.policy, &wanted); !s.ok()) {
    Complain(Message(s));
    return kExitUsage;
  }
  ControllerClient controller(context.controller, "emsctl");
  const Result<NamespaceInfo> made = controller.CreateNamespace(wanted, context.deadline());
  return made.ok() ? Show(context, *made) : Failed(flags.name, made.status());
}

int RunUpdate(const Context& context, const Flags& flags) {
  if (flags.policy.empty()) {
    Complain("namespace update: give at least one of the policy's flags, see --help");
    return kExitUsage;
  }
  ControllerClient controller(context.controller, "emsctl");
  Result<NamespaceInfo> info = controller.GetNamespace(flags.name, context.deadline());
  if (!info.ok()) return Failed(flags.name, info.status());
  if (const Status s = ApplyPolicy(flags.policy, &*info); !s.ok()) {
    Complain(Message(s));
    return kExitUsage;
  }
  const Result<NamespaceInfo> updated = controller.UpdateNamespace(*info, context.deadline());
  return updated.ok() ? Show(context, *updated) : Failed(flags.name, updated.status());
}

int RunList(const Context& context) {
  ControllerClient controller(context.controller, "emsctl");
  const Result<std::vector<NamespaceInfo>> list = controller.ListNamespaces(context.deadline());
  if (!list.ok()) return Complain("cannot ask the controller", list.status());
  if (!context.json) return Print(NamespacesText(*list)) ? kExitOk : kExitFailed;
  Json json = Json::array();
  for (const NamespaceInfo& info : *list) json.push_back(NamespaceJson(info));
  return PrintJson(json) ? kExitOk : kExitFailed;
}

int RunDelete(const Context& context, const Flags& flags) {
  ControllerClient controller(context.controller, "emsctl");
  const Status s = controller.DeleteNamespace(flags.name, context.deadline());
  if (!s.ok()) return Failed(flags.name, s);
  const bool printed = context.json ? PrintJson(Json::object({{"deleted", flags.name}}))
                                    : Print(fmt::format("deleted {}\n", flags.name));
  return printed ? kExitOk : kExitFailed;
}

void AddPolicyFlags(CLI::App* command, Flags* flags) {
  PolicyFlags& policy = flags->policy;
  command->add_option("name", flags->name, "1 to 128 of A-Z a-z 0-9 . _ -")->required();
  command->add_option("--dram-quota", policy.dram_quota,
                      "Most DRAM over all servers, e.g. 64GiB; 0: as much as the pool has");
  command->add_option("--dram-reserved", policy.dram_reserved,
                      "DRAM that other namespaces never take; at most the quota");
  command->add_option("--ssd-quota", policy.ssd_quota, "Most SSD; 0: as much as the tier has");
  command->add_option("--ssd-reserved", policy.ssd_reserved, "SSD that others never take");
  command->add_option(
      "--durability", policy.durability,
      "When a Put is acknowledged: dram (in memory), ssd (on the SSD tier), ssd-relaxed (there, "
      "but not yet safe from a power failure)");
  command->add_option("--checksum", policy.checksum,
                      "Mapped reads verify: always, sampled (one in 64), never; reads over a "
                      "socket always do");
}

}  // namespace

void AddNamespaceCommands(CLI::App* app, const Context* context, std::function<int()>* run) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* group = app->add_subcommand("namespace", "Create, list, change and delete namespaces");
  group->alias("ns")->require_subcommand(1);

  CLI::App* create = group->add_subcommand("create", "Make a namespace");
  AddPolicyFlags(create, flags.get());
  create->footer("Example: emsctl namespace create chat --dram-quota 64GiB --dram-reserved 16GiB");
  create->callback([=] { *run = [=] { return RunCreate(*context, *flags); }; });

  CLI::App* list = group->add_subcommand("list", "All namespaces and their policies");
  list->callback([=] { *run = [=] { return RunList(*context); }; });

  CLI::App* update = group->add_subcommand("update", "Change the given parts of a policy");
  AddPolicyFlags(update, flags.get());
  update->callback([=] { *run = [=] { return RunUpdate(*context, *flags); }; });

  CLI::App* remove = group->add_subcommand("delete", "Delete a namespace and all it holds");
  remove->add_option("name", flags->name, "Name of the namespace")->required();
  remove->callback([=] { *run = [=] { return RunDelete(*context, *flags); }; });
}

}  // namespace ems::emsctl
