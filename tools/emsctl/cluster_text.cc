#include "tools/emsctl/cluster_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cluster/cluster_health.h"
#include "common/cluster_id.h"
#include "proto/controller.pb.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

std::string_view StateWord(v1::NodeState state) {
  switch (state) {
    case v1::NODE_LIVE:
      return "up";
    case v1::NODE_DOWN:
      return "DOWN";
    case v1::NODE_LEFT:
      return "left";
    default:
      return "unknown";
  }
}

std::string VersionText(ViewVersion version) {
  return fmt::format("term {} epoch {}", version.term(), version.epoch());
}

int CountState(const v1::ListNodesReply& nodes, v1::NodeState state) {
  return static_cast<int>(
      std::count_if(nodes.nodes().begin(), nodes.nodes().end(),
                    [&](const v1::NodeStatus& n) { return n.node().state() == state; }));
}

// Of a live server that is taken out, how far that is.
std::string_view StateText(const v1::NodeStatus& n) {
  if (n.node().state() != v1::NODE_LIVE || n.drain() == v1::DRAIN_NONE)
    return StateWord(n.node().state());
  return n.drain() == v1::DRAIN_DRAINED ? "DRAINED" : "DRAINING";
}

int CountDrain(const v1::ListNodesReply& nodes, v1::DrainState drain) {
  return static_cast<int>(std::ranges::count_if(
      nodes.nodes(), [&](const v1::NodeStatus& n) { return n.drain() == drain; }));
}

// "12.3 %"
std::string Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.1f} %",
                                  100 * static_cast<double>(part) / static_cast<double>(whole));
}

struct Totals {
  uint64_t used_bytes = 0, total_bytes = 0, objects = 0;
  uint64_t ssd_used_bytes = 0, ssd_total_bytes = 0;
};

// "3.2 s", "12 min", "5 h", "9 days"
std::string Age(uint64_t ms) {
  const double seconds = static_cast<double>(ms) / 1e3;
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 120 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

// "12 min ago", from a moment of the controller's clock.
std::string AgeOf(int64_t unix_ms, const v1::ListNodesReply& nodes) {
  if (unix_ms == 0 || nodes.now_unix_ms() < unix_ms) return "at some time";
  return Age(static_cast<uint64_t>(nodes.now_unix_ms() - unix_ms)) + " ago";
}

// "ahead, behind 3.2 s, waited for 3.2 s", or what of it holds.
std::string NoteOf(const v1::NodeStatus& n) {
  std::string note;
  const auto add = [&](const std::string& words) { note += (note.empty() ? "" : ", ") + words; };
  if (IsAhead(n)) add("ahead");
  if (n.node().state() == v1::NODE_LIVE && n.behind_ms() > 0) add("behind " + Age(n.behind_ms()));
  if (n.waited_for()) add("waited for " + Age(n.waiting_ms()));
  if (n.stopping()) add("stopping");
  if (n.drain() != v1::DRAIN_NONE && n.node().state() != v1::NODE_LIVE)
    add(std::string(DrainWord(n)));
  if (n.drain() == v1::DRAIN_DRAINING && n.slots() == 0 && n.pulled_by() > 0)
    add(fmt::format("{} may still fetch from it", n.pulled_by()));
  return note;
}

// What was heard of it last.
std::string LastWord(const v1::NodeStatus& n, const v1::ListNodesReply& nodes) {
  if (n.node().state() == v1::NODE_LEFT) return "left " + AgeOf(n.node().left_unix_ms(), nodes);
  if (n.node().left_unix_ms() > 0) return "stopped " + AgeOf(n.node().left_unix_ms(), nodes);
  if (n.never_heard()) return "not since the controller started";
  return Age(n.heartbeat_age_ms()) + " ago";
}

std::string_view SsdWord(v1::SsdState state) {
  switch (state) {
    case v1::SSD_OK:
      return "ok";
    case v1::SSD_DEGRADED:
      return "degraded";
    case v1::SSD_OFFLINE:
      return "offline";
    default:
      return "none";
  }
}

// "12 GiB of 200 GiB", and the state unless it is ok.
std::string SsdText(const v1::NodeUsage& usage) {
  if (usage.ssd_state() == v1::SSD_NONE) return "-";
  const std::string bytes = fmt::format("{} of {}", FormatBytes(usage.ssd_used_bytes()),
                                        FormatBytes(usage.ssd_total_bytes()));
  return usage.ssd_state() != v1::SSD_OK ? fmt::format("{}, {}", bytes, SsdWord(usage.ssd_state()))
                                         : bytes;
}

Totals LiveTotals(const v1::ListNodesReply& nodes) {
  Totals totals;
  for (const v1::NodeStatus& n : nodes.nodes()) {
    if (n.node().state() != v1::NODE_LIVE) continue;
    totals.used_bytes += n.usage().dram_used_bytes();
    totals.total_bytes += n.usage().dram_total_bytes();
    totals.objects += n.usage().objects();
    totals.ssd_used_bytes += n.usage().ssd_used_bytes();
    totals.ssd_total_bytes += n.usage().ssd_total_bytes();
  }
  return totals;
}

}  // namespace

