#include "tests/simulation/job_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cluster/dht_view.h"
#include "common/hash.h"
#include "proto/model.pb.h"
#include "tests/simulation/world.h"

namespace ems::simulation {
namespace {

using controller::PullJob;
using std::chrono::milliseconds;
using std::chrono::seconds;
using View = std::shared_ptr<const DhtView>;

constexpr Duration kTimeout = seconds(60);
constexpr Duration kTick = milliseconds(100);
constexpr Duration kFaultsEnd = seconds(50);

SlotId SlotOfBlock(uint32_t block) { return SlotId(static_cast<uint16_t>(block)); }

// One server, whichever process it is now.
struct Server {
  NodeId id;
  std::string name;
  bool alive = true;
  bool member = true;  // of the view that is next
  bool silent = false;
  bool failing = false;
  uint64_t boot = 0;
  uint64_t sequence = 0;  // of its reports
  View view;              // that it has installed
  std::set<uint32_t> blocks;
  std::set<uint32_t> undone;  // lost again, and perhaps not told yet
  uint64_t undone_at = 0;     // sequence of the report before
};

// What the newest report says that has arrived of one process.
struct Heard {
  uint64_t sequence = 0;
  uint64_t view = 0;
  bool finished = false;
  bool failed = false;
};

class JobRun final {
 public:
  explicit JobRun(const JobOptions& options) : options_(options), world_(options.seed) {
    job_.rules = options.rules;
    for (int i = 0; i < options.servers; ++i) {
      Server server;
      server.id = NodeId(static_cast<uint32_t>(i + 1));
      server.name = std::string(1, static_cast<char>('a' + i));
      servers_.push_back(std::move(server));
      Start(static_cast<size_t>(i));
    }
    Publish();
    job_.Begin(1, 0, kTimeout, world_.now());
    for (size_t i = 0; i < servers_.size(); ++i) {
      Work(i, servers_[i].boot);
      Say(i, servers_[i].boot);
    }
    const Duration faults_last = kFaultsEnd;
    for (int i = 0; i < options.faults; ++i)
      world_.After(world_.Between(Duration(0), faults_last / 2), [this] { Fault(); });
    Tick();
  }

  JobOutcome Go() {
    const TimePoint end = world_.now() + kTimeout + seconds(5);
    world_.RunUntil(end, [this] { return !violation_.empty() || !job_.running(); });
    if (violation_.empty() && job_.running()) violation_ = "the job runs, and its time is over";
    return {violation_, job_.state};
  }

 private:
  void Start(size_t i) {
    Server& server = servers_[i];
    server.alive = true;
    server.boot = ++boots_;
    server.sequence = 0;
    server.view = nullptr;
    server.blocks.clear();
    server.undone.clear();
  }

  // The next view: its members by rendezvous.
  void Publish() {
    std::vector<NodeInfo> nodes;
    for (const Server& server : servers_) {
      if (!server.member) continue;
      NodeInfo node;
      node.id = server.id;
      node.name = server.name;
      node.boot_id = server.boot;
      nodes.push_back(std::move(node));
    }
    SlotTable slots;
    for (uint32_t block = 0; block < options_.blocks && !nodes.empty(); ++block) {
      const auto weight = [&](const NodeInfo& node) {
        const std::string text = fmt::format("{}/{}", block, node.name);
        return Hash64(AsBytes(text));
      };
      slots.set_owner(SlotOfBlock(block), std::ranges::max_element(nodes, {}, weight)->id);
    }
    view_ = *DhtView::Make(ViewVersion(1, ++epoch_), nodes, slots, false);
    for (size_t i = 0; i < servers_.size(); ++i) {
      world_.After(world_.Between(milliseconds(1), milliseconds(800)),
                   [this, i, view = view_, boot = servers_[i].boot] { Install(i, boot, view); });
    }
  }

