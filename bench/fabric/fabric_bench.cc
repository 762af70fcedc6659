#include "bench/fabric/fabric_bench.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "bench/harness/figures.h"
#include "fabric/emulated/emulated_fabric.h"
#include "fabric/emulated/npu_device.h"
#include "fabric/emulated/ring_pair.h"

namespace ems::bench {
namespace {

using fabric::Access;
using fabric::Endpoint;
using fabric::HbmAddress;
using fabric::Plane;

constexpr Duration kTimeout = std::chrono::seconds(30);
// Larger than caches, so that memcpy and the ring see the same memory.
constexpr uint64_t kWorkingSet = 64 * kMiB;
constexpr int kRounds = 5;
constexpr uint64_t kPaceBuffer = 8 * kMiB;

std::vector<std::byte> TouchedBytes(uint64_t bytes) {
  return std::vector<std::byte>(bytes, std::byte{7});
}

// Where the i-th message of a size lies.
uint64_t OffsetOf(uint64_t i, uint64_t bytes) {
  const uint64_t step = RoundUp(bytes, 4 * kKiB);
  return i % (kWorkingSet / step) * step;
}

// The receiving process: messages 1, 2, … until the sender goes.
int ReceiveAll(fabric::Fd socket, const fabric::RingOptions& options) {
  auto receiver = fabric::RingReceiver::Offer(std::move(socket), options);
  if (!receiver.ok()) return 1;
  std::vector<std::byte> memory = TouchedBytes(kWorkingSet);
  uint64_t bytes = RingBench::kBytesMax;
  for (uint64_t id = 1;; ++id) {
    // Sizes are not told: the place follows the last one.
    const uint64_t at = std::min(OffsetOf(id, bytes), kWorkingSet - RingBench::kBytesMax);
    const auto got = (*receiver)->Receive(
        id, MutableBytes(memory).subspan(at, RingBench::kBytesMax), Deadline::kMost);
    if (!got.ok()) return got.status().code() == StatusCode::kUnavailable ? 0 : 1;
    bytes = std::max<uint64_t>(1, *got);
  }
}

double DeviationPercent(double is, double should) {
  return should <= 0 ? std::nan("") : 100 * std::abs(is / should - 1);
}

}  // namespace

RingBench::RingBench() : from_(TouchedBytes(kWorkingSet)), into_(TouchedBytes(kWorkingSet)) {}

RingBench::~RingBench() {
  sender_.reset();  // the child's last receive ends
  if (child_ > 0) (void)::waitpid(child_, nullptr, 0);
}

Status RingBench::SendOne(uint64_t bytes, LatencyRecorder* latencies) {
  ++sent_;
  const TimePoint begin = Clock::System().Now();
  EMS_RETURN_IF_ERROR(
      sender_->Send(sent_, ConstBytes(from_).subspan(OffsetOf(sent_, bytes), bytes), kTimeout));
  latencies->Record(Clock::System().Now() - begin);
  return OkStatus();
}

void RingBench::CopyOne(uint64_t i, uint64_t bytes, LatencyRecorder* latencies) {
  const uint64_t at = OffsetOf(i, bytes);
  const TimePoint begin = Clock::System().Now();
  std::memcpy(into_.data() + at, from_.data() + at, bytes);
  latencies->Record(Clock::System().Now() - begin);
}

Result<std::unique_ptr<RingBench>> RingBench::Start(const fabric::RingOptions& options) {
  EMS_ASSIGN_OR_RETURN(fabric::SocketPair sockets, fabric::MakeSocketPair());
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Error(StatusCode::kInternal, "fork: {}", fabric::ErrnoText(errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sockets.other.Close();
    ::_exit(::getppid() == parent ? ReceiveAll(std::move(sockets.one), options) : 1);
  }
  sockets.one.Close();
  std::unique_ptr<RingBench> bench(new RingBench());  // NOLINT: private constructor
  bench->child_ = child;
  EMS_ASSIGN_OR_RETURN(
      bench->sender_, fabric::RingSender::Accept(std::move(sockets.other), kTimeout, options.spin));
  return bench;
}

Result<RingResult> RingBench::Run(uint64_t bytes, Duration time) {
  RingResult result;
  result.bytes = bytes;
  std::vector<double> ratios;
  Duration sending{0}, copying{0};
  const Duration turn = time / (2 * kRounds);
  LatencyRecorder warm_up;
  for (int i = 0; i < 10; ++i) EMS_RETURN_IF_ERROR(SendOne(bytes, &warm_up));
  for (int round = 0; round < kRounds; ++round) {
    uint64_t copies = 0, sends = 0;
    TimePoint begin = Clock::System().Now();
    while (copies == 0 || Clock::System().Now() - begin < turn)
      CopyOne(copies++, bytes, &result.copy);
    const Duration copied = Clock::System().Now() - begin;
    begin = Clock::System().Now();
    while (sends == 0 || Clock::System().Now() - begin < turn) {
      EMS_RETURN_IF_ERROR(SendOne(bytes, &result.send));
      ++sends;
    }
    const Duration sent = Clock::System().Now() - begin;
    ratios.push_back(GbPerSecond(sends * bytes, sent) / GbPerSecond(copies * bytes, copied));
    sending += sent;
    copying += copied;
  }
  result.send_gb_per_s = GbPerSecond(result.send.count() * bytes, sending);
  result.copy_gb_per_s = GbPerSecond(result.copy.count() * bytes, copying);
  result.ratio = Median(std::move(ratios));
  return result;
}

Result<LatencyRecorder> RingBench::RunProbes(uint64_t count) {
  LatencyRecorder latencies;
  for (uint64_t i = 0; i < count; ++i) {
    EMS_ASSIGN_OR_RETURN(const fabric::RingProbeAnswer answer, sender_->Probe(kTimeout));
    latencies.Record(answer.round_trip);
  }
  return latencies;
}

std::vector<PaceCase> AllPaceCases() {
  const Endpoint die = Endpoint::Die(0, 0, 0);
  const Endpoint near_die = Endpoint::Die(0, 1, 0), far_die = Endpoint::Die(1, 0, 0);
  const Endpoint near_cpu = Endpoint::Cpu(0, 0), far_cpu = Endpoint::Cpu(1, 0);
  constexpr Access kRead = Access::kRead, kWrite = Access::kWrite;
  return {{"ub_npu_cpu_read_inter", Plane::kUb, die, far_cpu, kRead},
          {"ub_npu_cpu_read_intra", Plane::kUb, die, near_cpu, kRead},
          {"ub_npu_cpu_write_inter", Plane::kUb, die, far_cpu, kWrite},
          {"ub_npu_cpu_write_intra", Plane::kUb, die, near_cpu, kWrite},
          {"ub_npu_npu_read_inter", Plane::kUb, die, far_die, kRead},
          {"ub_npu_npu_read_intra", Plane::kUb, die, near_die, kRead},
          {"ub_npu_npu_write_inter", Plane::kUb, die, far_die, kWrite},
          {"ub_npu_npu_write_intra", Plane::kUb, die, near_die, kWrite},
          {"ub_shared_by_4", Plane::kUb, die, far_cpu, kRead, 4},
          {"rdma_write_inter", Plane::kRdma, die, far_die, kWrite},
          {"vpc_read_inter", Plane::kVpc, die, far_cpu, kRead},
          {"evs_read", Plane::kEvs, die, Endpoint::Evs(0), kRead},
          {"obs_read", Plane::kObs, die, Endpoint::Obs(), kRead}};
}

double PaceResult::bandwidth_deviation_percent() const {
  return DeviationPercent(gb_per_s, model_gb_per_s);
}

double PaceResult::latency_deviation_percent() const {
  return DeviationPercent(static_cast<double>(latency.count()),
                          static_cast<double>(model_latency.count()));
}

namespace {

// An NPU, what it copies from and to, and its SDMA queues.
struct PaceRig {
  std::unique_ptr<fabric::NpuDevice> device, peer;
  std::vector<std::byte> host = TouchedBytes(kPaceBuffer);
  std::vector<std::unique_ptr<fabric::NpuStream>> streams;

  Status Copy(const PaceCase& one, fabric::NpuStream* stream, uint64_t bytes) {
    const bool read = one.access == Access::kRead;
    if (one.target.kind == Endpoint::Kind::kDie)
      return stream->CopyAcross(peer.get(), HbmAddress{0}, HbmAddress{0}, bytes);
    if (read) return stream->CopyIn(HbmAddress{0}, ConstBytes(host).first(bytes));
    return stream->CopyOut(MutableBytes(host).first(bytes), HbmAddress{0});
  }
};

Result<Duration> TimeOfBulk(PaceRig* rig, const PaceCase& one, uint64_t bytes_each) {
  const TimePoint begin = Clock::System().Now();
  std::vector<fabric::NpuEventPtr> events;
  for (uint64_t left = bytes_each; left > 0;) {
    const uint64_t part = std::min(left, kPaceBuffer);
    for (auto& stream : rig->streams) EMS_RETURN_IF_ERROR(rig->Copy(one, stream.get(), part));
    left -= part;
  }
  for (auto& stream : rig->streams) events.push_back(stream->Record());
  for (auto& event : events) {
    if (!event->Wait(10 * kTimeout))
      return Error(StatusCode::kDeadlineExceeded, "{}: SDMA did not end", one.name);
  }
  return Clock::System().Now() - begin;
}

}  // namespace

Result<PaceResult> MeasurePace(const fabric::EmulatedTopology& topology, const PaceCase& one,
                               Duration time) {
  fabric::EmulatedFabric fabric(topology);
  EMS_ASSIGN_OR_RETURN(const fabric::EmulatedPath* path,
                       fabric.Path(one.plane, one.initiator, one.target, one.access));
  PaceRig rig;
  EMS_ASSIGN_OR_RETURN(rig.device, fabric::NpuDevice::Create({.hbm_bytes = kPaceBuffer}));
  EMS_ASSIGN_OR_RETURN(rig.peer, fabric::NpuDevice::Create({.hbm_bytes = kPaceBuffer}));
  for (uint32_t i = 0; i < one.streams; ++i)
    rig.streams.push_back(std::make_unique<fabric::NpuStream>(rig.device.get(), path));
  EMS_ASSIGN_OR_RETURN(const Duration warm_up, TimeOfBulk(&rig, one, 4 * kKiB));
  (void)warm_up;

  const auto each = std::max<uint64_t>(
      64 * kKiB, static_cast<uint64_t>(static_cast<double>(path->bytes_per_s()) * Seconds(time)) /
                     one.streams);
  EMS_ASSIGN_OR_RETURN(const Duration took, TimeOfBulk(&rig, one, each));
  PaceResult result;
  result.model_gb_per_s = static_cast<double>(path->bytes_per_s()) / 1e9;
  result.gb_per_s = GbPerSecond(each * one.streams, took - path->base_latency());

  result.model_latency = path->TimeOf(fabric::kLatencyBytes);
  const auto wanted = static_cast<uint64_t>(time / std::max(result.model_latency, Duration(1)));
  LatencyRecorder latencies;
  for (uint64_t i = 0; i < std::clamp<uint64_t>(wanted, 3, 500); ++i) {
    const TimePoint begin = Clock::System().Now();
    EMS_RETURN_IF_ERROR(rig.Copy(one, rig.streams.front().get(), fabric::kLatencyBytes));
    const fabric::NpuEventPtr event = rig.streams.front()->Record();
    // Looked at: what waking this thread takes is not the link's. What takes long is slept for.
    if (result.model_latency > std::chrono::milliseconds(2))
      (void)event->Wait(result.model_latency - std::chrono::milliseconds(1));
    while (!event->done()) {
    }
    latencies.Record(Clock::System().Now() - begin);
  }
  result.latency = Duration(static_cast<int64_t>(latencies.p50_ms() * 1e6));
  result.copies = latencies.count();
  return result;
}

}  // namespace ems::bench
