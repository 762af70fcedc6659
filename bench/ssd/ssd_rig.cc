#include "bench/ssd/ssd_rig.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "common/guarded.h"
#include "common/object_key.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr ViewVersion kView{1, 1};
constexpr Duration kRetryAfter = std::chrono::milliseconds(1);
constexpr Duration kLookEvery = std::chrono::milliseconds(50);
constexpr uint64_t kRegionBytesMin = 8 * kMiB, kRegionBytesMax = 128 * kMiB;
constexpr uint64_t kRegionsLeast = 4;
// The tier's own cut (docs/SSD_TIER.md): a sixteenth for the index.
constexpr uint64_t kIndexPart = 16, kIndexBytesMin = 16 * kMiB;
// Longer than any key here.
constexpr uint64_t kKeyBytes = 32;

TimePoint Now() { return Clock::System().Now(); }

// Bytes of a ring's value. Threading: one thread at a time.
class RingObject final : public ssd::DirtyObject {
 public:
  RingObject(std::string key, const ValueRing::Value* value)
      : key_(std::move(key)), value_(value) {}
  bool current() const override { return true; }
  std::string_view key() const override { return key_; }
  ConstBytes value() const override { return value_->bytes; }
  uint64_t checksum() const override { return value_->checksum; }
  std::span<const uint64_t> piece_sums() const override { return value_->piece_sums; }
  uint16_t slot() const override { return 0; }

 private:
  const std::string key_;
  const ValueRing::Value* const value_;
};

// Memory for reads under way. Threading: one thread, but for Done.
class ReadBuffers final {
 public:
  struct Buffer {
    ssd::AlignedBuffer memory;
    std::vector<uint64_t> sums;
    ssd::ReadTarget target;
    TimePoint begun, ended;
    bool used = false;
    ssd::ReadOutcome outcome = ssd::ReadOutcome::kOk;
  };
  ReadBuffers(uint32_t depth, uint64_t value_bytes) : buffers_(depth) {
    auto idle = idle_.Lock();
    for (Buffer& buffer : buffers_) {
      buffer.sums.resize(PieceCount(value_bytes));
      buffer.target = {buffer.memory.Take(value_bytes).first(value_bytes), buffer.sums};
      idle->push_back(&buffer);
    }
  }
  // Waits until `wanted` are idle and takes one, whose read counts from then on.
  Buffer* Take(size_t wanted, LatencyRecorder* latencies) {
    Buffer* buffer = nullptr;
    {
      auto idle = idle_.Lock();
      idle.Wait(wakeup_, [&](const std::vector<Buffer*>& all) { return all.size() >= wanted; });
      buffer = idle->back();
      idle->pop_back();
    }
    if (buffer->used) latencies->Record(buffer->ended - buffer->begun);
    if (buffer->outcome != ssd::ReadOutcome::kOk) ++bad_;
    buffer->used = false;
    buffer->outcome = ssd::ReadOutcome::kOk;
    return buffer;
  }
  void Return(Buffer* buffer) {
    auto idle = idle_.Lock();
    idle->push_back(buffer);
  }
  // Any thread.
  void Done(Buffer* buffer, ssd::ReadOutcome outcome) {
    buffer->ended = Now();
    buffer->used = true;
    buffer->outcome = outcome;
    auto idle = idle_.Lock();
    idle->push_back(buffer);
    wakeup_.notify_one();  // under the lock: a waiting thread may destroy this right after
  }
  uint64_t bad() const { return bad_; }

 private:
  std::vector<Buffer> buffers_;
  Guarded<std::vector<Buffer*>> idle_;
  std::condition_variable wakeup_;
  uint64_t bad_ = 0;
};

}  // namespace

