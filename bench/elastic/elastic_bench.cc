#include "bench/elastic/elastic_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/interrupt.h"
#include "bench/trace/ideal_lru.h"
#include "cluster/slot_table.h"
#include "common/check.h"
#include "ems_context/context_cache.h"
#include "mp_sdk/client.h"

namespace ems::bench {
namespace {

constexpr const char* kVictim = "server-2";

std::string ServerName(uint64_t number) { return fmt::format("server-{}", number); }

struct Step {
  std::string name, server;
  bool comes = false, kill = false;
};

std::vector<Step> StepsOf(Scenario scenario, const ElasticSettings& settings) {
  switch (scenario) {
    case Scenario::kUndisturbed:
      return {};
    case Scenario::kJoin:
      return {{"join", ServerName(settings.servers + 1), true}};
    case Scenario::kStop:
      return {{"stop", kVictim}, {"return after stop", kVictim, true}};
    case Scenario::kKill:
      return {{"kill", kVictim, false, true}, {"return after kill", kVictim, true}};
  }
  EMS_CHECK(false, "a scenario without steps");
}

bool HasSlots(const DhtView& view, const std::string& server) {
  return std::ranges::any_of(view.nodes(), [&](const NodeInfo& node) {
    return node.name == server && view.slots().CountOf(node.id) > 0;
  });
}

// A cluster, a client of it, and the changes that are made while requests go on.
// Threading: one thread, which the replay calls back on.
class Rig final {
 public:
  Rig(Scenario scenario, const Trace& trace, const ElasticSettings& settings)
      : trace_(trace), settings_(settings), steps_(StepsOf(scenario, settings)) {
    run_.scenario = scenario;
  }

  Result<ElasticRun> Run() {
    EMS_RETURN_IF_ERROR(Start());
    const uint64_t warm = settings_.warm_requests, timed = settings_.timed_requests(run_.scenario);
    run_.warm = Replay(TracePart(trace_, 0, warm, 0), false);
    if (Interrupted()) return Interruption();
    const Trace part = TracePart(trace_, warm, warm + timed, settings_.rate);
    start_ = Clock::System().Now();
    run_.timed = Replay(part, true);
    EMS_RETURN_IF_ERROR(std::move(status_));
    if (Interrupted()) return Interruption();
    if (!run_.changes.empty()) EMS_RETURN_IF_ERROR(EndWindow(timed));
    return std::move(run_);
  }

 private:
  Status Start() {
    EMS_ASSIGN_OR_RETURN(cluster_, ElasticCluster::Start({.programs = settings_.programs,
                                                          .dram_bytes = settings_.dram_bytes,
                                                          .lease_ms = settings_.lease_ms}));
    for (uint64_t i = 1; i <= settings_.servers; ++i)
      EMS_RETURN_IF_ERROR(cluster_->StartServer(ServerName(i)));
    const std::string controller = cluster_->controller_address();
    EMS_ASSIGN_OR_RETURN(name_space_, TemporaryNamespace::Create(
                                          controller, settings_.replicas * settings_.capacity_bytes,
                                          settings_.replicas));
    ClientOptions options;
    options.controller = controller;
    options.name_space = name_space_->name();
    options.connections_per_server_max =
        std::max(options.connections_per_server_max, settings_.concurrency);
    EMS_ASSIGN_OR_RETURN(client_, Client::Connect(options));
    run_.name_space = client_->name_space().ref.id;
    return WaitUntilReady(client_.get());
  }

  ReplayResult Replay(const Trace& part, bool timed) {
    context::ClientBlockStore store(client_.get());
    context::ContextCacheOptions options;
    options.block_tokens = static_cast<uint32_t>(kTraceBlockTokens);
    context::ContextCache cache(&store, options);
    IdealLru none(0, settings_.block_bytes);  // IdealHits says more
    ReplaySettings settings;
    settings.block_bytes = settings_.block_bytes;
    settings.concurrency = settings_.concurrency;
    settings.speedup = timed ? 1 : 0;
    settings.keep_requests = true;
    TraceReplay replay(&part, &cache, &none, settings);
    return replay.Run([](const ReplayTotals&) {},
                      [&](uint64_t done) {
                        if (timed) Progress(done);
                      },
                      [&] { return Interrupted() || !status_.ok(); });
  }

