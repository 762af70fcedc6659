#include "tests/simulation/simulation.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include "proto/controller.pb.h"
#include "tests/simulation/sim_client.h"

namespace ems::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kWarmUp = seconds(4);
constexpr Duration kFaultsUntil = seconds(40);
constexpr Duration kHeals = seconds(19);  // from when nothing is broken any more
constexpr int kClients = 3;
constexpr double kRestoredShare = 0.25;  // of the runs

constexpr std::array<std::pair<FaultKind, const char*>, 22> kNames = {{
    {FaultKind::kServerCrash, "server crashes"},
    {FaultKind::kServerLosesDisk, "server crashes and loses its disk"},
    {FaultKind::kServerStops, "server stops in order"},
    {FaultKind::kServerPauses, "server stands still"},
    {FaultKind::kDiskHangs, "disk hangs"},
    {FaultKind::kDiskFails, "disk refuses writes"},
    {FaultKind::kServerCutOff, "server cut off from the controller"},
    {FaultKind::kServerHearsNothing, "server hears nothing of the controller"},
    {FaultKind::kServersCut, "two servers cut from each other"},
    {FaultKind::kServerAlone, "server cut off from controller and servers"},
    {FaultKind::kServerMoves, "server cut off, another machine takes its name"},
    {FaultKind::kBadWeather, "messages lost, late and twice"},
    {FaultKind::kControllerCrash, "controller crashes"},
    {FaultKind::kControllerPauses, "controller stands still"},
    {FaultKind::kStranger, "a stranger sends heartbeats"},
    {FaultKind::kForeignServer, "a server of another cluster comes"},
    {FaultKind::kControllerRestored, "controller restored from an older copy"},
    {FaultKind::kMachineCrashes, "server's machine crashes and boots"},
    {FaultKind::kMachineCopied, "a copy of the server's machine starts elsewhere"},
    {FaultKind::kStoreFails, "controller's store refuses writes"},
    {FaultKind::kServerDrained, "an operator drains a server"},
    {FaultKind::kServerStopsSoon, "server gives its slots away and stops"},
}};
constexpr size_t kByChance = 16;  // of them, the first

struct RuleName {
  const char* name;
  bool ControlRules::*rule;
};
constexpr std::array<RuleName, 20> kRules = {{
    {"renewals_need_the_view", &ControlRules::renewals_need_the_view},
    {"puts_wait_for_activation", &ControlRules::puts_wait_for_activation},
    {"activation_waits_for_peers", &ControlRules::activation_waits_for_peers},
    {"reads_need_a_lease", &ControlRules::reads_need_a_lease},
    {"leases_end_early", &ControlRules::leases_end_early},
    {"quorum_is_a_majority", &ControlRules::quorum_is_a_majority},
    {"words_keep_their_age", &ControlRules::words_keep_their_age},
    {"servers_ahead_are_parked", &ControlRules::servers_ahead_are_parked},
    {"older_stores_are_noticed", &ControlRules::older_stores_are_noticed},
    {"clusters_are_told_apart", &ControlRules::clusters_are_told_apart},
    {"numbers_are_durable", &ControlRules::numbers_are_durable},
    {"leaving_is_durable", &ControlRules::leaving_is_durable},
    {"open_views_are_kept", &ControlRules::open_views_are_kept},
    {"boots_close_views", &ControlRules::boots_close_views},
    {"boots_count_together", &ControlRules::boots_count_together},
    {"heirs_wait", &ControlRules::heirs_wait},
    {"puts_are_checked_at_their_end", &ControlRules::puts_are_checked_at_their_end},
    {"changes_are_marked", &ControlRules::changes_are_marked},
    {"open_slots_are_fresh", &ControlRules::open_slots_are_fresh},
    {"finished_slots_close", &ControlRules::finished_slots_close},
}};

std::string StateOf(const SimServer& server) {
  const server::Ownership* const ownership = server.ownership();
  if (ownership == nullptr) return fmt::format("{} does not run", server.address());
  return fmt::format("{} has view {}.{}, lease {}, replaced {}, holds slots {}, owns {}",
                     server.address(), ownership->version().term(), ownership->version().epoch(),
                     ownership->LeaseValid(), server.replaced(), ownership->HoldsSlots(),
                     ownership->owned_slots());
}

