#pragma once
// The SSD tier of one server, in process, beside what fio gets from the same disk in the same run.
//
// Objects are taken from memory whose checksums were computed before: the disk is what is measured,
// not where values come from. Tier and fio take turns, every kTurnBytes of a round:
// a disk that others use, too, is another one a second later.
//
// Bound on the disk: the bytes of a series once for the tier, and once for fio.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/ssd/fio_peer.h"
#include "bench/ssd/ssd_rig.h"

namespace ems::bench {

struct SsdSettings {
  std::string folder;  // exists; what the bench makes in there is removed again
  uint64_t bytes = 0;  // of each series that writes, and of the tier that is read
  std::vector<uint64_t> write_sizes;
  std::vector<uint32_t> depths;  // of reads
  uint64_t rounds = 3;
  uint64_t restart_objects = 0;  // of 4 KiB
  uint64_t seed = 1;             // of the order of reads
  // Before a restart: drop the page cache of the whole machine, not of the tier alone.
  bool drop_whole_page_cache = false;
};

// One side in one round.
struct SsdFigures {
  double gb_per_second = 0;
  double p50_us = 0,
         p99_us = 0;      // of an operation; 0: of the tier's writes nobody waits for a single one
  double cpu_per_gb = 0;  // CPU seconds for each 1e9 bytes
};

struct SsdSeries {
  std::string name;  // "write_1MiB", "write_1MiB_full", "read_1MiB_depth8"
  bool write = true;
  uint32_t depth = 0;                    // of reads, under way at once
  std::vector<SsdFigures> ems{}, fio{};  // a round each; without fio the latter is empty
  // Of series that write.
  double write_amplification = 0;  // bytes that the kernel wrote / bytes of values; worst round
  uint64_t disk_bytes_max = 0;     // of all files of the tier, at any moment of any round
  uint64_t capacity_bytes = 0;
  uint64_t evicted_objects = 0;  // in all rounds

  using Figure = double SsdFigures::*;
  static double MedianOf(const std::vector<SsdFigures>& rounds, Figure figure);
  // Median over the rounds of GB/s beside fio's; NaN without fio.
  double vs_fio() const;
};

struct SsdRestart {
  std::string name;  // "restart_1M_4KiB"
  uint64_t objects = 0;
  uint64_t value_bytes = 0;
  std::vector<double>
      seconds{};  // SsdTier::Open with nothing of it in the page cache, a round each
  double median_seconds() const;
};

struct SsdResults {
  std::vector<SsdSeries> series;
  std::vector<SsdRestart> restarts;
  std::string fio_missing;  // why there is no fio beside it; empty when there is
  bool fio_failed = false;  // it is installed, and one of its runs failed
  std::string fio_engine;
  std::string io_engine;  // the tier's
  bool direct_io = true;  // of the tier
};

// "1M", "20000".
std::string CountName(uint64_t count);

// Threading: one thread.
class SsdBench final {
 public:
  // `say`: called after each round with a line for people.
  using Say = std::function<void(const std::string& line)>;
  SsdBench(SsdSettings settings, Say say);
  ~SsdBench();
  SsdBench(const SsdBench&) = delete;
  SsdBench& operator=(const SsdBench&) = delete;

  // Each adds to results(). Blocks. Errors: kUnavailable  the tier or its disk refused, or
  // interrupted    kResourceExhausted  no space
  Status RunWrites();
  // Reads of 1 MiB, and opening the tier that holds them.
  Status RunReads(bool reads, bool restart);
  Status RunSmallRestart();
  const SsdResults& results() const { return results_; }

 private:
  Status WriteOneSize(uint64_t value_bytes);
  struct Turns;
  Status WritePhase(const ValueRing& ring, uint64_t round, bool full, SsdSeries* series);
  Status TakeTurns(const ValueRing& ring, uint64_t round, uint64_t first, BenchTier* tier,
                   Turns* turns);
  Status ReadOnce(BenchTier* tier, uint64_t count);
  Status ReadRound(BenchTier* tier, uint64_t round, uint32_t depth, SsdSeries* series);
  Status Fill(const TierSize& size, uint64_t count, uint64_t value_bytes);
  Status Restart(const TierSize& size, SsdRestart restart);
  FioJob Job(bool write, uint64_t offset, uint64_t bytes, uint64_t block_bytes) const;
  Status MakeFioFile();
  // Nothing when there is no fio.
  std::optional<FioFigures> RunFio(const FioJob& job);
  void Conclude(const Turns& turns, uint64_t round, SsdSeries* into);
  void Remember(const BenchTier& tier);
  Status RemoveAll() const;

  const SsdSettings settings_;
  const Say say_;
  const std::string tier_folder_, fio_file_;
  FioPeer fio_;
  SsdResults results_;
};

}  // namespace ems::bench