  // `done` of the timed requests are.
  void Progress(uint64_t done) {
    if (!status_.ok()) return;
    if (!run_.changes.empty()) NoteView(&run_.changes.back());
    const size_t next = run_.changes.size();
    if (next == steps_.size() || done < settings_.quiet_requests + next * settings_.window_requests)
      return;
    if (next > 0) status_ = EndWindow(done);
    if (status_.ok()) status_ = Begin(steps_[next], done);
  }

  void NoteView(Change* change) {
    if (change->in_view >= Duration::zero()) return;
    if (HasSlots(*client_->views().view(), change->server) != change->comes) return;
    change->in_view = Clock::System().Now() - start_ - change->at;
  }

  Status Begin(const Step& step, uint64_t done) {
    Change change{
        .name = step.name, .server = step.server, .comes = step.comes, .killed = step.kill};
    change.before = client_->views().view();
    for (const NodeInfo& node : change.before->nodes()) {
      if (!cluster_->Runs(node.name)) continue;
      EMS_ASSIGN_OR_RETURN(
          change.held[node.name],
          NamespaceBytes(client_.get(), node.name, name_space_->name(), "value_bytes"));
    }
    EMS_ASSIGN_OR_RETURN(counted_, cluster_->Counters());
    change.window.begin = done;
    const TimePoint begin = Clock::System().Now();
    change.at = begin - start_;
    if (step.comes)
      EMS_RETURN_IF_ERROR(cluster_->StartServer(step.server));
    else if (step.kill)
      cluster_->KillServer(step.server);
    else
      cluster_->StopServer(step.server);
    change.took = Clock::System().Now() - begin;
    run_.changes.push_back(std::move(change));
    NoteView(&run_.changes.back());
    return OkStatus();
  }

  // Of the last change: no more requests than a window has, so that all are as long.
  Status EndWindow(uint64_t done) {
    Change& change = run_.changes.back();
    change.window.end = std::min(done, change.window.begin + settings_.window_requests);
    change.after = client_->views().view();
    EMS_ASSIGN_OR_RETURN(const CountersByServer now, cluster_->Counters());
    change.forwarded = CountedBetween(counted_, now);
    return OkStatus();
  }

  const Trace& trace_;
  const ElasticSettings& settings_;
  const std::vector<Step> steps_;
  std::unique_ptr<ElasticCluster> cluster_;
  std::unique_ptr<TemporaryNamespace> name_space_;
  std::unique_ptr<Client> client_;
  TimePoint start_{};
  CountersByServer counted_;  // when the last change began
  Status status_;             // of changes
  ElasticRun run_;
};

}  // namespace

const char* NameOf(Scenario scenario) {
  switch (scenario) {
    case Scenario::kUndisturbed:
      return "undisturbed";
    case Scenario::kJoin:
      return "join";
    case Scenario::kStop:
      return "stop";
    case Scenario::kKill:
      return "kill";
  }
  EMS_CHECK(false, "a scenario without a name");
}

Result<ElasticRun> RunElastic(Scenario scenario, const Trace& trace,
                              const ElasticSettings& settings) {
  return Rig(scenario, trace, settings).Run();
}

std::vector<Loss> LossesOf(const ElasticRun& run, const ElasticSettings& settings) {
  std::vector<Loss> losses;
  if (settings.replicas > 1) return losses;
  for (const Change& change : run.changes) {
    if (change.comes) continue;
    const auto lost = [view = change.before, server = change.server, ns = run.name_space,
                       hasher = TraceHasher(settings.block_bytes)](uint64_t block) {
      const NodeInfo* owner = view->Owner(SlotOf(ns, TraceKey(hasher, block)));
      return owner != nullptr && owner->name == server;
    };
    losses.push_back({settings.warm_requests + change.window.begin, lost});
  }
  return losses;
}

}  // namespace ems::bench