Duration MendedBy(const std::vector<Fault>& faults) {
  Duration latest = kFaultsUntil + seconds(16);
  for (const Fault& fault : faults)
    latest = std::max<Duration>(latest, fault.at + fault.lasts + seconds(1));
  return latest;
}

class Cluster final {
 public:
  Cluster(const Options& options, const std::vector<Fault>& faults);
  Outcome Run();

 private:
  Machine Of(int target) const { return target % names_ + 1; }
  SimServer& Spare(int target) { return *servers_[static_cast<size_t>(Of(target) + names_) - 1]; }
  bool Serves(const SimServer& server, const DhtView& view) const;
  SimServer& Foreign() { return *servers_.back(); }
  SimServer& Server(int target) { return *servers_[static_cast<size_t>(Of(target)) - 1]; }
  void Befall(const Fault& fault);
  void CutBoth(Machine a, Machine b, Duration lasts);
  void CutOne(Machine from, Machine to, Duration lasts);
  void Stranger();
  void CopyMachine(int target);
  void Drain(const std::string& name, bool cancel);
  void CheckAlways();
  void OperatorLooks();
  void CheckHealed();
  void Violate(std::string what);

  World world_;
  Network network_{&world_};
  const int names_;
  bool moved_ = false;            // a machine was replaced by another one
  bool unknown_ = false;          // nothing is left that shows that a process is dead
  std::set<uint64_t> strangers_;  // boot ids of processes of other clusters
  const TimePoint start_;
  const TimePoint mended_;
  SimController controller_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  KeyLog log_;
  Outcome outcome_;
};

double Drift(World* world) {
  return (static_cast<double>(world->Below(2001)) - 1000) / 1000 * 0.008;
}

Cluster::Cluster(const Options& options, const std::vector<Fault>& faults)
    : world_(options.seed),
      names_(options.servers),
      start_(world_.now()),
      mended_(start_ + MendedBy(faults)),
      controller_(
          &world_, Drift(&world_), options.rules,
          {.on_view =
               [this](const ViewCache::View& view) {
                 for (const NodeInfo& node : view->nodes())
                   if (strangers_.contains(node.boot_id)) Violate("a stranger has got slots");
                 for (size_t i = 0; i < servers_.size(); ++i) {
                   network_.Send(0, static_cast<int>(i) + 1,
                                 [server = servers_[i].get(), view] { server->TakeView(view); });
                 }
                 for (size_t i = 0; i < clients_.size(); ++i) {
                   network_.Send(0, 100 + static_cast<int>(i),
                                 [client = clients_[i].get(), view] { client->TakeView(view); });
                 }
               },
           .on_violation = [this](std::string what) { Violate(std::move(what)); }}) {
  for (int i = 0; i < 2 * names_; ++i) {
    servers_.push_back(std::make_unique<SimServer>(&world_, &network_, &controller_,
                                                   SimServer::Options{.machine = i + 1,
                                                                      .name = i % names_ + 1,
                                                                      .drift = Drift(&world_),
                                                                      .has_ssd = world_.Chance(0.5),
                                                                      .rules = options.rules,
                                                                      .forwards = options.forwards,
                                                                      .migrates = options.migrates},
                                                   &servers_));
  }
  servers_.push_back(
      std::make_unique<SimServer>(&world_, &network_, &controller_,
                                  SimServer::Options{.machine = 2 * names_ + 1,
                                                     .name = 1,
                                                     .drift = Drift(&world_),
                                                     .has_ssd = true,
                                                     .cluster = ClusterId(world_.Number() | 1),
                                                     .rules = options.rules,
                                                     .forwards = options.forwards,
                                                     .migrates = options.migrates},
                                  &servers_));
  for (int i = 0; i < kClients; ++i) {
    clients_.push_back(std::make_unique<SimClient>(
        &world_, &network_, &controller_, 100 + i, /*stubborn=*/i == 0, &servers_, &log_,
        [this](std::string what) { Violate(std::move(what)); }));
  }
  controller_.Start();
  // Most are there from the beginning; the others join later, spare machines when they are needed.
  for (int i = 0; i < names_; ++i) {
    const Duration joins =
        world_.Chance(0.7) ? Duration::zero() : world_.Between(seconds(1), kFaultsUntil);
    world_.After(joins, [one = servers_[static_cast<size_t>(i)].get()] { one->Start(); });
  }
  for (auto& client : clients_) client->Start();
  for (const Fault& fault : faults) world_.After(fault.at, [this, fault] { Befall(fault); });
  world_.After(seconds(2), [this] { controller_.Backup(); });
}

