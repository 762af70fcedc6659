#include "bench/hot/hot_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/trace_payload.h"
#include "bench/hot/hot_cluster.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr const char* kKey = "the system prompt that all engines read";
constexpr uint64_t kBlock = 7;
constexpr uint64_t kDramBytes = 256 * kMiB;
constexpr Duration kReadTimeout = std::chrono::seconds(30);
constexpr Duration kHotPatience = std::chrono::seconds(30);
constexpr Duration kLook = std::chrono::milliseconds(100);
// Once the first copy is read, the others are being sent.
constexpr Duration kSettle = std::chrono::seconds(3);

// Reads the object again and again until it is told to stop. Threading: one thread; Snapshot any.
class Reader final {
 public:
  Reader(std::unique_ptr<Client> client, uint64_t value_bytes)
      : client_(std::move(client)), value_(value_bytes) {}
  void Start() {
    thread_ = Thread("bench-reader", [this] {
      while (!stop_.IsSet() && status_.ok()) status_ = Read();
    });
  }
  // What went wrong.
  Status Stop() {
    stop_.Set();
    thread_.Join();
    return status_;
  }
  // Counts from now on.
  void Measure() { measures_.store(true, std::memory_order_release); }
  const Client& client() const { return *client_; }
  uint64_t reads() const { return reads_; }
  uint64_t wrong_bytes() const { return wrong_bytes_; }
  const LatencyRecorder& calls() const { return calls_; }

 private:
  Status Read() {
    const bool measures = measures_.load(std::memory_order_acquire);
    Spoil(value_, value_.size());
    const TimePoint begin = Clock::System().Now();
    EMS_ASSIGN_OR_RETURN(const uint64_t bytes,
                         client_->Get(kKey, MutableBytes(value_), {.timeout = kReadTimeout}));
    if (bytes != value_.size())
      return Error(StatusCode::kDataLoss, "{} of {} bytes", bytes, value_.size());
    if (!measures) return OkStatus();
    calls_.Record(Clock::System().Now() - begin);
    ++reads_;
    wrong_bytes_ += CountWrongBytes(kBlock, value_);
    return OkStatus();
  }

  const std::unique_ptr<Client> client_;
  std::vector<std::byte> value_;
  std::atomic<bool> measures_{false};
  uint64_t reads_ = 0, wrong_bytes_ = 0;
  LatencyRecorder calls_;
  StopFlag stop_;
  Status status_;
  Thread thread_;  // ends first
};

using Readers = std::vector<std::unique_ptr<Reader>>;

Status Sleep(Duration time) {
  StopFlag never;
  const Deadline until = Deadline::After(time);
  while (!until.Passed()) {
    if (Interrupted()) return Interruption();
    never.WaitFor(std::min(until.Remaining(), kLook));
  }
  return OkStatus();
}

Status WaitForCopies(const Readers& readers) {
  const Deadline patience = Deadline::After(kHotPatience);
  const auto all_use_copies = [&] {
    return std::ranges::all_of(
        readers, [](const auto& reader) { return reader->client().stats().hot_hits > 0; });
  };
  while (!all_use_copies()) {
    if (patience.Passed())
      return Error(StatusCode::kDeadlineExceeded, "not all readers were told of a copy in time");
    EMS_RETURN_IF_ERROR(Sleep(kLook));
  }
  return Sleep(kSettle);
}

Result<HotSide> Measure(const HotSettings& settings, uint32_t copies) {
  EMS_ASSIGN_OR_RETURN(const auto cluster,
                       HotCluster::Start({.programs = settings.programs,
                                          .servers = settings.servers,
                                          .nic_bytes_per_s = settings.nic_bytes_per_s,
                                          .dram_bytes = kDramBytes,
                                          .settings = {fmt::format("hot.copies={}", copies),
                                                       fmt::format("hot.nic_bytes_per_s={:.0f}",
                                                                   settings.nic_bytes_per_s)}}));
  Readers readers;
  for (uint32_t i = 0; i < settings.readers; ++i) {
    EMS_ASSIGN_OR_RETURN(auto client, cluster->Connect());
    readers.push_back(std::make_unique<Reader>(std::move(client), settings.value_bytes));
  }
  std::vector<std::byte> value(settings.value_bytes);
  FillBlock(kBlock, value);
  EMS_ASSIGN_OR_RETURN(const auto writer, cluster->Connect());
  EMS_RETURN_IF_ERROR(writer->Put(kKey, ConstBytes(value), {.timeout = kReadTimeout}));
  for (const auto& reader : readers) reader->Start();
  Status status = copies > 0 ? WaitForCopies(readers) : Sleep(kSettle);
  const auto sent_before = cluster->SentBytes();
  uint64_t hits_before = 0, misses_before = 0;
  for (const auto& reader : readers) {
    hits_before += reader->client().stats().hot_hits;
    misses_before += reader->client().stats().hot_misses;
    reader->Measure();
  }
  const TimePoint begin = Clock::System().Now();
  if (status.ok())
    status = Sleep(
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings.seconds)));
  const auto sent_after = cluster->SentBytes();
  HotSide side;
  side.copies = copies;
  for (const auto& reader : readers) {
    const Status read = reader->Stop();
    if (status.ok()) status = read;
  }
  side.seconds = SecondsSince(begin);
  EMS_RETURN_IF_ERROR(status);
  for (const auto& reader : readers) {
    side.reads += reader->reads();
    side.wrong_bytes += reader->wrong_bytes();
    side.copy_reads += reader->client().stats().hot_hits;
    side.copy_misses += reader->client().stats().hot_misses;
    side.calls.Merge(reader->calls());
  }
  side.copy_reads -= hits_before;
  side.copy_misses -= misses_before;
  side.gbps = static_cast<double>(side.reads * settings.value_bytes) / side.seconds / 1e9;
  for (size_t i = 0; i < sent_after.size(); ++i)
    side.server_gbps.push_back(static_cast<double>(sent_after[i] - sent_before[i]) /
                               settings.seconds / 1e9);
  return side;
}

}  // namespace

Result<HotResult> RunHotBench(const HotSettings& settings) {
  HotResult result;
  EMS_ASSIGN_OR_RETURN(result.off, Measure(settings, 0));
  EMS_ASSIGN_OR_RETURN(result.on, Measure(settings, settings.copies));
  return result;
}

}  // namespace ems::bench
