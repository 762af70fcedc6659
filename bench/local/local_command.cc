#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figures.h"
#include "bench/local/ems_subject.h"
#include "bench/local/local_gates.h"
#include "bench/local/local_report.h"
#include "bench/local/memcpy_subject.h"
#include "bench/sides/peer_server.h"
#include "bench/sides/peer_subject.h"
#include "bench/sides/side_bench.h"
#include "mp_sdk/client.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

constexpr uint64_t kWorkingSetMax = 64 * kGiB;
constexpr uint64_t kValueBytesMax = 64 * kMiB;
constexpr uint64_t kKeysMax = uint64_t{1} << 20;

// Of keys that are read on the servers' host. A server need not be asked but for an index that is
// being changed at that moment.
constexpr double kOneSidedShare = 0.99;

struct Flags : ClusterFlags {
  std::vector<std::string> sizes = {"4KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB"};
  std::vector<std::string> peers = {"redis", "memcached"};
  std::vector<std::string> peer_transports = {"unix", "tcp"};
  std::string working_set = "1GiB";
  SideSettings settings;
};

// One peer over one transport.
struct PeerChoice {
  std::string name;  // "redis unix"
  PeerKind kind = PeerKind::kRedis;
  PeerTransport transport = PeerTransport::kUnix;
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  std::vector<uint64_t> sizes;
  uint64_t working_set_bytes = 0;
  std::vector<PeerChoice> peers;

  uint64_t CountOf(uint64_t value_bytes) const {
    return std::clamp<uint64_t>(working_set_bytes / value_bytes, 1, kKeysMax);
  }
  uint64_t LargestSize() const { return *std::max_element(sizes.begin(), sizes.end()); }
};

// Tiny rings and rounds, and of sizes only those that fit them.
void MakeQuick(Flags* flags) {
  SideSettings& s = flags->settings;
  s.rounds = std::min<uint64_t>(s.rounds, 3);
  s.read_ring_bytes = s.put_ring_bytes = s.round_bytes = 4 * kMiB;
  s.round_calls_max = s.light_calls = 64;
  s.storm_time = std::chrono::milliseconds(100);
  flags->working_set = "16MiB";
}

std::vector<PeerChoice> ChoosePeers(const Flags& flags) {
  std::vector<PeerChoice> peers;
  for (const std::string& peer : flags.peers) {
    for (const std::string& transport : flags.peer_transports) {
      if (peer == "none") continue;
      peers.push_back(
          {.name = fmt::format("{} {}", peer, transport),
           .kind = peer == "redis" ? PeerKind::kRedis : PeerKind::kMemcached,
           .transport = transport == "unix" ? PeerTransport::kUnix : PeerTransport::kTcp});
    }
  }
  return peers;
}

// Errors: kInvalidArgument  what the user has to change
Result<Plan> MakePlan(Flags flags) {
  if (flags.quick) MakeQuick(&flags);
  Plan plan;
  EMS_ASSIGN_OR_RETURN(plan.working_set_bytes, ParseBytes(flags.working_set));
  if (plan.working_set_bytes < kMiB || plan.working_set_bytes > kWorkingSetMax) {
    return Error(StatusCode::kInvalidArgument, "--working-set: {} is not within 1 MiB and {}",
                 flags.working_set, FormatBytes(kWorkingSetMax));
  }
  EMS_ASSIGN_OR_RETURN(plan.sizes, ParseSizes("--sizes", flags.sizes, 1,
                                              std::min(kValueBytesMax, plan.working_set_bytes)));
  for (const uint64_t bytes : kLocalGateSizes) {
    const bool there = std::find(plan.sizes.begin(), plan.sizes.end(), bytes) != plan.sizes.end();
    if (flags.gates == GateSet::kAll && !there) plan.sizes.push_back(bytes);
  }
  plan.peers = ChoosePeers(flags);
  plan.flags = std::move(flags);
  return plan;
}

Result<std::unique_ptr<PeerSubject>> StartPeer(const Plan& plan, const PeerChoice& choice,
                                               const ValueSet& values) {
  const std::vector<uint32_t>& threads = plan.flags.settings.threads;
  return PeerSubject::Start(choice.name, {.kind = choice.kind, .transport = choice.transport},
                            values, *std::max_element(threads.begin(), threads.end()));
}

// The whole measurement. Threading: one thread.
class LocalRun final {
 public:
  LocalRun(const Plan& plan, std::string name_space, Client* client, std::vector<pid_t> pids,
           Report* report)
      : plan_(plan),
        name_space_(std::move(name_space)),
        client_(client),
        pids_(std::move(pids)),
        report_(report),
        bar_({.label = "measuring",
              .total = (plan.flags.settings.rounds + plan.flags.settings.warmup_rounds) *
                       plan.sizes.size(),
              .unit = "rounds"}) {}