void Cluster::Violate(std::string what) {
  if (!outcome_.violation.empty()) return;
  outcome_.violation = std::move(what);
  outcome_.at = world_.now() - start_;
}

void Cluster::CutOne(Machine from, Machine to, Duration lasts) {
  network_.Cut(from, to);
  world_.After(lasts, [this, from, to] { network_.Mend(from, to); });
}

void Cluster::CutBoth(Machine a, Machine b, Duration lasts) {
  CutOne(a, b, lasts);
  CutOne(b, a, lasts);
}

// One of another cluster that has a member's name, or of older software, which names no cluster;
// and both have seen views that nobody here has made.
void Cluster::Stranger() {
  const bool says_who = world_.Chance(0.5);
  const uint64_t boot_id = world_.Number() | 1;
  if (says_who) strangers_.insert(boot_id);
  controller_.Serve([this, says_who, boot_id](controller::ClusterState* state) {
    v1::RegisterRequest request;
    if (says_who) request.set_cluster(world_.Number() | 1);
    v1::Node* node = request.mutable_node();
    node->set_name(says_who ? Server(static_cast<int>(world_.Below(64))).name() : "stranger");
    node->set_boot_id(boot_id);
    node->set_data_address("127.0.0.1:9");
    node->set_capacity_bytes(1 << 30);
    v1::RegisterReply registered;
    if (!state->Register(request, &registered).ok()) return;
    v1::HeartbeatRequest beat;
    beat.set_node_id(registered.node_id());
    beat.set_boot_id(node->boot_id());
    beat.set_cluster(request.cluster());
    beat.set_term(world_.Chance(0.5) ? 5 + world_.Below(1 << 10)
                                     : ViewVersion::kTermMax - world_.Below(3));
    beat.set_epoch(1 + world_.Below(1 << 20));
    v1::HeartbeatReply reply;
    (void)state->Heartbeat(beat, &reply);
  });
}

// What a copy of a disk has is not what its original takes from then on. Of a server that is alone
// in its view there must be none (mp_controller/activation.h).
void Cluster::CopyMachine(int target) {
  if (Spare(target).running() || Server(target).peers() == 0) return;
  moved_ = true;
  log_.StopChecking();
  Spare(target).Copy(Server(target));
  Spare(target).Start();
}

void Cluster::Drain(const std::string& name, bool cancel) {
  controller_.Serve([name, cancel](controller::ClusterState* state) {
    v1::DrainNodeRequest request;
    request.set_name(name);
    request.set_cancel(cancel);
    v1::DrainNodeReply reply;
    (void)state->DrainNode(request, &reply);
  });
}

