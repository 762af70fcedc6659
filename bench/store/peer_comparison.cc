#include "bench/store/peer_comparison.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/figures.h"
#include "bench/sides/peer_subject.h"
#include "bench/store/peer_report.h"
#include "bench/store/remote_subject.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

constexpr uint64_t kRounds = 5;
// Of a round: 24 values of 9 MiB, three for each of eight callers.
constexpr uint64_t kRoundBytes = 216 * kMiB;
constexpr PeerKind kPeers[] = {PeerKind::kMemcached, PeerKind::kRedis};

uint32_t CallersMax(const PeerPlan& plan) {
  return *std::max_element(plan.settings.threads.begin(), plan.settings.threads.end());
}

// The server of the comparison. Errors: kFailedPrecondition  there is not exactly one, here
Result<pid_t> TheServer(const DhtView& view) {
  EMS_ASSIGN_OR_RETURN(const std::vector<pid_t> pids, RequireLocalServers(view));
  if (pids.size() == 1) return pids[0];
  return Error(StatusCode::kFailedPrecondition,
               "--peers compares one server with one of each peer, this cluster has {}",
               pids.size());
}

// One size after the other. Threading: one thread.
class PeerRun final {
 public:
  PeerRun(const PeerPlan& plan, std::string salt, Client* client, pid_t server, Report* report)
      : plan_(plan),
        salt_(std::move(salt)),
        client_(client),
        server_(server),
        io_threads_(IoThreadsOf(server)),
        report_(report),
        bar_({.label = "measuring",
              .total = (plan.settings.rounds + plan.settings.warmup_rounds) * plan.sizes.size(),
              .unit = "rounds"}) {}

  Result<SideResults> Measure() {
    Announce();
    const uint64_t largest = *std::max_element(plan_.sizes.begin(), plan_.sizes.end());
    EMS_ASSIGN_OR_RETURN(
        bench_, SideBench::Make(plan_.settings, largest, [this] { bar_.Update(++rounds_done_); }));
    for (const uint64_t bytes : plan_.sizes) EMS_RETURN_IF_ERROR(MeasureSize(bytes));
    bar_.Clear();
    return std::move(results_);
  }

 private:
  Status MeasureSize(uint64_t bytes) {
    const ValueSet values(salt_, bytes, std::max<uint64_t>(1, plan_.working_set_bytes / bytes));
    RemoteSubject ems(client_, {server_});
    std::vector<std::unique_ptr<PeerSubject>> peers;
    for (const PeerKind kind : kPeers) EMS_RETURN_IF_ERROR(StartPeer(kind, values, &peers));
    std::vector<Subject*> subjects = {&ems};
    for (const auto& peer : peers) subjects.push_back(peer.get());
    EMS_ASSIGN_OR_RETURN(std::vector<TrialResult> trials, bench_->Run(values, subjects));
    std::move(trials.begin(), trials.end(), std::back_inserter(results_.trials));
    return ems.RemoveAll(values);
  }

  // One that is not installed is left out, and that is said, once.
  Status StartPeer(PeerKind kind, const ValueSet& values,
                   std::vector<std::unique_ptr<PeerSubject>>* peers) {
    const std::string name(PeerName(kind));
    auto peer = PeerSubject::Start(
        name, {.kind = kind, .transport = PeerTransport::kTcp, .threads = io_threads_}, values,
        CallersMax(plan_));
    if (peer.ok()) {
      if (versions_.insert((*peer)->version()).second)
        report_->json()["peers"].push_back((*peer)->version());
      peers->push_back(*std::move(peer));
      return OkStatus();
    }
    if (peer.status().code() != StatusCode::kNotFound) return Prefixed(peer.status(), name);
    const std::string why = fmt::format("{}: {}", name, Message(peer.status()));
    std::vector<std::string>& missing = results_.missing;
    if (std::find(missing.begin(), missing.end(), why) != missing.end()) return OkStatus();
    missing.push_back(why);
    bar_.Clear();
    report_->Print(why + ", left out\n");
    return OkStatus();
  }