  Result<SideResults> Measure() {
    for (PageBuffer& arena : arenas_) {
      EMS_ASSIGN_OR_RETURN(arena, PageBuffer::Make(plan_.working_set_bytes));
    }
    EMS_ASSIGN_OR_RETURN(bench_, SideBench::Make(plan_.flags.settings, plan_.LargestSize(),
                                                 [this] { bar_.Update(++rounds_done_); }));
    for (const uint64_t bytes : plan_.sizes) EMS_RETURN_IF_ERROR(MeasureSize(bytes));
    bar_.Clear();
    return std::move(results_);
  }

 private:
  Status MeasureSize(uint64_t bytes) {
    const ValueSet values(name_space_, bytes, plan_.CountOf(bytes));
    MemcpySubject libc(CopyWay::kMemcpy, &values, arenas_[0].bytes());
    MemcpySubject own(CopyWay::kCopyValue, &values, arenas_[1].bytes());
    EMS_ASSIGN_OR_RETURN(const std::unique_ptr<EmsSubject> ems,
                         EmsSubject::Make(client_, pids_, RegisteredBytes(), &values));
    std::vector<std::unique_ptr<PeerSubject>> peers;
    EMS_RETURN_IF_ERROR(StartPeers(values, &peers));
    std::vector<Subject*> subjects = {&libc, &own, ems.get()};
    for (const auto& peer : peers) subjects.push_back(peer.get());
    EMS_ASSIGN_OR_RETURN(std::vector<TrialResult> trials, bench_->Run(values, subjects));
    std::move(trials.begin(), trials.end(), std::back_inserter(results_.trials));
    EMS_ASSIGN_OR_RETURN(const StormResult storm, bench_->Storm(values, ems.get()));
    results_.storms.push_back(storm);
    return ems->RemoveAll();
  }

  // As much as the bench puts from, with room for one value a caller.
  uint64_t RegisteredBytes() const {
    const SideSettings& s = plan_.flags.settings;
    return std::max(s.put_ring_bytes,
                    plan_.LargestSize() * *std::max_element(s.threads.begin(), s.threads.end()));
  }

  // One that is not installed is left out, once and for all, and that is said.
  Status StartPeers(const ValueSet& values, std::vector<std::unique_ptr<PeerSubject>>* peers) {
    for (const PeerChoice& choice : plan_.peers) {
      if (absent_.contains(choice.kind)) continue;
      auto peer = StartPeer(plan_, choice, values);
      if (peer.status().code() == StatusCode::kNotFound) {
        absent_.insert(choice.kind);
        Miss(choice, Message(peer.status()));
        continue;
      }
      if (!peer.ok()) return Prefixed(peer.status(), choice.name);
      if (versions_.insert((*peer)->version()).second) {
        report_->json()["peers"].push_back((*peer)->version());
      }
      peers->push_back(*std::move(peer));
    }
    return OkStatus();
  }

  void Miss(const PeerChoice& choice, std::string_view why) {
    for (const PeerChoice& same : plan_.peers) {
      if (same.kind == choice.kind)
        results_.missing.push_back(fmt::format("{}: {}", same.name, why));
    }
    bar_.Clear();
    report_->Print(fmt::format("{}: left out, {}\n", PeerName(choice.kind), why));
  }

  const Plan& plan_;
  const std::string name_space_;
  Client* const client_;
  const std::vector<pid_t> pids_;
  Report* const report_;
  terminal::ProgressBar bar_;
  uint64_t rounds_done_ = 0;
  PageBuffer arenas_[2];  // a working set of each way to copy
  std::unique_ptr<SideBench> bench_;
  SideResults results_;
  std::set<PeerKind> absent_;
  std::set<std::string> versions_;
};

void Announce(const Plan& plan, const std::string& name_space, size_t servers, Report* report) {
  const SideSettings& s = plan.flags.settings;
  report->Print(fmt::format(
      "ems-bench local: {} server{} on this host, namespace {}, working set {}, medians of {} "
      "rounds\n"
      "Every side has the same values, walks them in the same order and into the same memory; in "
      "each round one follows the other.\n"
      "memcpy, EMS's copy: from a working set of this process, by the C library and as EMS copies; "
      "the faster of the two is the limit. redis, memcached: children of this process, "
      "nothing on disk, a client that does the least.\n"
      "EMS keeps a checksum of every value, its Puts compute it; the peers keep none. \"Get, "
      "checksum always verified\" checks it at each read, the plain Get does not.\n"
      "CPU s/GB: of this process, and of the processes that serve. Latencies are of one call.\n",
      servers, Plural(servers), name_space, FormatBytes(plan.working_set_bytes), s.rounds));
  report->json()["settings"] = {{"servers", servers},
                                {"namespace", name_space},
                                {"working_set_bytes", plan.working_set_bytes},
                                {"rounds", s.rounds},
                                {"warmup_rounds", s.warmup_rounds},
                                {"read_ring_bytes", s.read_ring_bytes},
                                {"put_ring_bytes", s.put_ring_bytes},
                                {"quick", plan.flags.quick}};
}