void Cluster::Befall(const Fault& fault) {
  SimServer& server = Server(fault.target);
  const Machine at = Of(fault.target);
  const auto again = [&](auto what) { world_.After(fault.lasts, what); };
  switch (fault.kind) {
    case FaultKind::kServerCrash:
    case FaultKind::kServerLosesDisk:
      server.Crash(fault.kind == FaultKind::kServerLosesDisk);
      unknown_ |= server.is_new();
      return again([&server] { server.Start(); });
    case FaultKind::kMachineCrashes:
      server.CrashMachine();
      unknown_ |= server.is_new();
      return again([&server] { server.Start(); });
    case FaultKind::kMachineCopied:
      return CopyMachine(fault.target);
    case FaultKind::kStoreFails:
      return controller_.FailStore(fault.lasts);
    case FaultKind::kServerDrained:
      Drain(server.name(), /*cancel=*/false);
      return again([this, &server] { Drain(server.name(), /*cancel=*/true); });
    case FaultKind::kServerStopsSoon:
      server.AnnounceStop();
      return again([&server] {
        server.Stop();
        server.Start();
      });
    case FaultKind::kServerStops:
      server.Stop();
      return again([&server] { server.Start(); });
    case FaultKind::kServerPauses:
      return server.Pause(fault.lasts);
    case FaultKind::kDiskHangs:
      return server.HangDisk(fault.lasts);
    case FaultKind::kDiskFails:
      return server.FailDisk(fault.lasts);
    case FaultKind::kServerCutOff:
      return CutBoth(0, at, fault.lasts);
    case FaultKind::kServerHearsNothing:
      return CutOne(0, at, fault.lasts);
    case FaultKind::kServersCut:
      if (Of(fault.other) != at) CutBoth(at, Of(fault.other), fault.lasts);
      return;
    case FaultKind::kServerAlone:
      CutBoth(0, at, fault.lasts);
      for (size_t i = 0; i < servers_.size(); ++i)
        if (static_cast<int>(i) + 1 != at) CutBoth(at, static_cast<int>(i) + 1, fault.lasts);
      return;
    case FaultKind::kServerMoves:
      moved_ = true;
      CutBoth(0, at, fault.lasts);
      return Spare(fault.target).Start();
    case FaultKind::kBadWeather:
      network_.SetWeather({.loss = 0.2, .twice = 0.1, .delay_most = milliseconds(400)});
      return again([this] { network_.SetWeather({}); });
    case FaultKind::kControllerCrash:
      controller_.Crash();
      return again([this] { controller_.Start(); });
    case FaultKind::kControllerPauses:
      return controller_.Pause(fault.lasts);
    case FaultKind::kControllerRestored:
      if (!controller_.running()) return;
      controller_.Crash();
      controller_.RestoreBackup();
      return again([this] { controller_.Start(); });
    case FaultKind::kStranger:
      return Stranger();
    case FaultKind::kForeignServer:
      Foreign().Start();
      return again([this] { Foreign().Crash(false); });
  }
}

// At the end, as `emsctl status` asks for it, and again for as long as it may: after a restored
// store servers are ahead, and then a machine that was replaced may never say a word again.
void Cluster::OperatorLooks() {
  for (int i = 0; i < names_; ++i) Drain(Server(i).name(), /*cancel=*/true);
  const bool ahead = controller_.restored(), waited_for = moved_ || unknown_;
  if (ahead) {
    controller_.Serve([this](controller::ClusterState* state) {
      controller_.AllowNewHistory();
      v1::AcceptAheadReply reply;
      (void)state->AcceptAhead(v1::AcceptAheadRequest(), &reply);
    });
  }
  if (waited_for) {
    controller_.Serve([](controller::ClusterState* state) {
      v1::AcceptLossReply reply;
      (void)state->AcceptLoss(v1::AcceptLossRequest(), &reply);
    });
  }
  if (ahead || waited_for) world_.After(seconds(2), [this] { OperatorLooks(); });
}

void Cluster::CheckHealed() {
  const ViewCache::View view = controller_.view();
  if (view == nullptr || view->frozen()) return Violate("the view is still frozen at the end");
  for (int i = 0; i < names_; ++i) {
    const SimServer& server = Server(i);
    if (Serves(server, *view) || Serves(Spare(i), *view)) continue;
    return Violate(fmt::format("at view {}.{} {} does not serve: {}; {}", view->version().term(),
                               view->version().epoch(), server.name(), StateOf(server),
                               StateOf(Spare(i))));
  }
}

bool Cluster::Serves(const SimServer& server, const DhtView& view) const {
  const server::Ownership* const ownership = server.ownership();
  return ownership != nullptr && ownership->LeaseValid() &&
         ownership->version() == view.version() && !ownership->HoldsSlots() &&
         ownership->owned_slots() > 0;
}

void Cluster::CheckAlways() {
  for (int i = 0; i < names_; ++i) {
    if (Server(i).replaced() && !moved_) Violate(Server(i).name() + " lost its name to a stranger");
    if (Server(i).forgot_a_view() || Spare(i).forgot_a_view())
      Violate(Server(i).name() + " acted upon a view whose number its disk does not have");
    if (Server(i).mistook_a_view() || Spare(i).mistook_a_view())
      Violate(Server(i).name() + " installed two views of one number");
  }
  const SimServer& foreign = Foreign();
  if (foreign.kept_keys() != static_cast<size_t>(kKeys))
    Violate("a server of another cluster has dropped what it stored");
  if (foreign.ownership() != nullptr && foreign.ownership()->self() != kNoNode)
    Violate("a server of another cluster has got an id");
}

