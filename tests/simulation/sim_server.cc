#include "tests/simulation/sim_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "mp_server/lease/view_grant.h"

namespace ems::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kPatience = seconds(1);          // of calls to the controller
constexpr Duration kStepEvery = milliseconds(250);  // as "ems-ctl" looks
constexpr Duration kPeersPatience = milliseconds(100);
constexpr Duration kTransfer = milliseconds(30);  // of a Put's bytes
constexpr Duration kKeepFor = seconds(20);
constexpr Duration kForwardPatience = milliseconds(20);
constexpr Duration kMigrateMost = milliseconds(500);  // until a slot's turn comes
constexpr Duration kMigrateAgain = milliseconds(200);
constexpr double kEvictions = 0.2;  // of reads that come before one
constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr int kHopsMax = 2;

Hash128 HashOf(int key) { return {static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15, 1}; }

}  // namespace

SlotId SlotOf(int key) {
  return SlotId(static_cast<uint16_t>((static_cast<uint32_t>(key) * 2731 + 17) % kSlotCount));
}

struct SimServer::Life {
  Life(SimServer* server, uint64_t boot, const NodeInfo& self)
      : boot_id(boot),
        ownership(&server->clock_, server->options_.rules),
        control({.boot_id = boot,
                 .kept = server,
                 .ownership = &ownership,
                 .holdings = server,
                 .rules = server->options_.rules},
                [this] { poked = true; }),
        keeper(self, &ownership, &control.views(), control.Events(), server->options_.rules) {
    if (server->options_.forwards)
      moved = std::make_unique<server::MovedSlots>(kKeepFor, &server->clock_);
  }

  const uint64_t boot_id;
  server::Ownership ownership;
  server::ServerControl control;
  server::LeaseKeeper keeper;
  std::map<int, uint64_t> values;
  std::map<int, uint64_t> losses;  // how often the slot of a key went
  ssd::GrantRecord granted;
  std::bitset<kSlotCount> owned;
  std::unique_ptr<server::MovedSlots> moved;  // null: nothing is forwarded
  std::map<int, uint64_t> kept;               // of slots that were lost
  std::map<int, server::Era> finished;        // of keys, where slots do not close
  std::map<NodeId, std::string> addresses;    // of nodes, as views have shown them
  bool poked = false;
  bool stepping = false;    // "ems-ctl" waits for the disk or for peers
  uint64_t calls = 0;       // to the controller
  uint64_t beat_timer = 0;  // the one that counts
  uint64_t step_timer = 0;  // likewise
  bool calling = false;
  bool stopping = false;  // it says so
};

SimServer::SimServer(World* world, Network* network, SimController* controller,
                     const Options& options, const std::vector<std::unique_ptr<SimServer>>* peers)
    : world_(*world),
      network_(*network),
      controller_(*controller),
      options_(options),
      peers_(*peers),
      name_(fmt::format("s{}", options.name)),
      address_(fmt::format("127.0.0.1:{}", 7000 + options.machine)),
      clock_(world, options.drift) {
  if (options.cluster == kNoCluster) return;
  disk_.cluster = options.cluster;
  // Such a number may well be one of this cluster's.
  disk_.highest = {ViewVersion(1, 1 + world->Below(4)), 1};
  for (int key = 0; key < kKeys; ++key) disk_.values[key] = world->Number() | 1;
}

SimServer::~SimServer() = default;

const server::Ownership* SimServer::ownership() const {
  return life_ == nullptr ? nullptr : &life_->ownership;
}

bool SimServer::replaced() const { return life_ != nullptr && life_->control.replaced(); }

void SimServer::Run(std::function<void()> step) {
  if (life_ == nullptr) return;
  if (!paused()) return step();
  waiting_.push_back([this, life = lives_, step = std::move(step)] {
    if (life == lives_ && life_ != nullptr) step();
  });
}

void SimServer::Pause(Duration time) {
  paused_until_ = world_.now() + time;
  world_.After(time, [this] { Resume(); });
}

void SimServer::Resume() {
  if (paused()) return;
  for (auto& step : std::exchange(waiting_, {})) step();
}

void SimServer::Start() {
  if (life_ != nullptr) return;
  ++lives_;
  if (disk_.folder == 0) disk_.folder = world_.Number() | 1;
  if (options_.has_ssd && disk_.lineage == 0) disk_.lineage = world_.Number() | 1;
  NodeInfo self;
  self.name = name_;
  self.boot_id = world_.Number() | 1;
  self.data_address = address_;
  self.host_id = fmt::format("host-{}/{}", options_.machine, boots_);
  self.capacity_bytes = 1 << 30;
  self.lineage = disk_.lineage;
  self.folder_id = disk_.folder;
  self.listener_id = static_cast<uint64_t>(options_.machine) * 1000 + static_cast<uint64_t>(boots_);
  life_ = std::make_unique<Life>(this, self.boot_id, self);
  life_->values = disk_.values;
  life_->granted = disk_.granted;
  Beat();
  Step();
}