  void Announce() {
    report_->Print(fmt::format(
        "ems-bench store --peers: one server a side, all over TCP on this host, working set {}, "
        "medians of {} rounds\n"
        "Threads that serve: EMS {} (network.io_threads), memcached -t {}, redis "
        "io-threads {}. Callers are threads of this process, each with a connection of its own.\n"
        "Every side has the same values, walks them in the same order and into the same memory; in "
        "each round one follows the other.\n"
        "EMS computes and compares a checksum of every value; memcached and Redis have none. CPU "
        "s/GB: of this process and the server. Latencies are of one call.\n",
        FormatBytes(plan_.working_set_bytes), plan_.settings.rounds, io_threads_, io_threads_,
        io_threads_));
    report_->json()["settings"] = {{"working_set_bytes", plan_.working_set_bytes},
                                   {"io_threads", io_threads_},
                                   {"rounds", plan_.settings.rounds},
                                   {"warmup_rounds", plan_.settings.warmup_rounds},
                                   {"quick", plan_.flags.quick}};
  }

  const PeerPlan& plan_;
  const std::string salt_;
  Client* const client_;
  const pid_t server_;
  const uint32_t io_threads_;
  Report* const report_;
  terminal::ProgressBar bar_;
  uint64_t rounds_done_ = 0;
  std::unique_ptr<SideBench> bench_;
  SideResults results_;
  std::set<std::string> versions_;
};

}  // namespace

PeerPlan MakePeerPlan(ClusterFlags flags, std::vector<uint64_t> sizes, uint64_t rounds,
                      std::vector<uint32_t> callers) {
  PeerPlan plan;
  plan.sizes = std::move(sizes);
  for (const uint64_t bytes : kPeerSizes) {
    const bool there = std::find(plan.sizes.begin(), plan.sizes.end(), bytes) != plan.sizes.end();
    if (!there && flags.gates == GateSet::kAll) plan.sizes.push_back(bytes);
  }
  if (plan.sizes.empty()) plan.sizes.assign(std::begin(kPeerSizes), std::end(kPeerSizes));
  SideSettings& settings = plan.settings;
  settings.threads = std::move(callers);
  settings.rounds = rounds == 0 ? kRounds : rounds;
  settings.round_bytes = settings.read_ring_bytes = settings.put_ring_bytes = kRoundBytes;
  settings.round_calls_max = 4096;
  if (flags.quick) {
    settings.rounds = std::min<uint64_t>(settings.rounds, 2);
    settings.round_bytes = settings.read_ring_bytes = settings.put_ring_bytes = 4 * kMiB;
    settings.round_calls_max = 64;
    plan.working_set_bytes = 16 * kMiB;
  }
  plan.flags = std::move(flags);
  return plan;
}

Status ComparePeers(const PeerPlan& plan, Report* report) {
  EMS_ASSIGN_OR_RETURN(const auto temporary, TemporaryNamespace::Create(plan.flags.controller));
  ClientOptions options = ClientOptionsOf(plan.flags, temporary->name());
  options.transport = TransportChoice::kTcp;
  options.connections_per_server_max = CallersMax(plan);
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(options));
  const ViewCache::View view = client->views().view();
  EMS_ASSIGN_OR_RETURN(const pid_t server, TheServer(*view));
  EMS_RETURN_IF_ERROR(RequireCapacity(plan.working_set_bytes, *view));
  EMS_ASSIGN_OR_RETURN(const SideResults results,
                       PeerRun(plan, temporary->name(), client.get(), server, report).Measure());
  ReportPeers(results, report);
  if (plan.flags.gates == GateSet::kAll) JudgePeers(results, plan.settings.threads, report);
  return OkStatus();
}

}  // namespace ems::bench