  void Install(size_t i, uint64_t boot, const View& view) {
    Server& server = servers_[i];
    const NodeInfo* const self = view->Find(server.id);
    if (!server.alive || server.boot != boot || (self != nullptr && self->boot_id != boot)) return;
    if (server.view != nullptr && server.view->version() >= view->version()) return;
    server.view = view;
    std::erase_if(server.blocks, [&](uint32_t block) { return !Owns(server, block); });
  }

  static bool Owns(const Server& server, uint32_t block) {
    return server.view != nullptr && server.view->OwnerId(SlotOfBlock(block)) == server.id;
  }

  std::optional<uint32_t> Missing(const Server& server) const {
    for (uint32_t block = 0; block < options_.blocks; ++block) {
      if (Owns(server, block) && !server.blocks.contains(block)) return block;
    }
    return std::nullopt;
  }

  // A block after the other, as long as this process lives.
  void Work(size_t i, uint64_t boot) {
    world_.After(world_.Between(milliseconds(20), milliseconds(600)), [this, i, boot] {
      Server& server = servers_[i];
      if (!server.alive || server.boot != boot) return;
      const auto block = Missing(server);
      if (block && !server.failing) {
        server.blocks.insert(*block);
        server.undone.erase(*block);
      }
      Work(i, boot);
    });
  }

  void Say(size_t i, uint64_t boot) {
    world_.After(world_.Between(milliseconds(50), milliseconds(400)), [this, i, boot] {
      Server& server = servers_[i];
      if (!server.alive || server.boot != boot) return;
      if (server.view != nullptr && !server.silent) Send(&server);
      Say(i, boot);
    });
  }

  void Send(Server* server) {
    v1::ReportPullRequest report;
    report.set_boot_id(server->boot);
    report.set_node_id(server->id.value());
    report.set_sequence(++server->sequence);
    report.set_term(server->view->version().term());
    report.set_epoch(server->view->version().epoch());
    report.set_blocks_done(server->blocks.size());
    if (server->failing) {
      report.set_error_code(static_cast<uint32_t>(StatusCode::kPermissionDenied));
      report.set_error("source answered 403");
    } else {
      report.set_finished(!Missing(*server));
    }
    const int copies = world_.Chance(0.1) ? 0 : world_.Chance(0.1) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      const Duration most = world_.Chance(0.1) ? Duration(seconds(4)) : milliseconds(300);
      world_.After(world_.Between(milliseconds(1), most), [this, report] { Hear(report); });
    }
  }

  void Hear(const v1::ReportPullRequest& report) {
    if (!job_.running()) return;
    Heard& heard = heard_[report.boot_id()];
    if (report.sequence() > heard.sequence) {
      heard = {.sequence = report.sequence(),
               .view = ViewVersion(report.term(), report.epoch()).packed(),
               .finished = report.finished(),
               .failed = report.error_code() != 0};
    }
    job_.Take(report, OkStatus(), world_.now());
    Judge();
  }

  void Tick() {
    world_.After(kTick, [this] {
      Judge();
      if (job_.running()) Tick();
    });
  }

  void Judge() {
    const auto end = job_.Judge(view_.get(), true, world_.now());
    if (!end) return;
    job_.state = end->state;
    Check(*end);
  }

  void Check(const PullJob::End& end) {
    std::set<std::string> named;
    for (const PullJob::Failure& one : end.failures.named) named.insert(one.server);
    const bool in_time = world_.now() < job_.deadline;
    if (world_.now() > job_.deadline + kTick) violation_ = "it has ended after its deadline";
    for (const NodeInfo& node : view_->nodes()) {
      const Server& server = servers_[node.id.value() - 1];
      const Heard& heard = heard_[node.boot_id];
      const bool ready = heard.finished && heard.view == view_->version().packed();
      if (end.state == v1::PULL_DONE) {
        if (!ready) violation_ = fmt::format("done, and {} has not said so at last", node.name);
        CheckBlocks(node, server, heard);
      } else if (named.contains(node.name) == ready) {
        violation_ = fmt::format("failed, and {} is {}", node.name,
                                 ready ? "named for nothing" : "not named");
      } else if (in_time && !ready && !heard.failed) {
        violation_ = fmt::format("failed before its time, and {} has not", node.name);
      }
    }
  }