// Why reads went over the socket, if any did.
void TellStats(const ClientStats& stats, Report* report) {
  report->json()["client"] = {
      {"one_sided", stats.one_sided},     {"not_attached", stats.not_attached},
      {"not_current", stats.not_current}, {"not_conclusive", stats.not_conclusive},
      {"retries", stats.retries},         {"checksum_mismatches", stats.checksum_mismatches}};
  const uint64_t asked = stats.not_attached + stats.not_current + stats.not_conclusive;
  if (asked == 0) return;
  report->Print(fmt::format(
      "\n{} reads took the socket: {} not attached, {} index not current, {} not conclusive; {} "
      "were one-sided\n",
      asked, stats.not_attached, stats.not_current, stats.not_conclusive, stats.one_sided));
}

void Gates(const Plan& plan, const SideResults& results, Report* report) {
  report->AtLeast(kExact, "one_sided_share_min", OneSidedShareMin(results), kOneSidedShare);
  if (plan.flags.gates != GateSet::kAll) return;
  if (plan.flags.settings.rounds < kLocalGateRounds) {
    report->Fail(fmt::format("the gates are stated for medians of {} rounds, this run had {}",
                             kLocalGateRounds, plan.flags.settings.rounds));
  }
  if (plan.working_set_bytes < kLocalGateWorkingSet) {
    report->Fail(fmt::format("the gates are stated for a working set of {}, this run had {}",
                             FormatBytes(kLocalGateWorkingSet),
                             FormatBytes(plan.working_set_bytes)));
  }
  report->Print("\n");
  for (const LocalGate& gate : JudgeLocal(results)) {
    report->Gate(kTimed, gate.result.name, gate.result.value, gate.result.op, gate.result.bound);
    if (!gate.why.empty()) report->Print(fmt::format("  {}\n", gate.why));
  }
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  EMS_ASSIGN_OR_RETURN(const auto temporary, TemporaryNamespace::Create(plan.flags.controller));
  const std::string& name_space = temporary->name();
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                       Client::Connect(ClientOptionsOf(plan.flags, name_space)));
  const ViewCache::View view = client->views().view();
  EMS_ASSIGN_OR_RETURN(const std::vector<pid_t> pids, RequireLocalServers(*view));
  EMS_RETURN_IF_ERROR(RequireCapacity(plan.working_set_bytes, *view));
  Announce(plan, name_space, pids.size(), report);

  EMS_ASSIGN_OR_RETURN(const SideResults results,
                       LocalRun(plan, name_space, client.get(), pids, report).Measure());
  report->Print(LocalTables(results));
  TellStats(client->stats(), report);
  report->json().update(LocalJson(results));
  Gates(plan, results, report);
  return OkStatus();
}

void AddFlags(Command* command, Flags* flags) {
  SideSettings& s = flags->settings;
  AddClusterOptions(command, flags);
  command->AddOption("--sizes", &flags->sizes, "Value sizes; --gate adds those that it needs",
                     {.delimiter = ','});
  command->AddOption("--working-set", &flags->working_set,
                     "Bytes of values of one size; the servers need a third more");
  command->AddOption("--rounds", &s.rounds, "Measured rounds; figures are their medians",
                     {.check = InRange{1, 1000}});
  command->AddOption("--threads", &s.threads, "Numbers of callers",
                     {.check = InRange{1, 64}, .delimiter = ','});
  command->AddOption("--peers", &flags->peers,
                     "Caches to compare with, as far as they are installed",
                     {.check = OneOf{{"redis", "memcached", "none"}}, .delimiter = ','});
  command->AddOption("--peer-transports", &flags->peer_transports, "How the peers are reached",
                     {.check = OneOf{{"unix", "tcp"}}, .delimiter = ','});
}

}  // namespace

void AddLocalCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* local = program->AddCommand(
      "local", "Measure a client on its servers' host beside memcpy, redis and memcached");
  AddFlags(local, flags.get());
  AddCommonOptions(
      local, flags.get(),
      {.quick = "A few seconds: a working set of 16 MiB, small rounds",
       .about = "All servers have to be on this host and to have a unix_path. redis-server and "
                "memcached\nare started and ended by the bench, on sockets and ports of their own.",
       .failures = "an error, a wrong byte, a missing key or a failed gate",
       .examples = {"local", "local --gate --json local.json",
                    "local --sizes 1MiB --threads 1 --peers none"},
       .has_plot = true});
  local->SetRun([=] { return RunPlanned("local", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