void SimServer::Crash(bool lose_disk) {
  if (life_ != nullptr && !lose_disk && life_->ownership.version() > disk_.highest.version)
    forgot_a_view_ = true;
  life_.reset();
  ++lives_;
  waiting_.clear();
  if (!lose_disk) return;
  disk_ = {};
  lost_disk_ = true;
}

void SimServer::CrashMachine() {
  Crash(false);
  ++boots_;
}

size_t SimServer::peers() const {
  const ViewCache::View view = life_ == nullptr ? nullptr : life_->control.views().view();
  const bool installed = view != nullptr && view->version() == life_->ownership.version();
  return installed ? std::max<size_t>(view->nodes().size(), 1) - 1 : 0;
}

void SimServer::Copy(const SimServer& original) {
  Crash(true);
  disk_ = original.disk_;
  address_ = original.address_;
  options_.has_ssd = original.options_.has_ssd;
}

void SimServer::Stop() {
  if (life_ == nullptr) return;
  if (life_->keeper.registered()) SayLeave(options_.has_ssd);
  Crash(false);
}

void SimServer::AnnounceStop() {
  if (life_ != nullptr) life_->stopping = true;
}

void SimServer::SayLeave(bool keeps_slots) {
  v1::LeaveRequest request;
  request.set_keeps_slots(keeps_slots);
  request.set_node_id(life_->ownership.self().value());
  request.set_boot_id(life_->boot_id);
  network_.Send(options_.machine, 0, [this, request] {
    controller_.Serve([this, request](controller::ClusterState* state) {
      v1::LeaveReply reply;
      if (state->Leave(request, &reply).ok()) controller_.NoteLeft(NodeId(request.node_id()));
    });
  });
}

// One call: the answer, or after `patience` an error, whichever comes first.
template <typename Reply, typename Call, typename Take>
void SimServer::CallController(Duration patience, Call call, Take take) {
  const uint64_t life = lives_;
  const uint64_t number = ++life_->calls;
  life_->calling = true;
  const auto once = [this, life, number, take](const Status& status, const Reply& reply) {
    if (life != lives_ || life_ == nullptr || number != life_->calls || !life_->calling) return;
    Run([this, number, status, reply, take] {
      if (number != life_->calls || !std::exchange(life_->calling, false)) return;
      take(status, reply);
    });
  };
  network_.Send(options_.machine, 0, [this, call, once] {
    controller_.Serve([this, call, once](controller::ClusterState* state) {
      Reply reply;
      const Status status = call(state, &reply);
      network_.Send(0, options_.machine, [once, status, reply] { once(status, reply); });
    });
  });
  world_.After(patience,
               [once] { once(Error(StatusCode::kDeadlineExceeded, "no answer"), Reply()); });
}

void SimServer::Beat() {
  if (life_->keeper.replaced()) return;  // as the thread "ems-beat" ends
  ++life_->beat_timer;
  const TimePoint sent = clock_.Now();
  if (!life_->keeper.registered()) {
    v1::RegisterRequest request;
    life_->keeper.MakeRegister(&request);
    return CallController<v1::RegisterReply>(
        kPatience,
        [this, request](controller::ClusterState* state, v1::RegisterReply* reply) {
          const Status status = state->Register(request, reply);
          if (status.ok()) controller_.NoteRegistered(NodeId(reply->node_id()));
          return status;
        },
        [this](const Status& status, const v1::RegisterReply& reply) {
          NextBeat(life_->keeper.OnRegister(status, reply));
        });
  }
  v1::HeartbeatRequest request;
  life_->keeper.MakeHeartbeat({}, disk_.highest, &request);
  request.set_stopping(life_->stopping);
  CallController<v1::HeartbeatReply>(
      kPatience,
      [request](controller::ClusterState* state, v1::HeartbeatReply* reply) {
        return state->Heartbeat(request, reply);
      },
      [this, sent](const Status& status, const v1::HeartbeatReply& reply) {
        NextBeat(life_->keeper.OnHeartbeat(status, reply, sent, clock_.Now()));
      });
}