  void CheckBlocks(const NodeInfo& node, const Server& server, const Heard& heard) {
    if (!server.alive || server.boot != node.boot_id) return;
    for (uint32_t block = 0; block < options_.blocks; ++block) {
      if (view_->OwnerId(SlotOfBlock(block)) != server.id || server.blocks.contains(block))
        continue;
      // Lost after what has arrived was said.
      if (server.undone.contains(block) && server.undone_at >= heard.sequence) continue;
      violation_ = fmt::format("done, and {} lacks block {}", node.name, block);
    }
  }

  void Fault() {
    if (!job_.running()) return;
    const size_t i = world_.Below(servers_.size());
    Server& server = servers_[i];
    switch (world_.Below(6)) {
      case 0:
        return Crash(i);
      case 1:  // leaves, and joins again
        server.member = false;
        Publish();
        return world_.After(world_.Between(seconds(1), seconds(20)), [this, i] {
          servers_[i].member = true;
          Publish();
        });
      case 2:  // its source refuses, for a while or for good
        server.failing = true;
        if (world_.Chance(0.5)) {
          world_.After(world_.Between(seconds(1), seconds(10)),
                       [this, i] { servers_[i].failing = false; });
        }
        return;
      case 3:
        server.silent = true;
        if (world_.Chance(0.7)) {
          world_.After(world_.Between(seconds(1), seconds(20)),
                       [this, i] { servers_[i].silent = false; });
        }
        return;
      case 4:  // a digest was wrong: what was read under it is read again
        if (!server.alive || server.blocks.empty()) return;
        server.undone.insert(*server.blocks.begin());
        server.undone_at = server.sequence;
        server.blocks.erase(server.blocks.begin());
        if (server.view != nullptr && !server.silent) Send(&server);
        return;
      default:
        return Publish();  // another view of the same servers
    }
  }

  // Another process comes soon or late; the controller notices either way after a while.
  void Crash(size_t i) {
    servers_[i].alive = false;
    const Duration back = world_.Between(milliseconds(100), seconds(10));
    if (back > seconds(2)) {
      world_.After(seconds(2), [this, i] {
        if (servers_[i].alive) return;
        servers_[i].member = false;
        Publish();
      });
    }
    world_.After(back, [this, i] {
      if (servers_[i].alive) return;
      Start(i);
      servers_[i].member = true;
      servers_[i].failing = servers_[i].failing && world_.Chance(0.3);
      Publish();
      Work(i, servers_[i].boot);
      Say(i, servers_[i].boot);
    });
  }

  const JobOptions options_;
  World world_;
  std::vector<Server> servers_;
  View view_;
  uint64_t epoch_ = 0, boots_ = 0;
  PullJob job_;
  std::map<uint64_t, Heard> heard_;  // by boot id
  std::string violation_;
};

struct NamedRule {
  const char* name;
  bool controller::JobRules::*rule;
};

constexpr NamedRule kRules[] = {
    {"jobs_have_deadlines", &controller::JobRules::jobs_have_deadlines},
    {"finished_is_under_the_view", &controller::JobRules::finished_is_under_the_view},
    {"parts_are_of_one_process", &controller::JobRules::parts_are_of_one_process},
    {"late_reports_count_for_nothing", &controller::JobRules::late_reports_count_for_nothing},
};

}  // namespace

JobOutcome SimulateJob(const JobOptions& options) { return JobRun(options).Go(); }

bool BreakJobRule(const std::string& rule, controller::JobRules* rules) {
  for (const NamedRule& one : kRules) {
    if (rule != one.name) continue;
    rules->*one.rule = false;
    return true;
  }
  return false;
}

std::vector<std::string> BreakableJobRules() {
  std::vector<std::string> names;
  for (const NamedRule& one : kRules) names.emplace_back(one.name);
  return names;
}

}  // namespace ems::simulation