std::optional<HitCounts> HitsOf(std::string_view server_stats) {
  const Json stats = Json::parse(server_stats, nullptr, /*allow_exceptions=*/false);
  if (!stats.is_object()) return std::nullopt;
  const auto gets = stats.find("gets"), hits = stats.find("hits");
  if (gets == stats.end() || hits == stats.end()) return std::nullopt;
  if (!gets->is_number_unsigned() || !hits->is_number_unsigned()) return std::nullopt;
  return HitCounts{gets->get<uint64_t>(), hits->get<uint64_t>()};
}

Health HealthOf(const ClusterSnapshot& snapshot) {
  return ems::HealthOf(*snapshot.nodes, snapshot.view);
}

bool NeedsAnOperator(const ClusterSnapshot& snapshot) {
  const auto& nodes = snapshot.nodes->nodes();
  const Health health = HealthOf(snapshot);
  const auto waited_for = [&](const v1::NodeStatus& n) {
    return IsWaitedForLong(n, *snapshot.nodes);
  };
  return health == Health::kFrozen || health == Health::kNoServers ||
         snapshot.nodes->store_is_old() || std::any_of(nodes.begin(), nodes.end(), IsAhead) ||
         std::any_of(nodes.begin(), nodes.end(), waited_for);
}

std::vector<std::string> AdviceFor(const ClusterSnapshot& snapshot) {
  std::vector<std::string> advice;
  const Health health = HealthOf(snapshot);
  if (snapshot.nodes->store_is_old()) {
    advice.push_back(
        "The controller's data_dir is an older copy: servers have later views or namespaces, so "
        "nobody gets a lease. Stop the controller and put the newest data_dir back: then nothing "
        "is lost. If there is none, `emsctl view accept-ahead` continues without what "
        "servers store.");
  }
  if (health == Health::kFrozen) {
    advice.push_back(
        "More than half of the servers vanished at the same time, so the view is frozen and "
        "their keys miss. Bring them back. Only if they have stopped for good, or their machines "
        "have, give "
        "them up with `emsctl view accept-loss`: servers that are merely cut off from the "
        "controller may still take Puts of clients that reach them.");
  } else if (health == Health::kNoServers) {
    advice.push_back(
        "No server owns any key, so every Get misses and every Put fails. Start mp-server with "
        "this controller's address.");
  }
  for (const v1::NodeStatus& n : snapshot.nodes->nodes()) {
    if (n.node().state() != v1::NODE_DOWN || IsAhead(n)) continue;
    advice.push_back(fmt::format(
        "Server {} ({}) has not been heard of {}. Restart it, or forget it with `emsctl node "
        "delete "
        "{}`.",
        n.node().name(), n.node().data_address(),
        n.never_heard() ? "since the controller started" : "for " + Age(n.heartbeat_age_ms()),
        n.node().name()));
  }
  for (const v1::NodeStatus& n : snapshot.nodes->nodes()) {
    if (!IsAhead(n)) continue;
    advice.push_back(
        fmt::format("Server {} came with views or namespaces that the controller does not know, so "
                    "it is parked: it gets no lease and no slots. {}",
                    n.node().name(),
                    snapshot.nodes->store_is_old()
                        ? "If only its data_dir is mistaken: stop it, empty its data_dir, and "
                          "restart the controller."
                        : "Stop it, empty its data_dir, and start it."));
  }
  for (const v1::NodeStatus& n : snapshot.nodes->nodes()) {
    if (!IsBehind(n, *snapshot.nodes, snapshot.view)) continue;
    advice.push_back(
        n.term() == 0
            ? fmt::format("Server {} owns slots and has reported no view for {}: it may be gone.",
                          n.node().name(), Age(n.behind_ms()))
            : fmt::format("Server {} has installed view {} of {}: until it follows, others wait "
                          "for its slots. Its log says why; a data_dir on a disk that hangs is one "
                          "reason.",
                          n.node().name(), VersionText({n.term(), n.epoch()}),
                          VersionText(snapshot.view->version())));
  }
  for (const v1::NodeStatus& n : snapshot.nodes->nodes()) {
    if (!n.waited_for() ||
        (IsBehind(n, *snapshot.nodes, snapshot.view) && !IsWaitedForLong(n, *snapshot.nodes)))
      continue;
    advice.push_back(fmt::format(
        "Some Puts wait until it is certain that a process of server {} takes none any more. If it "
        "has stopped for good, or its machine has: `emsctl view accept-loss`.",
        n.node().name()));
  }
  for (const v1::NodeStatus& n : snapshot.nodes->nodes()) {
    if (!HasSickSsd(n)) continue;
    advice.push_back(
        fmt::format("The SSD tier of server {} is {}, new objects stay in DRAM alone. `emsctl "
                    "node show {}` says "
                    "why; {}",
                    n.node().name(), SsdWord(n.usage().ssd_state()), n.node().name(),
                    n.usage().ssd_state() == v1::SSD_OFFLINE
                        ? "mend it and restart the server."
                        : "it writes again by itself when its disk does."));
  }
  if (snapshot.namespaces->by_id.empty()) {
    advice.push_back("There is no namespace. Make one with `emsctl namespace create NAME`.");
  }
  return advice;
}