void SimServer::NextBeat(std::optional<Duration> pause) {
  if (life_->poked) Step();
  if (!pause.has_value()) {
    for (int tries = 0; tries < 10; ++tries)
      world_.After(seconds(tries), [this, life = lives_] {
        if (life == lives_) Run([this] { SayLeave(false); });
      });
    return;
  }
  const uint64_t timer = life_->beat_timer;
  world_.After(*pause, [this, life = lives_, timer] {
    if (life != lives_) return;
    Run([this, timer] {
      if (timer == life_->beat_timer && !life_->calling) Beat();
    });
  });
}

void SimServer::TakeView(ViewCache::View view) {
  Run([this, view = std::move(view)] {
    if (life_->control.views().Install(view)) Step();
  });
}

void SimServer::Step() {
  if (life_->stepping) return;
  life_->poked = false;
  if (life_->control.IsBehind()) {
    network_.Send(options_.machine, 0, [this] {
      controller_.Serve([this](controller::ClusterState*) {
        network_.Send(0, options_.machine, [this, view = controller_.view()] {
          if (view != nullptr) TakeView(view);
        });
      });
    });
  }
  if (const auto view = life_->control.Begin()) return Write(*view);
  AskPeers();
}

void SimServer::Write(const server::ViewIdentity& view) {
  life_->stepping = true;
  Duration takes = world_.Between(milliseconds(1), milliseconds(20));
  if (world_.now() < disk_hangs_until_) takes += disk_hangs_until_ - world_.now();
  const bool fails = world_.now() < disk_fails_until_;
  if (!options_.rules.numbers_are_durable) {  // it does not wait for its disk
    world_.After(takes, [this, life = lives_, view, fails] {
      if (life == lives_ && !fails) Keep(view);
    });
    takes = Duration::zero();
  }
  world_.After(takes, [this, life = lives_, view, fails] {
    if (life != lives_) return;
    if (options_.rules.numbers_are_durable && !fails) Keep(view);
    Run([this, fails] {
      life_->control.Finish(fails ? Error(StatusCode::kUnavailable, "disk full") : OkStatus());
      disk_.granted = life_->granted;
      life_->stepping = false;
      if (!life_->calling && life_->keeper.registered()) Beat();
      AskPeers();
    });
  });
}

void SimServer::Keep(const server::ViewIdentity& view) {
  if (view.version == disk_.highest.version && view != disk_.highest) mistook_a_view_ = true;
  if (view.version >= disk_.highest.version) disk_.highest = view;
  if (disk_.cluster == kNoCluster) disk_.cluster = life_->control.views().cluster();
}

void SimServer::AskPeers() {
  const TimePoint asked = clock_.Now();
  const server::PeerRound round = life_->control.PeersToAsk(asked);
  if (round.view == nullptr) return StepAfter(kStepEvery);
  life_->stepping = true;
  const auto answers = std::make_shared<server::PeerAnswers>();
  for (const NodeId peer : round.peers)
    AskPeer(*round.view->Find(peer), round.view->version(), answers);
  world_.After(kPeersPatience, [this, life = lives_, round, answers, asked] {
    if (life != lives_) return;
    Run([this, round, answers, asked] {
      life_->control.OnPeers(round, *answers, asked);
      AskForViews(*answers, *round.view);
      life_->stepping = false;
      StepAfter(round.next);
    });
  });
}

void SimServer::AskPeer(const NodeInfo& node, ViewVersion view,
                        const std::shared_ptr<server::PeerAnswers>& answers) {
  for (const auto& peer : peers_) {
    if (peer->address() != node.data_address) continue;
    const auto ask = [this, node, view, answers, peer = peer.get()] {
      peer->TakePeers(node.boot_id, view, [this, node, answers, peer](server::PeerAnswer answer) {
        network_.Send(
            peer->options_.machine, options_.machine,
            [node, answers, answer = std::move(answer)] { (*answers)[node.id] = answer; });
      });
    };
    network_.Send(options_.machine, peer->options_.machine, ask);
  }
}

void SimServer::AskForViews(const server::PeerAnswers& answers, const DhtView& view) {
  for (const auto& [id, answer] : answers) {
    if (answer.view <= view.version()) continue;
    for (const auto& peer : peers_) {
      if (peer->address() != view.Find(id)->data_address) continue;
      network_.Send(
          options_.machine, peer->options_.machine,
          [this, peer = peer.get(), than = view.version()] { peer->TellView(than, this); });
    }
  }
}

void SimServer::TellView(ViewVersion than, SimServer* to) {
  Run([this, than, to] {
    if (const ViewCache::View view = life_->control.NewerThan(than); view != nullptr)
      network_.Send(options_.machine, to->options_.machine, [to, view] { to->TakeView(view); });
  });
}