ValueRing::ValueRing(uint64_t value_bytes) : value_bytes_(value_bytes) {
  const uint64_t step = RoundUp(value_bytes, ssd::kBlockBytes);
  const uint64_t count = std::max<uint64_t>(1, kRingBytes / step);
  const MutableBytes all = memory_.Take(step * count);
  std::mt19937_64 random(value_bytes);
  for (uint64_t at = 0; at < all.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(all.data() + at, &word, sizeof(word));
  }
  values_.resize(count);
  PieceHasher hasher;
  for (uint64_t i = 0; i < count; ++i) {
    Value& value = values_[i];
    value.bytes = all.subspan(i * step, value_bytes);
    value.piece_sums.resize(PieceCount(value_bytes));
    hasher.Start(value.piece_sums);
    hasher.Update(value.bytes);
    value.checksum = hasher.Finish();
  }
}

std::unique_ptr<ssd::DirtyObject> ValueRing::Object(uint64_t number) const {
  return std::make_unique<RingObject>(KeyOf(number), &values_[number % values_.size()]);
}

std::string ValueRing::KeyOf(uint64_t number) { return fmt::format("object-{:012}", number); }

ssd::ObjectName ValueRing::NameOf(uint64_t number) { return {kNs, KeyHash(KeyOf(number))}; }

uint64_t RegionBytesFor(uint64_t bytes) {
  return std::clamp(RoundUp(bytes / 32, kMiB), kRegionBytesMin, kRegionBytesMax);
}

TierSize SizeForObjects(uint64_t objects, uint64_t value_bytes) {
  const uint64_t region_bytes = RegionBytesFor(objects * value_bytes);
  const uint64_t record_bytes = ssd::RecordShape(value_bytes, kKeyBytes).record_bytes();
  // A group of packed records ends with a block that it does not fill: a block a group of 256 KiB.
  const uint64_t taken = record_bytes + (value_bytes < ssd::kAlignedFrom ? record_bytes / 32 : 0);
  const uint64_t each =
      std::max<uint64_t>(1, (region_bytes - 8 * ssd::kBlockBytes) / std::max<uint64_t>(1, taken));
  TierSize size = SizeForRegions((objects / each + 3) * region_bytes, region_bytes);
  // Beyond the largest index more capacity makes no more room for rows.
  const uint64_t largest = ssd::IndexBytesFor(UINT64_MAX);
  for (uint64_t index = 0; index < largest;) {
    index = ssd::IndexBytesFor(size.capacity_bytes);
    if (ssd::RegionIndex::RowsMax(index) >= objects + objects / 16) break;
    size.capacity_bytes += size.capacity_bytes / 16;
  }
  return size;
}

TierSize SizeForRegions(uint64_t bytes, uint64_t region_bytes) {
  TierSize size;
  size.region_bytes = region_bytes;
  size.regions = std::max(bytes / region_bytes, kRegionsLeast);
  const uint64_t all = size.regions * region_bytes;
  size.capacity_bytes =
      kMiB + std::max(all + kIndexBytesMin, all / (kIndexPart - 1) * kIndexPart + kIndexPart);
  return size;
}

Result<std::unique_ptr<BenchTier>> BenchTier::Open(const std::string& folder,
                                                   const TierSize& size) {
  ssd::TierOptions options;
  options.folder = folder;
  options.capacity_bytes = size.capacity_bytes;
  options.region_bytes = size.region_bytes;
  options.lineage = 1;  // or nothing outlives a restart
  const TimePoint begun = Now();
  std::unique_ptr<BenchTier> tier(new BenchTier(ssd::SsdTier::Open(options)));
  tier->open_seconds_ = SecondsSince(begun);
  if (tier->tier_->state() != ssd::TierState::kOk)
    return Error(StatusCode::kUnavailable, "the tier in {} is {}: {}", folder,
                 ssd::TierStateName(tier->tier_->state()), tier->tier_->reason());
  tier->tier_->SetNamespaces({{kNs, 0, 0, false}});
  tier->tier_->SetOwnedSlots({kView, std::bitset<kSlotCount>().set()});
  return tier;
}