std::string StatusText(const ClusterSnapshot& snapshot) {
  const v1::ListNodesReply& nodes = *snapshot.nodes;
  const Totals totals = LiveTotals(nodes);
  Table table(
      {{"health", Align::kLeft}, {std::string(HealthWord(HealthOf(snapshot))), Align::kLeft}});
  table.AddRow({"cluster", ClusterText(ClusterId(nodes.cluster()))});
  table.AddRow({"view", snapshot.view == nullptr
                            ? "none yet"
                            : VersionText(snapshot.view->version()) +
                                  (snapshot.view->frozen() ? ", FROZEN" : "")});
  std::string servers =
      fmt::format("{} up, {} down, {} left", CountState(nodes, v1::NODE_LIVE),
                  CountState(nodes, v1::NODE_DOWN), CountState(nodes, v1::NODE_LEFT));
  if (const int draining = CountDrain(nodes, v1::DRAIN_DRAINING); draining > 0)
    servers += fmt::format(", {} DRAINING", draining);
  if (const int drained = CountDrain(nodes, v1::DRAIN_DRAINED); drained > 0)
    servers += fmt::format(", {} DRAINED", drained);
  table.AddRow({"servers", std::move(servers)});
  table.AddRow({"DRAM", fmt::format("{} of {} used ({})", FormatBytes(totals.used_bytes),
                                    FormatBytes(totals.total_bytes),
                                    Share(totals.used_bytes, totals.total_bytes))});
  if (totals.ssd_total_bytes > 0) {
    table.AddRow({"SSD", fmt::format("{} of {} used ({})", FormatBytes(totals.ssd_used_bytes),
                                     FormatBytes(totals.ssd_total_bytes),
                                     Share(totals.ssd_used_bytes, totals.ssd_total_bytes))});
  }
  table.AddRow({"objects", fmt::format("{}", totals.objects)});
  if (snapshot.hits != nullptr) {
    table.AddRow({"hit rate", fmt::format("{} of {} look-ups since the servers started",
                                          Share(snapshot.hits->hits, snapshot.hits->gets),
                                          snapshot.hits->gets)});
  }
  table.AddRow({"namespaces", fmt::format("{}", snapshot.namespaces->by_id.size())});
  std::string text = table.Render();
  for (const std::string& line : AdviceFor(snapshot)) text += "\n! " + line + "\n";
  return text;
}