void SimServer::StepAfter(Duration pause) {
  const uint64_t timer = ++life_->step_timer;
  world_.After(pause, [this, life = lives_, timer] {
    if (life != lives_) return;
    Run([this, timer] {
      if (timer == life_->step_timer) Step();
    });
  });
}

void SimServer::TakePeers(uint64_t boot_id, ViewVersion view,
                          std::function<void(server::PeerAnswer)> answer) {
  Run([this, boot_id, view, answer = std::move(answer)] {
    if (life_->boot_id != boot_id) return;
    answer({.view = life_->ownership.told_version(),
            .heard = life_->control.Tell(view, clock_.Now())});
  });
}

bool SimServer::TakesPuts(int key) const {
  return life_ != nullptr &&
         life_->ownership.CheckWrite(SlotOf(key), ViewVersion()) == server::Verdict::kYes;
}

Answer SimServer::CheckPut(int key, ViewVersion client) const {
  Answer said{.view = life_->ownership.version()};
  const server::Verdict verdict = life_->ownership.CheckWrite(SlotOf(key), client);
  if (verdict == server::Verdict::kYes) said.kind = Answer::Kind::kDone;
  if (verdict == server::Verdict::kWrongOwner) said.kind = Answer::Kind::kWrongOwner;
  return said;
}

void SimServer::TakePut(int key, uint64_t value, ViewVersion client,
                        std::function<void(Answer)> answer) {
  Run([=, this] {
    const Answer said = CheckPut(key, client);
    if (said.kind != Answer::Kind::kDone) return answer(said);
    // Its bytes come.
    world_.After(world_.Between(Duration::zero(), kTransfer),
                 [=, this, life = lives_, losses = life_->losses[key]] {
                   if (life == lives_)
                     Run([=, this] { EndPut(key, value, client, losses, answer); });
                 });
  });
}

void SimServer::EndPut(int key, uint64_t value, ViewVersion client, uint64_t losses,
                       const std::function<void(Answer)>& answer) {
  Answer said{.kind = Answer::Kind::kDone, .view = life_->ownership.version()};
  if (options_.rules.puts_are_checked_at_their_end) {
    said = CheckPut(key, client);
    if (losses != life_->losses[key]) said.kind = Answer::Kind::kWrongOwner;
  }
  if (said.kind == Answer::Kind::kDone) {
    if (life_->moved != nullptr && options_.rules.changes_are_marked && !Finished(key))
      life_->moved->Mark(SlotOf(key), kNs, HashOf(key));
    value == 0 ? (void)life_->values.erase(key) : (void)(life_->values[key] = value);
    if (options_.has_ssd) disk_.values = life_->values;
  }
  answer(said);
}

void SimServer::TakeGet(int key, ViewVersion client, std::function<void(Answer)> answer) {
  Run([=, this] {
    Answer said{.view = life_->ownership.version()};
    const server::Verdict verdict = life_->ownership.CheckRead(SlotOf(key), client);
    if (verdict == server::Verdict::kYes && life_->ownership.MayReadMutable()) {
      said.kind = Answer::Kind::kValue;
      if (life_->moved != nullptr) {
        if (world_.Chance(kEvictions)) life_->values.erase(key);
        const auto origin = life_->moved->OriginOf(SlotOf(key));
        if (!life_->values.contains(key) && origin && !Finished(key)) {
          return Forward(key, *origin, origin->era.since, life_->losses[key], kHopsMax,
                         [this, key, said, answer](bool) {
                           Answer late = said;
                           const auto found = life_->values.find(key);
                           late.value = found == life_->values.end() ? 0 : found->second;
                           answer(late);
                         });
        }
      }
      const auto found = life_->values.find(key);
      said.value = found == life_->values.end() ? 0 : found->second;
    } else if (verdict == server::Verdict::kWrongOwner) {
      said.kind = Answer::Kind::kWrongOwner;
    }
    answer(said);
  });
}

SimServer::Kept SimServer::KeptOf(int key, server::Era era) {
  Kept kept;
  kept.said = true;
  if (life_->moved == nullptr) return kept;
  const auto found = life_->kept.find(key);
  if (found != life_->kept.end() && life_->moved->Keeps(SlotOf(key), era)) {
    kept.value = found->second;
  } else if (const auto before = life_->moved->Untouched(SlotOf(key), era, kNs, HashOf(key))) {
    kept.before = before->era;
    kept.node = before->node;
  }
  return kept;
}

