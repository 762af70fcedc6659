#include "bench/ssd/ssd_server_bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/scratch_folder.h"
#include "bench/harness/trace_payload.h"
#include "bench/ssd/page_cache.h"
#include "bench/ssd/ssd_rig.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

constexpr uint64_t kBatchBytes = 4 * kMiB;
constexpr uint64_t kBatchObjectsMax = 1024;
// More is read than fits there, so that it comes from the disk.
constexpr uint64_t kRestartDramBytes = 256 * kMiB;
constexpr uint64_t kPutDramBytes = kGiB;
constexpr uint64_t kWarmUpPuts = 50;
constexpr uint64_t kHotKeys = 20;  // what is overwritten again and again
constexpr Duration kCallTimeout = std::chrono::seconds(30);
// A disk that is slow for a moment answers with misses for a second.
constexpr int kReadAttempts = 3;
constexpr Duration kReadPause = std::chrono::milliseconds(1500);

// Objects 0, 1, … of one size, some at a time; the bytes of each are a function of its number.
class Batches final {
 public:
  Batches(uint64_t objects, uint64_t value_bytes)
      : objects_(objects),
        value_bytes_(value_bytes),
        each_(std::clamp<uint64_t>(kBatchBytes / value_bytes, 1, kBatchObjectsMax)),
        memory_(each_ * value_bytes) {}

  // Stores all, each answered when it is on the disk.
  Status PutAll(Client* client) {
    for (uint64_t first = 0; first < objects_; first += each_) {
      if (Interrupted()) return Interruption();
      MakeKeys(first);
      std::vector<PutItem> items;
      for (size_t i = 0; i < keys_.size(); ++i) {
        FillBlock(first + i, Slot(i));
        items.push_back({.key = keys_[i], .value = ConstBytes(Slot(i))});
      }
      for (const Status& status :
           client->MultiPut(items, {.durability = Durability::kSsd, .timeout = kCallTimeout})) {
        EMS_RETURN_IF_ERROR(Prefixed(status, "a Put with durability ssd"));
      }
    }
    return OkStatus();
  }

  // Reads all; adds to what is missing and wrong.
  Status GetAll(Client* client, ServerRestart* found) {
    for (uint64_t first = 0; first < objects_; first += each_) {
      if (Interrupted()) return Interruption();
      MakeKeys(first);
      std::vector<size_t> wanted(keys_.size());
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = i;
      for (int attempt = 0; attempt < kReadAttempts && !wanted.empty(); ++attempt) {
        if (attempt > 0) StopFlag().WaitFor(kReadPause);
        wanted = GetSome(client, first, wanted, found);
      }
      found->missing += wanted.size();
    }
    return OkStatus();
  }

 private:
  // Those of `wanted` that were not there.
  std::vector<size_t> GetSome(Client* client, uint64_t first, const std::vector<size_t>& wanted,
                              ServerRestart* found) {
    std::vector<GetItem> items;
    items.reserve(wanted.size());
    for (const size_t i : wanted)
      items.push_back({.key = keys_[i], .into = MutableBuffers(Slot(i))});
    const auto results = client->MultiGet(items, {.timeout = kCallTimeout});
    std::vector<size_t> absent;
    for (size_t at = 0; at < wanted.size(); ++at) {
      if (!results[at].ok()) {
        absent.push_back(wanted[at]);
      } else if (*results[at] != value_bytes_ ||
                 CountWrongBytes(first + wanted[at], Slot(wanted[at])) > 0) {
        ++found->wrong;
      }
    }
    return absent;
  }

  void MakeKeys(uint64_t first) {
    keys_.clear();
    for (uint64_t i = first; i < std::min(objects_, first + each_); ++i)
      keys_.push_back(fmt::format("object-{}", i));
  }
  MutableBytes Slot(size_t i) { return std::span(memory_).subspan(i * value_bytes_, value_bytes_); }

  const uint64_t objects_, value_bytes_, each_;
  std::vector<std::byte> memory_;
  std::vector<std::string> keys_;
};

Status MeasureSyncs(const std::string& folder, uint64_t count, LatencyRecorder* times) {
  const std::string path = folder + "/syncs";
  const fabric::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  constexpr std::array<std::byte, 128> kRow{};
  for (uint64_t i = 0; i < count; ++i) {
    const TimePoint begin = Clock::System().Now();
    if (!fd.valid() || ::pwrite(fd.get(), kRow.data(), kRow.size(), 0) != ssize_t{kRow.size()} ||
        ::fdatasync(fd.get()) != 0)
      return Error(StatusCode::kUnavailable, "{}: {}", path, fabric::ErrnoText(errno));
    times->Record(Clock::System().Now() - begin);
  }
  return OkStatus();
}

double P99Ratio(const LatencyRecorder& with_tier, const LatencyRecorder& without) {
  return without.count() == 0 ? std::nan("") : with_tier.p99_ms() / without.p99_ms();
}

}  // namespace

double TierPuts::fresh_p99_ratio() const { return P99Ratio(with_tier.fresh, without.fresh); }
double TierPuts::overwrite_p99_ratio() const {
  return P99Ratio(with_tier.overwrite, without.overwrite);
}

double TierPuts::overwrite_p99_vs_limit() const {
  const double limit = without.overwrite.p99_ms() + disk_syncs.p99_ms();
  return disk_syncs.count() == 0 ? std::nan("") : with_tier.overwrite.p99_ms() / limit;
}