Json StatusJson(const ClusterSnapshot& snapshot) {
  const v1::ListNodesReply& nodes = *snapshot.nodes;
  const Totals totals = LiveTotals(nodes);
  Json json;
  json["health"] = HealthWord(HealthOf(snapshot));
  json["cluster"] = nullptr;
  if (nodes.cluster() != 0) json["cluster"] = ClusterText(ClusterId(nodes.cluster()));
  json["view"] = nullptr;
  if (snapshot.view != nullptr) {
    json["view"] = Json::object({{"term", snapshot.view->version().term()},
                                 {"epoch", snapshot.view->version().epoch()},
                                 {"frozen", snapshot.view->frozen()}});
  }
  json["store_is_old"] = nodes.store_is_old();
  json["servers"] = Json::object({{"up", CountState(nodes, v1::NODE_LIVE)},
                                  {"down", CountState(nodes, v1::NODE_DOWN)},
                                  {"left", CountState(nodes, v1::NODE_LEFT)},
                                  {"draining", CountDrain(nodes, v1::DRAIN_DRAINING)},
                                  {"drained", CountDrain(nodes, v1::DRAIN_DRAINED)}});
  json["dram_used_bytes"] = totals.used_bytes;
  json["dram_total_bytes"] = totals.total_bytes;
  json["ssd_used_bytes"] = totals.ssd_used_bytes;
  json["ssd_total_bytes"] = totals.ssd_total_bytes;
  json["objects"] = totals.objects;
  if (snapshot.hits != nullptr) {
    json["gets"] = snapshot.hits->gets;
    json["hits"] = snapshot.hits->hits;
  }
  json["namespaces"] = snapshot.namespaces->by_id.size();
  json["advice"] = AdviceFor(snapshot);
  return json;
}

std::string NodesText(const v1::ListNodesReply& nodes) {
  if (nodes.nodes().empty()) return "no server has registered yet\n";
  Table table({{"name", Align::kLeft},
               {"id"},
               {"state", Align::kLeft},
               {"data address", Align::kLeft},
               {"slots"},
               {"used"},
               {"of"},
               {""},
               {"objects"},
               {"SSD", Align::kLeft},
               {"heartbeat"},
               {"joined"},
               {"view", Align::kLeft},
               {"note", Align::kLeft}});
  for (const v1::NodeStatus& n : nodes.nodes()) {
    const v1::NodeUsage& usage = n.usage();
    table.AddRow({n.node().name(), fmt::format("{}", n.node().id()), std::string(StateText(n)),
                  n.node().data_address(), fmt::format("{}", n.slots()),
                  FormatBytes(usage.dram_used_bytes()), FormatBytes(usage.dram_total_bytes()),
                  Share(usage.dram_used_bytes(), usage.dram_total_bytes()),
                  fmt::format("{}", usage.objects()), SsdText(usage), LastWord(n, nodes),
                  AgeOf(n.node().joined_unix_ms(), nodes),
                  VersionText(ViewVersion(n.term(), n.epoch())), NoteOf(n)});
  }
  return table.Render();
}