Outcome Cluster::Run() {
  const auto broken = [this] {
    CheckAlways();
    return !outcome_.violation.empty();
  };
  world_.RunUntil(mended_, broken);
  if (!broken()) {
    Foreign().Crash(false);
    for (int i = 0; i < names_; ++i)
      if (!Spare(i).running()) Server(i).Start();
    controller_.Start();
    world_.After(seconds(8), [this] { OperatorLooks(); });
    world_.RunUntil(mended_ + kHeals, broken);
  }
  if (!broken()) CheckHealed();
  for (const auto& client : clients_) outcome_.served += client->served();
  return outcome_;
}

}  // namespace

std::string Fault::ToText() const {
  const char* name = "";
  for (const auto& [known, text] : kNames)
    if (known == kind) name = text;
  return fmt::format("{:6.2f} s  {} (server {}, {}) for {:.2f} s",
                     std::chrono::duration<double>(at).count(), name, target, other,
                     std::chrono::duration<double>(lasts).count());
}

namespace {

// About when the view changes because of another one, which began or ended.
void FollowAnother(World* dice, const std::vector<Fault>& faults, Fault* fault) {
  const Fault& other = faults[dice->Below(faults.size())];
  const Duration at = other.at + (dice->Chance(0.5) ? other.lasts : Duration::zero());
  fault->at = std::min(at + dice->Between(Duration::zero(), milliseconds(500)), kFaultsUntil);
  if (dice->Chance(0.5)) fault->target = other.target;
}

// All servers at once, and some of the times again before the cluster has settled.
void AddPowerCuts(World* dice, int servers, std::vector<Fault>* faults) {
  Duration at = dice->Between(kWarmUp, kFaultsUntil - seconds(3));
  const FaultKind kind = dice->Chance(0.5) ? FaultKind::kServerCrash : FaultKind::kServerLosesDisk;
  const uint64_t times = 1 + dice->Below(2);
  for (uint64_t i = 0; i < times; ++i) {
    for (int target = 0; target < servers; ++target)
      faults->push_back({at, kind, target, 0, milliseconds(50)});
    at += dice->Between(milliseconds(600), milliseconds(2500));
  }
}

// A server joins while most of the others do not hear of it, and then the controller starts again
// and again: none of the views that it makes becomes active.
void AddRestarts(World* dice, int servers, std::vector<Fault>* faults) {
  const int joins = static_cast<int>(dice->Below(static_cast<uint64_t>(servers)));
  const Duration leaves = dice->Between(kWarmUp, kFaultsUntil / 2);
  const Duration away = seconds(12);  // until the view does not show it
  faults->push_back({leaves, FaultKind::kServerCrash, joins, 0, away});
  const Duration cut = leaves + away - milliseconds(200);
  Duration at = cut + seconds(3);
  for (int start = 0; start < 20; ++start) {
    faults->push_back({at, FaultKind::kControllerCrash, 0, 0, milliseconds(100)});
    at += dice->Between(milliseconds(3300), milliseconds(4500));  // it listens first
  }
  for (int i = 1; i <= (servers - 1) / 2 + 1; ++i)
    faults->push_back({cut, FaultKind::kServerCutOff, joins + i, 0, at - cut});
}

// A majority is cut off from the controller, and goes on, when a copy of one of them starts where
// it is not.
void AddCopy(World* dice, int servers, std::vector<Fault>* faults) {
  const int copied = static_cast<int>(dice->Below(static_cast<uint64_t>(servers)));
  const Duration at = dice->Between(kWarmUp, kFaultsUntil - seconds(15));
  const Duration lasts = dice->Between(seconds(3), seconds(15));
  for (int i = 0; i <= servers / 2; ++i)
    faults->push_back({at, FaultKind::kServerCutOff, copied + i, 0, lasts});
  const Duration starts = at + dice->Between(milliseconds(100), lasts / 2);
  faults->push_back({starts, FaultKind::kMachineCopied, copied, 0, {}});
}

// What was added later has dice of its own: the other faults of a seed stay what they were.
void AddMore(const Options& options, bool restores, std::vector<Fault>* faults) {
  World dice(options.seed ^ 0xb007ULL);
  // In such a run it is the whole machine that crashes.
  if (dice.Chance(0.3)) {
    for (Fault& fault : *faults)
      if (fault.kind == FaultKind::kServerCrash) fault.kind = FaultKind::kMachineCrashes;
  }
  if (dice.Chance(0.15)) {
    faults->push_back({dice.Between(kWarmUp, kFaultsUntil), FaultKind::kStoreFails, 0, 0,
                       dice.Between(milliseconds(100), seconds(8))});
  }
  if (dice.Chance(0.1) && !restores) AddCopy(&dice, options.servers, faults);
}

// Likewise. A drain moves slots by views like any others, so no rule is there for it alone.
void AddDrains(const Options& options, std::vector<Fault>* faults) {
  World dice(options.seed ^ 0xd7a1ULL);
  if (!dice.Chance(0.4)) return;
  const uint64_t drains = 1 + dice.Below(3);
  for (uint64_t i = 0; i < drains; ++i) {
    faults->push_back({dice.Between(kWarmUp, kFaultsUntil),
                       dice.Chance(0.5) ? FaultKind::kServerDrained : FaultKind::kServerStopsSoon,
                       static_cast<int>(dice.Below(static_cast<uint64_t>(options.servers))), 0,
                       dice.Between(milliseconds(100), seconds(8))});
  }
}

}  // namespace

