#include "bench/local/local_gates.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/harness/figures.h"
#include "bench/local/memcpy_subject.h"

namespace ems::bench {
namespace {

constexpr double kViewP50Us = 1.5, kGet4KiBP50Us = 3, kLookupP50Us = 250, kStormCores = 0.02;
// Verifying is a second pass over bytes that the copy may have sent past the caches. A Put wakes
// the server's thread and is woken by it, 40 to 60 us beside a copy of 50 to 210.
constexpr double kGetVsCopy = 0.92, kGetCheckedVsCopy = 0.48, kTwoThreadsVsCopy = 0.85;
constexpr double kPutVsCopy = 0.33, kPutBatchVsCopy = 0.40, kPutOrdinaryVsCopy = 0.25;
constexpr double kGet64KiBP50VsPeer = 0.45, kGet4KiBP50VsPeer = 0.2;
constexpr double kGetVsPeer = 1.15, kGetCpuVsPeer = 0.6, kTwoThreadsVsPeer = 1.9;
constexpr double kPutVsPeer = 0.9, kPutCpuVsPeer = 0.75;

constexpr const char* kEms = "EMS";

class Judge final {
 public:
  explicit Judge(const SideResults& results) : results_(results) {}
  std::vector<LocalGate> TakeGates() { return std::move(gates_); }

  void Absolute(std::string name, SideOp op, uint64_t bytes, Figure figure, double bound) {
    std::string why;
    const std::vector<double> ours = Rounds(kEms, op, bytes, 1, figure, &why);
    Add(std::move(name), Median(ours), GateOp::kAtMost, bound, std::move(why));
  }

  // Beside the faster way to copy of each round.
  void VsCopy(std::string name, SideOp op, uint32_t threads, double bound) {
    VsBest(std::move(name), op, kMiB, threads, Gbps, GateOp::kAtLeast, bound, SideOp::kGet,
           {MemcpySubject::NameOf(CopyWay::kMemcpy), MemcpySubject::NameOf(CopyWay::kCopyValue)});
  }

  void VsPeer(std::string name, SideOp op, uint64_t bytes, uint32_t threads, Figure figure,
              GateOp gate, double bound) {
    VsBest(std::move(name), op, bytes, threads, figure, gate, bound, Counterpart(op),
           {"redis unix", "memcached unix"});
  }

  void Storm() {
    double worst = 0;
    for (const StormResult& storm : results_.storms) worst = std::max(worst, storm.server_cores);
    Add("storm_server_cores", worst, GateOp::kAtMost, kStormCores,
        results_.storms.empty() ? "no storm was measured" : "");
  }

 private:
  // Beside the best side of each round: more is better for kAtLeast, and less for kAtMost.
  void VsBest(std::string name, SideOp op, uint64_t bytes, uint32_t threads, Figure figure,
              GateOp gate, double bound, SideOp theirs, const std::vector<std::string>& sides) {
    std::string why;
    const auto ours = Rounds(kEms, op, bytes, threads, figure, &why);
    std::vector<double> best;
    for (const std::string& side : sides) {
      const auto rounds = Rounds(side, theirs, bytes, threads, figure, &why);
      if (best.empty()) best = rounds;
      for (size_t i = 0; i < std::min(best.size(), rounds.size()); ++i) {
        best[i] =
            gate == GateOp::kAtLeast ? std::max(best[i], rounds[i]) : std::min(best[i], rounds[i]);
      }
    }
    Add(std::move(name), MedianRatio(ours, best), gate, bound, std::move(why));
  }

  void Add(std::string name, double value, GateOp op, double bound, std::string why) {
    if (!why.empty()) value = std::nan("");
    gates_.push_back({{std::move(name), value, op, bound}, std::move(why)});
  }

  // Adds to `why` when there are none.
  std::vector<double> Rounds(const std::string& subject, SideOp op, uint64_t bytes,
                             uint32_t threads, Figure figure, std::string* why) const {
    const TrialResult* trial = results_.Find(subject, op, bytes, threads);
    if (trial != nullptr && !trial->rounds.empty()) return trial->All(figure);
    if (!why->empty()) *why += "; ";
    for (const std::string& missing : results_.missing) {
      if (!missing.starts_with(subject)) continue;
      *why += missing;
      return {};
    }
    *why += fmt::format("{}: {} of {} with {} thread{} was not measured", subject, OpName(op),
                        FormatBytes(bytes), threads, threads == 1 ? "" : "s");
    return {};
  }

  const SideResults& results_;
  std::vector<LocalGate> gates_;
};

}  // namespace

double OneSidedShareMin(const SideResults& results) {
  double least = std::nan("");
  for (const TrialResult& trial : results.trials)
    if (trial.subject == kEms && !IsPut(trial.op)) least = std::fmin(least, trial.one_sided_share);
  return least;
}

std::vector<LocalGate> JudgeLocal(const SideResults& results) {
  Judge judge(results);
  for (const uint64_t bytes : kLocalGateSizes) {
    judge.Absolute(fmt::format("view_{}_p50_us", SizeName(bytes)), SideOp::kGetView, bytes, P50,
                   kViewP50Us);
  }
  judge.Absolute("get_4KiB_p50_us", SideOp::kGetChecked, 4 * kKiB, P50, kGet4KiBP50Us);
  judge.Absolute("lookup_1000_p50_us", SideOp::kLookup, 4 * kKiB, P50, kLookupP50Us);
  judge.Storm();

  judge.VsCopy("get_1MiB_vs_copy", SideOp::kGet, 1, kGetVsCopy);
  judge.VsCopy("get_checked_1MiB_vs_copy", SideOp::kGetChecked, 1, kGetCheckedVsCopy);
  judge.VsCopy("get_1MiB_2_threads_vs_copy", SideOp::kGet, 2, kTwoThreadsVsCopy);
  judge.VsCopy("put_1MiB_vs_copy", SideOp::kPut, 1, kPutVsCopy);
  judge.VsCopy("put_batch_1MiB_vs_copy", SideOp::kPutBatch, 1, kPutBatchVsCopy);
  judge.VsCopy("put_ordinary_1MiB_vs_copy", SideOp::kPutOrdinary, 1, kPutOrdinaryVsCopy);

  const auto get = SideOp::kGetChecked;
  judge.VsPeer("get_64KiB_p50_vs_peer", get, 64 * kKiB, 1, P50, GateOp::kAtMost,
               kGet64KiBP50VsPeer);
  judge.VsPeer("get_1MiB_vs_peer", get, kMiB, 1, Gbps, GateOp::kAtLeast, kGetVsPeer);
  judge.VsPeer("get_1MiB_cpu_vs_peer", get, kMiB, 1, Cpu, GateOp::kAtMost, kGetCpuVsPeer);
  judge.VsPeer("get_1MiB_2_threads_vs_peer", SideOp::kGet, kMiB, 2, Gbps, GateOp::kAtLeast,
               kTwoThreadsVsPeer);
  judge.VsPeer("get_4KiB_p50_vs_peer", get, 4 * kKiB, 1, P50, GateOp::kAtMost, kGet4KiBP50VsPeer);
  judge.VsPeer("put_1MiB_vs_peer", SideOp::kPut, kMiB, 1, Gbps, GateOp::kAtLeast, kPutVsPeer);
  judge.VsPeer("put_1MiB_cpu_vs_peer", SideOp::kPut, kMiB, 1, Cpu, GateOp::kAtMost, kPutCpuVsPeer);
  return judge.TakeGates();
}

}  // namespace ems::bench