Json NodesJson(const v1::ListNodesReply& nodes) {
  Json list = Json::array();
  for (const v1::NodeStatus& n : nodes.nodes()) {
    Json node;
    node["name"] = n.node().name();
    node["id"] = n.node().id();
    node["state"] = StateWord(n.node().state());
    node["data_address"] = n.node().data_address();
    node["unix_path"] = n.node().unix_path();
    node["http_address"] = n.node().http_address();
    node["host_id"] = n.node().host_id();
    node["capacity_bytes"] = n.node().capacity_bytes();
    node["slots"] = n.slots();
    node["dram_used_bytes"] = n.usage().dram_used_bytes();
    node["dram_total_bytes"] = n.usage().dram_total_bytes();
    node["dram_set_bytes"] = n.node().dram_set_bytes();
    node["objects"] = n.usage().objects();
    node["ssd_used_bytes"] = n.usage().ssd_used_bytes();
    node["ssd_total_bytes"] = n.usage().ssd_total_bytes();
    node["ssd_state"] = SsdWord(n.usage().ssd_state());
    node["heartbeat_age_ms"] = nullptr;
    if (!n.never_heard()) node["heartbeat_age_ms"] = n.heartbeat_age_ms();
    node["joined_unix_ms"] = n.node().joined_unix_ms();
    node["left_unix_ms"] = n.node().left_unix_ms();
    node["behind_ms"] = n.behind_ms();
    node["ahead"] = n.ahead();
    node["waited_for"] = n.waited_for();
    node["waiting_ms"] = n.waiting_ms();
    node["drain"] = DrainWord(n);
    node["pulled_by"] = n.pulled_by();
    node["stopping"] = n.stopping();
    node["pulls_from"] = n.pulls_from();
    node["term"] = n.term();
    node["epoch"] = n.epoch();
    list.push_back(std::move(node));
  }
  return list;
}

std::string StatsText(const Json& stats) {
  Table table({{"statistic", Align::kLeft}, {"value", Align::kLeft}});
  const Json flat = stats.flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string name = path.empty() ? path : path.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    table.AddRow({name, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  return table.Render();
}

std::string SlotRanges(const SlotTable& slots, NodeId node) {
  std::string text;
  const auto owner = [&](uint32_t slot) {
    return slots.owner(SlotId(static_cast<uint16_t>(slot)));
  };
  for (uint32_t first = 0; first < kSlotCount; ++first) {
    if (owner(first) != node) continue;
    uint32_t last = first;
    while (last + 1 < kSlotCount && owner(last + 1) == node) ++last;
    text += text.empty() ? "" : ",";
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    first = last;
  }
  return text;
}

std::string ViewText(const DhtView& view, bool with_slots) {
  std::string text = VersionText(view.version()) + (view.frozen() ? ", FROZEN" : "") + "\n\n";
  Table table({{"id"},
               {"name", Align::kLeft},
               {"slots"},
               {"share"},
               {"capacity"},
               {"data address", Align::kLeft},
               {"unix path", Align::kLeft}});
  for (const NodeInfo& node : view.nodes()) {
    const uint32_t slots = view.slots().CountOf(node.id);
    table.AddRow({fmt::format("{}", node.id.value()), node.name, fmt::format("{}", slots),
                  Share(slots, kSlotCount), FormatBytes(node.capacity_bytes), node.data_address,
                  node.unix_path});
  }
  text += table.Render();
  if (!with_slots) return text;
  for (const NodeInfo& node : view.nodes()) {
    text += fmt::format("\n{}: {}\n", node.name, SlotRanges(view.slots(), node.id));
  }
  const std::string orphans = SlotRanges(view.slots(), kNoNode);
  if (!orphans.empty()) text += fmt::format("\nwithout an owner: {}\n", orphans);
  return text;
}

Json ViewJson(const DhtView& view, bool with_slots) {
  Json json;
  json["term"] = view.version().term();
  json["epoch"] = view.version().epoch();
  json["frozen"] = view.frozen();
  json["nodes"] = Json::array();
  for (const NodeInfo& node : view.nodes()) {
    Json entry;
    entry["id"] = node.id.value();
    entry["name"] = node.name;
    entry["slots"] = view.slots().CountOf(node.id);
    entry["capacity_bytes"] = node.capacity_bytes;
    entry["data_address"] = node.data_address;
    entry["unix_path"] = node.unix_path;
    json["nodes"].push_back(std::move(entry));
  }
  if (!with_slots) return json;
  std::vector<uint32_t> owners;
  for (uint32_t slot = 0; slot < kSlotCount; ++slot) {
    owners.push_back(view.slots().owner(SlotId(static_cast<uint16_t>(slot))).value());
  }
  json["owners"] = owners;
  return json;
}

}  // namespace ems::emsctl