// A millisecond, so that the waiting thread takes no CPU from the working ones.
Status BenchTier::Pause() {
  if (Interrupted()) return Error(StatusCode::kUnavailable, "interrupted");
  if (tier_->state() != ssd::TierState::kOk)
    return Error(StatusCode::kUnavailable, "the tier is {}: {}", ssd::TierStateName(tier_->state()),
                 tier_->reason());
  StopFlag never;
  never.WaitFor(kRetryAfter);
  return OkStatus();
}

Status BenchTier::Write(const ValueRing& ring, uint64_t first, uint64_t count) {
  const uint64_t before = stats().writer.written_objects;
  for (uint64_t i = first; i < first + count; ++i) {
    while (!tier_->HasRoomFor(ring.value_bytes())) EMS_RETURN_IF_ERROR(Pause());
    (void)tier_->Put(ValueRing::NameOf(i), ring.Object(i), false, nullptr);
  }
  while (stats().writer.dirty_bytes > 0) EMS_RETURN_IF_ERROR(Pause());
  const ssd::WriterStats after = stats().writer;
  if (after.written_objects - before == count) return OkStatus();
  return Error(StatusCode::kUnavailable,
               "{} of {} objects of {} were written: {} not taken, {} failed, {} superseded",
               after.written_objects - before, count, FormatBytes(ring.value_bytes()),
               after.shed_objects, after.failed_objects, after.superseded_objects);
}

Status BenchTier::Read(const std::vector<uint64_t>& numbers, uint64_t value_bytes, uint32_t depth,
                       LatencyRecorder* latencies) {
  ReadBuffers buffers(depth, value_bytes);
  Status failed;
  for (const uint64_t number : numbers) {
    const auto stored = tier_->Find(ValueRing::NameOf(number), false);
    if (!stored)
      failed = Error(StatusCode::kUnavailable, "{} is not in the tier", ValueRing::KeyOf(number));
    ReadBuffers::Buffer* buffer = buffers.Take(1, latencies);
    buffer->begun = Now();
    // Refused: the disk is being left alone for a moment. That is part of how long it takes.
    while (failed.ok() &&
           !tier_->Read(
               ValueRing::NameOf(number), ValueRing::KeyOf(number), *stored, buffer->target,
               [&buffers, buffer](ssd::ReadOutcome outcome) { buffers.Done(buffer, outcome); })) {
      failed = Pause();
    }
    if (!failed.ok()) {
      buffers.Return(buffer);
      break;
    }
    if (Interrupted()) break;
  }
  for (uint32_t i = 0; i < depth; ++i) (void)buffers.Take(depth - i, latencies);
  EMS_RETURN_IF_ERROR(failed);
  if (Interrupted()) return Error(StatusCode::kUnavailable, "interrupted");
  if (buffers.bad() > 0)
    return Error(StatusCode::kUnavailable, "{} of {} reads brought no value", buffers.bad(),
                 numbers.size());
  return OkStatus();
}

FolderWatch::FolderWatch(std::string folder) : folder_(std::move(folder)) {
  thread_ = Thread("bench-watch", [this] {
    do Look();
    while (!stop_.WaitFor(kLookEvery));
  });
}

FolderWatch::~FolderWatch() { (void)Stop(); }

uint64_t FolderWatch::Stop() {
  stop_.Set();
  thread_.Join();
  Look();
  return most_.load(std::memory_order_relaxed);
}

void FolderWatch::Look() {
  const uint64_t now = AllocatedBytes(folder_);
  if (now > most_.load(std::memory_order_relaxed)) most_.store(now, std::memory_order_relaxed);
}

uint64_t AllocatedBytes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  uint64_t bytes = 0;
  // Files come and go meanwhile: those that are gone count as nothing.
  for (fs::recursive_directory_iterator at(folder, error);
       !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    struct stat info {};
    if (::lstat(at->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

void Settle(const std::string& folder) {
  const fabric::Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) (void)::syncfs(fd.get());
}

}  // namespace ems::bench
