#pragma once
// Measures several sides at the same values in one run: round after round, and in each round every
// side at one operation after the other, so that whatever disturbs the machine disturbs all.
//
// Invariant: only calls are timed. Values are made before and checked after: every byte of a Get,
// 256 MiB of the views of a round, one value in 16 of a Put. A wrong byte ends the run. Bound: 64
// MiB for what is read and 128 MiB for what is put, whatever the sizes are (a value of more makes
// them larger).
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/page_buffer.h"
#include "bench/harness/report.h"
#include "bench/harness/value_set.h"
#include "bench/sides/side_result.h"
#include "bench/sides/subject.h"

namespace ems::bench {

struct SideSettings {
  uint64_t rounds = 7;
  uint64_t warmup_rounds = 1;
  uint64_t read_ring_bytes = 64 * kMiB;  // where what is read goes
  uint64_t put_ring_bytes = 128 * kMiB;  // where what is put comes from
  uint64_t round_bytes = 256 * kMiB;     // of one operation of one side
  uint64_t round_calls_max = 16384;
  uint64_t light_calls = 2048;  // the same where no bytes move
  uint64_t batch = 32;          // of kPutBatch; fewer when they do not fit the ring
  std::vector<uint32_t> threads = {1, 2};
  Duration storm_time = std::chrono::seconds(3);
};

// Threading: one thread; makes the callers itself.
class SideBench final {
 public:
  // Allocates the rings for values of up to `value_bytes_max`. `on_round` is called after each
  // round. Errors: kResourceExhausted
  static Result<std::unique_ptr<SideBench>> Make(SideSettings settings, uint64_t value_bytes_max,
                                                 std::function<void()> on_round);

  // Stores `values` with every subject and measures what each offers. The result of each comes in
  // the order of `subjects`. Errors: kDataLoss  wrong bytes    kNotFound  a stored value is
  // missing    kCancelled  interrupted    and what subjects say; the text names which
  Result<std::vector<TrialResult>> Run(const ValueSet& values,
                                       const std::vector<Subject*>& subjects);
  // Reads without pause for storm_time; needs Run before, with this subject among its own.
  Result<StormResult> Storm(const ValueSet& values, Subject* subject);

 private:
  struct Trial;
  struct Timed;
  explicit SideBench(SideSettings settings, std::function<void()> on_round)
      : settings_(std::move(settings)), on_round_(std::move(on_round)) {}

  Status Load(const ValueSet& values, Subject* subject);
  Result<std::vector<Trial>> MakeTrials(const ValueSet& values,
                                        const std::vector<Subject*>& subjects) const;
  Status RunRound(const ValueSet& values, Trial* trial, bool measured);
  // The objects are to be in objects_.
  Stretch MakeStretch(const ValueSet& values, const Subject& subject, SideOp op);
  Stretch WalkOn(const ValueSet& values, const Subject& subject, SideOp op, uint64_t from,
                 uint64_t count);
  uint64_t ObjectsOfRound(const ValueSet& values, SideOp op) const;
  uint64_t BuffersFor(const ValueSet& values, const Subject& subject, SideOp op) const;
  MutableBytes PutRing(const Subject& subject, SideOp op) const;
  void Fill(const ValueSet& values, const Stretch& stretch, std::vector<uint32_t>* versions);
  // `cpu` runs while the callers do.
  Timed Time(Subject* subject, SideOp op, uint32_t threads, uint64_t batch, const Stretch& stretch,
             CpuMeter* cpu) const;
  Status Check(const ValueSet& values, Subject* subject, SideOp op, const Stretch& stretch);

  const SideSettings settings_;
  const std::function<void()> on_round_;
  PageBuffer read_ring_, put_ring_;
  // Of the stretch at hand.
  std::vector<uint64_t> objects_;
  std::vector<std::string_view> keys_;
  std::string key_bytes_;
  // By subject: which Put of each object is the last one.
  std::map<const Subject*, std::vector<uint32_t>> versions_;
};

}  // namespace ems::bench
