#include "tests/fault/chaos/chaos_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "common/check.h"
#include "tests/fault/chaos/rig.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBrokenMax = 20;
constexpr milliseconds kTick{5};

// Half of the clients see the servers through proxies, half as processes on their machines do.
TransportChoice TransportOf(int client) {
  return client % 2 == 0 ? TransportChoice::kTcp : TransportChoice::kAuto;
}

}  // namespace

std::string ChaosReport::ToText() const {
  std::string kinds;
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults.at(i) == 0) continue;
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", FaultName(static_cast<FaultKind>(i)),
                         faults.at(i));
  }
  return fmt::format(
      "{} rounds ({}); {} calls; {} changes acknowledged, {} unknown, {} refused; {} hits, {} of "
      "all reads one-sided, {} misses, {} errors; latest call {} ms after its deadline, slowest "
      "heal {} ms; {} guarantees broken",
      rounds, kinds, counts.calls, counts.acknowledged, counts.unknown, counts.refused, counts.hits,
      one_sided, counts.misses, counts.errors, counts.latest / milliseconds(1),
      slowest_heal / milliseconds(1), broken.size());
}

// Threading: one thread drives, the load's threads share what is Guarded.
class ChaosRun final {
 public:
  explicit ChaosRun(const ChaosOptions& options)
      : options_(options), random_(options.seed), origin_(Clock::System().Now()) {}

  Result<ChaosReport> Run() {
    EMS_RETURN_IF_ERROR(Start());
    const Deadline end = Deadline::After(options_.time);
    do {
      Round();
      ++report_.rounds;
    } while (!end.Passed() && !IsBroken());
    report_.counts = load_->counts();
    for (const auto& client : clients_) report_.one_sided += client->stats().one_sided;
    if (IsBroken()) report_.logs = rig_->LogEnds();
    auto broken = broken_.Lock();
    report_.broken = *broken;
    broken.Unlock();
    return report_;
  }

 private:
  struct Moment {
    Duration at;
    bool begins;
    const Fault* fault;
  };

  Status Start() {
    EMS_ASSIGN_OR_RETURN(rig_,
                         ChaosRig::Start(options_.means, options_.lease,
                                         [this](const std::string& what) { Complain(what); }));
    EMS_RETURN_IF_ERROR(rig_->Heal(options_.heal_max));
    std::vector<ChaosLoad::Named> named;
    for (int i = 0; i < rig_->means().clients; ++i) {
      EMS_ASSIGN_OR_RETURN(auto client, rig_->Connect(i, TransportOf(i)));
      clients_.push_back(std::move(client));
      named.push_back({fmt::format("client {}", i), clients_.back().get()});
    }
    load_ = std::make_unique<ChaosLoad>(options_.load, std::move(named),
                                        [this](const std::string& what) { Complain(what); });
    if (load_->PutAll(options_.heal_max)) return OkStatus();
    return Error(StatusCode::kDeadlineExceeded, "Puts fail before the first fault");
  }

  // Faults under load, their end, and a look at all that was read.
  void Round() {
    const std::vector<Fault> faults =
        MakeRound(rig_->means(), options_.round, options_.lease, &random_);
    Duration pause{0};
    for (const Fault& fault : faults)
      if (fault.kind == FaultKind::kStop) pause = std::max(pause, fault.length);
    load_->Start(random_(), pause);
    Break(faults);
    const TimePoint begin = Clock::System().Now();
    const Status healed = rig_->Heal(options_.heal_max);
    Tell("all faults are over");
    if (!healed.ok()) Complain("it does not heal: " + ToString(healed));
    EMS_CHECK(load_->Stop(), "a call does not end; seed {}\n{}", options_.seed, rig_->LogEnds());
    if (!healed.ok()) return;
    const Duration left = options_.heal_max - (Clock::System().Now() - begin);
    if (!load_->PutAll(left)) Complain("Puts fail though all servers are back");
    report_.slowest_heal = std::max(report_.slowest_heal, Clock::System().Now() - begin);
    load_->ReadAll();
    for (const std::string& text : load_->Check(origin_)) Complain(text);
  }

  void Break(const std::vector<Fault>& faults) {
    std::vector<Moment> moments;
    for (const Fault& fault : faults) {
      moments.push_back({fault.begin, true, &fault});
      moments.push_back({fault.begin + fault.length, false, &fault});
    }
    std::stable_sort(moments.begin(), moments.end(),
                     [](const Moment& a, const Moment& b) { return a.at < b.at; });
    const TimePoint begin = Clock::System().Now();
    for (const Moment& moment : moments) {
      const Deadline due(begin + moment.at);
      while (!due.Passed()) {
        rig_->Tend();
        (void)never_.WaitFor(std::min<Duration>(due.Remaining(), kTick));
      }
      Tell(moment.fault->ToText() + (moment.begins ? "" : ": over"));
      if (moment.begins) ++report_.faults.at(static_cast<size_t>(moment.fault->kind));
      moment.begins ? rig_->Begin(*moment.fault) : rig_->End(*moment.fault);
    }
  }

  void Tell(const std::string& what) {
    if (!options_.on_event) return;
    const auto at = std::chrono::duration<double>(Clock::System().Now() - origin_);
    options_.on_event(fmt::format("{:8.3f} s  {}", at.count(), what));
  }

  bool IsBroken() {
    auto broken = broken_.Lock();
    return !broken->empty();
  }

  void Complain(const std::string& what) {
    auto broken = broken_.Lock();
    if (broken->size() < kBrokenMax)
      broken->push_back(fmt::format("round {}: {}", report_.rounds, what));
  }

  const ChaosOptions options_;
  std::mt19937_64 random_;
  const TimePoint origin_;
  Guarded<std::vector<std::string>> broken_;
  ChaosReport report_;
  StopFlag never_;
  std::unique_ptr<ChaosRig> rig_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::unique_ptr<ChaosLoad> load_;  // stops before the clients go
};

Result<ChaosReport> RunChaos(const ChaosOptions& options) { return ChaosRun(options).Run(); }

}  // namespace ems::testing