double TierPuts::again_p99_ratio() const { return P99Ratio(with_tier.again, without.again); }

// A half more: regions are reclaimed before the last one is full.
uint64_t SsdBytesOfRestart(uint64_t objects, uint64_t value_bytes) {
  return SizeForObjects(objects, value_bytes).capacity_bytes / 2 * 3;
}

// New keys, overwrites of them and of a few, and as much again.
uint64_t SsdBytesOfPuts(uint64_t count, uint64_t value_bytes) {
  return SizeForObjects(4 * count, value_bytes).capacity_bytes;
}

Result<ServerRestart> SsdServerBench::Restart(std::string name, uint64_t objects,
                                              uint64_t value_bytes) {
  EMS_ASSIGN_OR_RETURN(const auto folder, ScratchFolder::Make(folder_));
  ServerRestart restart{.name = std::move(name), .objects = objects, .value_bytes = value_bytes};
  EMS_ASSIGN_OR_RETURN(const auto server,
                       BenchServer::Start({.folder = folder->path(),
                                           .programs = programs_,
                                           .dram_bytes = kRestartDramBytes,
                                           .ssd_bytes = SsdBytesOfRestart(objects, value_bytes)}));
  Batches batches(objects, value_bytes);
  {
    EMS_ASSIGN_OR_RETURN(const auto client, server->Connect());
    EMS_RETURN_IF_ERROR(batches.PutAll(client.get()));
  }
  server->Kill();
  restart.dropped = DropPageCache(folder->path(), drop_whole_page_cache_);
  EMS_ASSIGN_OR_RETURN(restart.ready_seconds, server->StartAgain());
  EMS_ASSIGN_OR_RETURN(const auto client, server->Connect());
  const TimePoint begin = Clock::System().Now();
  EMS_RETURN_IF_ERROR(batches.GetAll(client.get(), &restart));
  restart.read_seconds = SecondsSince(begin);
  say_(
      fmt::format("{}: ready after {:.3f} s, page cache dropped: {}; {} objects of {} read in "
                  "{:.1f} s, {} missing, {} wrong",
                  restart.name, restart.ready_seconds, restart.dropped, objects,
                  FormatBytes(value_bytes), restart.read_seconds, restart.missing, restart.wrong));
  return restart;
}

Result<TierPuts> SsdServerBench::Puts(uint64_t count, uint64_t value_bytes) {
  EMS_ASSIGN_OR_RETURN(const auto with_folder, ScratchFolder::Make(folder_));
  EMS_ASSIGN_OR_RETURN(const auto without_folder, ScratchFolder::Make(folder_));
  BenchServerOptions options{.folder = with_folder->path(),
                             .programs = programs_,
                             .dram_bytes = kPutDramBytes,
                             .ssd_bytes = SsdBytesOfPuts(count, value_bytes)};
  EMS_ASSIGN_OR_RETURN(const auto with_server, BenchServer::Start(options));
  options.folder = without_folder->path();
  options.ssd_bytes = 0;
  EMS_ASSIGN_OR_RETURN(const auto without_server, BenchServer::Start(options));
  EMS_ASSIGN_OR_RETURN(const auto with_client, with_server->Connect());
  EMS_ASSIGN_OR_RETURN(const auto without_client, without_server->Connect());
  TierPuts puts{.value_bytes = value_bytes, .with_tier = {}, .without = {}, .disk_syncs = {}};
  std::vector<std::byte> value(value_bytes);
  const uint64_t all = kWarmUpPuts + count;
  const auto put_to = [&](Client* client, uint64_t key, const PutOptions& put) {
    return client->Put(fmt::format("object-{}", key), ConstBytes(value), put);
  };
  // `keys` of them in turn; contents are numbered from `contents` on.
  const auto measure = [&](uint64_t keys, uint64_t contents,
                           LatencyRecorder PutTimes::*kind) -> Status {
    for (uint64_t i = 0; i < all; ++i) {
      if (Interrupted()) return Interruption();
      FillBlock(contents + i, value);
      for (const bool tier : {i % 2 == 0, i % 2 != 0}) {  // who goes first changes
        Client* const client = tier ? with_client.get() : without_client.get();
        PutTimes* const times = tier ? &puts.with_tier : &puts.without;
        const TimePoint begin = Clock::System().Now();
        EMS_RETURN_IF_ERROR(
            put_to(client, i % keys, {.overwrite = contents > 0, .timeout = kCallTimeout}));
        if (i >= kWarmUpPuts) (times->*kind).Record(Clock::System().Now() - begin);
      }
    }
    return OkStatus();
  };
  EMS_RETURN_IF_ERROR(measure(all, 0, &PutTimes::fresh));
  for (uint64_t i = 0; i < all; ++i) {  // what the tier had no time for goes there now
    if (Interrupted()) return Interruption();
    FillBlock(i, value);
    EMS_RETURN_IF_ERROR(
        put_to(with_client.get(), i, {.durability = Durability::kSsd, .timeout = kCallTimeout}));
  }
  EMS_RETURN_IF_ERROR(measure(all, all, &PutTimes::overwrite));
  EMS_RETURN_IF_ERROR(measure(kHotKeys, 2 * all, &PutTimes::again));
  EMS_RETURN_IF_ERROR(MeasureSyncs(with_folder->path(), count, &puts.disk_syncs));
  return puts;
}

}  // namespace ems::bench