std::vector<Fault> MakeFaults(const Options& options) {
  World dice(options.seed ^ 0x5eedULL);
  std::vector<Fault> faults;
  for (int i = 0; i < options.faults; ++i) {
    Fault fault;
    fault.at = dice.Between(kWarmUp, kFaultsUntil);
    fault.kind = kNames[dice.Below(kByChance)].first;
    fault.target = static_cast<int>(dice.Below(static_cast<uint64_t>(options.servers)));
    fault.other = static_cast<int>(dice.Below(static_cast<uint64_t>(options.servers)));
    fault.lasts = dice.Chance(0.5) ? dice.Between(milliseconds(50), seconds(4))
                                   : dice.Between(seconds(4), seconds(15));
    if (!faults.empty() && dice.Chance(0.25)) FollowAnother(&dice, faults, &fault);
    faults.push_back(fault);
  }
  if (options.faults > 0 && dice.Chance(0.1)) AddPowerCuts(&dice, options.servers, &faults);
  // In few runs, since other faults do not go with it.
  if (!faults.empty() && dice.Chance(kRestoredShare))
    faults[dice.Below(faults.size())].kind = FaultKind::kControllerRestored;
  // An older copy is put back while every server reaches the controller, as the operator's page
  // asks: a server that is not heard while the controller listens proves nothing, and one that is
  // away when views start again may not be told so.
  const auto restores = [](const Fault& fault) {
    return fault.kind == FaultKind::kControllerRestored;
  };
  const auto silences = [](const Fault& fault) {
    return fault.kind == FaultKind::kServerCutOff || fault.kind == FaultKind::kServerHearsNothing ||
           fault.kind == FaultKind::kServerAlone || fault.kind == FaultKind::kServerMoves ||
           fault.kind == FaultKind::kServerPauses || fault.kind == FaultKind::kBadWeather ||
           fault.kind == FaultKind::kControllerPauses;
  };
  World more_dice(options.seed ^ 0x4e57ULL);
  const bool is_restored = std::any_of(faults.begin(), faults.end(), restores);
  if (is_restored) {
    std::erase_if(faults, silences);
  } else if (options.faults > 0 && options.servers > 2 && more_dice.Chance(0.05)) {
    AddRestarts(&more_dice, options.servers, &faults);
  }
  if (options.faults > 0) AddMore(options, is_restored, &faults);
  if (options.faults > 0) AddDrains(options, &faults);
  return faults;
}

Outcome Simulate(const Options& options, const std::vector<Fault>& faults) {
  return Cluster(options, faults).Run();
}

std::vector<Fault> Minimise(const Options& options, std::vector<Fault> faults) {
  for (size_t i = faults.size(); i-- > 0;) {
    std::vector<Fault> fewer = faults;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (!Simulate(options, fewer).violation.empty()) faults = std::move(fewer);
  }
  return faults;
}

bool Break(const std::string& rule, ControlRules* rules) {
  for (const RuleName& known : kRules) {
    if (rule != known.name) continue;
    rules->*known.rule = false;
    return true;
  }
  return false;
}

std::vector<std::string> BreakableRules() {
  std::vector<std::string> names;
  names.reserve(kRules.size());
  for (const RuleName& known : kRules) names.emplace_back(known.name);
  return names;
}

}  // namespace ems::simulation