void SimServer::TakeKept(int key, server::Era era, ViewVersion client,
                         std::function<void(Kept)> answer) {
  Run([=, this] { answer(life_->ownership.version() < client ? Kept() : KeptOf(key, era)); });
}

void SimServer::Land(int key, const Kept& kept, uint64_t since, uint64_t losses) {
  if (kept.value == 0 || losses != life_->losses[key] || life_->values.contains(key) ||
      !life_->moved->MayLand(SlotOf(key), since, kNs, HashOf(key)))
    return;
  life_->values[key] = kept.value;
  if (options_.has_ssd) disk_.values = life_->values;
}

void SimServer::Forward(int key, server::Origin origin, uint64_t since, uint64_t losses, int hops,
                        std::function<void(bool)> done) {
  // The answer, or after a while none, whichever comes first.
  const auto once = [this, life = lives_, key, since, losses, hops, done = std::move(done),
                     ended = std::make_shared<bool>(false)](const Kept& kept) {
    if (life != lives_ || life_ == nullptr) return;
    Run([=, this] {
      if (std::exchange(*ended, true)) return;
      if (kept.before.history != 0 && hops > 1)
        return Forward(key, {kept.before, kept.node}, since, losses, hops - 1, done);
      Land(key, kept, since, losses);
      done(kept.said);
    });
  };
  if (origin.node == life_->ownership.self()) return once(KeptOf(key, origin.era));
  const std::string address = life_->addresses[origin.node];
  for (const auto& peer : peers_) {
    if (peer->address() != address) continue;
    network_.SendOnce(
        options_.machine, peer->options_.machine,
        [this, peer = peer.get(), key, origin, client = life_->ownership.version(), once] {
          peer->TakeKept(key, origin.era, client, [this, peer, once](const Kept& kept) {
            network_.SendOnce(peer->options_.machine, options_.machine,
                              [once, kept] { once(kept); });
          });
        });
  }
  world_.After(kForwardPatience, [once] { once({}); });
}

bool SimServer::Finished(int key) const {
  const auto found = life_->finished.find(key);
  if (found == life_->finished.end()) return false;
  const auto origin = life_->moved->OriginOf(SlotOf(key));
  return origin && origin->era == found->second;
}

void SimServer::MigrateAfter(Duration time, int key) {
  world_.After(time, [this, life = lives_, key] {
    if (life == lives_) Run([this, key] { Migrate(key); });
  });
}

void SimServer::Migrate(int key) {
  const auto origin = life_->moved->OriginOf(SlotOf(key));
  if (!origin || Finished(key)) return;
  Forward(key, *origin, origin->era.since, life_->losses[key], kHopsMax,
          [this, key, era = origin->era](bool said) {
            if (!said) return MigrateAfter(kMigrateAgain, key);
            if (options_.rules.finished_slots_close) {
              (void)life_->moved->Finish(SlotOf(key), era);
            } else {
              life_->finished[key] = era;
            }
          });
}

void SimServer::GainSlots(const DhtView& view, const ssd::SlotGrant& grant,
                          const std::bitset<kSlotCount>& fresh) {
  if (life_->moved == nullptr) return;
  for (const NodeInfo& node : view.nodes()) life_->addresses[node.id] = node.data_address;
  life_->moved->Gain(grant.history, grant.since, grant.owned,
                     server::OriginsOf(view, grant, fresh));
  for (int key = 0; key < kKeys && options_.migrates; ++key)
    if (fresh[SlotOf(key).value()])
      MigrateAfter(world_.Between(Duration::zero(), kMigrateMost), key);
}

void SimServer::SetOwnedSlots(const ssd::SlotGrant& grant) {
  std::bitset<kSlotCount> lost;
  for (int key = 0; key < kKeys && life_->moved != nullptr; ++key) {
    const uint16_t slot = SlotOf(key).value();
    if (!life_->owned[slot] || grant.owned[slot]) continue;
    life_->kept.erase(key);
    lost[slot] = grant.Follows(life_->granted, slot);
    const auto found = life_->values.find(key);
    if (lost[slot] && found != life_->values.end()) life_->kept[key] = found->second;
  }
  if (life_->moved != nullptr) life_->moved->Lose(grant.history, grant.since, grant.owned, lost);
  life_->owned = grant.owned;
  for (int key = 0; key < kKeys; ++key) {
    if (!grant.Keeps(life_->granted, SlotOf(key).value())) life_->values.erase(key);
    if (!grant.owned[SlotOf(key).value()]) ++life_->losses[key];
  }
  life_->granted = grant.Record(disk_.lineage);
  if (options_.has_ssd) disk_.values = life_->values;
}

}  // namespace ems::simulation
