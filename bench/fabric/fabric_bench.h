#pragma once
// Benchmarks of the emulated fabric: messages through a ring to another process beside memcpy, and
// the measured times of paced links beside those of their model.
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "common/status.h"
#include "fabric/emulated/ring_receiver.h"
#include "fabric/emulated/ring_sender.h"
#include "fabric/emulated/topology.h"

namespace ems::bench {

// Messages of one size, round by round with memcpy.
struct RingResult {
  uint64_t bytes = 0;
  LatencyRecorder send;  // until the receiver has it all
  LatencyRecorder copy;  // memcpy of as much
  double send_gb_per_s = 0;
  double copy_gb_per_s = 0;
  double ratio = 0;  // of the bandwidths; median of the rounds
};

// One process that sends, this one, and one that receives. Threading: one thread.
class RingBench final {
 public:
  // Forks: call it before this process has threads. Errors: kInternal  no process
  static Result<std::unique_ptr<RingBench>> Start(const fabric::RingOptions& options);
  ~RingBench();
  RingBench(const RingBench&) = delete;
  RingBench& operator=(const RingBench&) = delete;

  // The process that receives.
  pid_t receiver() const { return child_; }
  // Takes about `time`. `bytes` from 1 to kBytesMax. Errors: those of RingSender::Send
  Result<RingResult> Run(uint64_t bytes, Duration time);
  // Probes, beside nothing. Errors: those of RingSender::Probe
  Result<LatencyRecorder> RunProbes(uint64_t count);

  static constexpr uint64_t kBytesMax = 16 * kMiB;

 private:
  RingBench();
  Status SendOne(uint64_t bytes, LatencyRecorder* latencies);
  void CopyOne(uint64_t i, uint64_t bytes, LatencyRecorder* latencies);

  pid_t child_ = -1;
  std::unique_ptr<fabric::RingSender> sender_;
  std::vector<std::byte> from_, into_;
  uint64_t sent_ = 0;
};

// One kind of transfer.
struct PaceCase {
  std::string name;  // as in gates
  fabric::Plane plane = fabric::Plane::kUb;
  fabric::Endpoint initiator, target;
  fabric::Access access = fabric::Access::kRead;
  uint32_t streams = 1;  // that share the path
};
// Every plane of a machine of at least two nodes of two NPUs and a CPU.
std::vector<PaceCase> AllPaceCases();

struct PaceResult {
  double model_gb_per_s = 0;  // of the slowed-down link
  double gb_per_s = 0;        // achieved by SDMA, at the pace of the model
  Duration model_latency{0};  // of 512 bytes
  Duration latency{0};        // median
  uint64_t copies = 0;        // that the latency is of
  double bandwidth_deviation_percent() const;
  double latency_deviation_percent() const;
};

// Moves bytes for about `time`, then 512 bytes again and again for as long.
// Errors: those of EmulatedTopology::Route and NpuDevice
Result<PaceResult> MeasurePace(const fabric::EmulatedTopology& topology, const PaceCase& one,
                               Duration time);

}  // namespace ems::bench
