#include "fabric/emulated/npu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/check.h"
#include "common/copy.h"
#include "common/sleep.h"

namespace ems::fabric {
namespace {

constexpr uint64_t kAlignment = 512;

uint64_t Aligned(uint64_t bytes) {
  return (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

NpuStream::NpuStream(NpuDevice* device, const EmulatedPath* path)
    : device_(device), default_path_(path), engine_("npu-sdma", [this] { Run(); }) {}

NpuStream::~NpuStream() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  engine_.Join();
}

void NpuStream::Push(Work work) {
  if (work.path == nullptr) work.path = default_path_;
  work.queued_at = Clock::System().Now();
  auto state = state_.Lock();
  state.Wait(room_, [](const State& now) { return now.queued.size() < kQueuedMax; });
  state->queued.push_back(std::move(work));
  state.Unlock();
  wakeup_.notify_one();
}

Status NpuStream::CopyIn(HbmAddress to, ConstBytes from, const EmulatedPath* path) {
  EMS_RETURN_IF_ERROR(device_->Check(to, from.size()));
  Push({.to = device_->hbm_ + to.offset, .from = from.data(), .bytes = from.size(), .path = path});
  return OkStatus();
}

Status NpuStream::CopyOut(MutableBytes to, HbmAddress from, const EmulatedPath* path) {
  EMS_RETURN_IF_ERROR(device_->Check(from, to.size()));
  Push({.to = to.data(), .from = device_->hbm_ + from.offset, .bytes = to.size(), .path = path});
  return OkStatus();
}

Status NpuStream::CopyAcross(NpuDevice* to_device, HbmAddress to, HbmAddress from, uint64_t bytes,
                             const EmulatedPath* path) {
  EMS_RETURN_IF_ERROR(to_device->Check(to, bytes));
  EMS_RETURN_IF_ERROR(device_->Check(from, bytes));
  Push({.to = to_device->hbm_ + to.offset,
        .from = device_->hbm_ + from.offset,
        .bytes = bytes,
        .path = path});
  return OkStatus();
}

NpuEventPtr NpuStream::Record() {
  auto event = std::make_shared<NpuEvent>();
  Push({.event = event});
  return event;
}

void NpuStream::Copy(const Work& work, Timing* timing) {
  const auto copy = [&work](uint64_t at, uint64_t bytes) {
    CopyValue({work.to + at, bytes}, work.from + at, nullptr);
  };
  if (work.path == nullptr) return copy(0, work.bytes);
  // An engine that does nothing but follow the links would have begun then.
  EmulatedTransfer transfer(work.path, std::max(timing->due, work.queued_at));
  for (uint64_t at = 0; at < work.bytes;) {
    const uint64_t part = std::min(work.path->piece_bytes(), work.bytes - at);
    const TimePoint due = transfer.Add(part);
    copy(at, part);
    SleepUntil(due);
    at += part;
  }
  timing->due = transfer.due();
  timing->arrival = std::max(timing->arrival, transfer.arrival());
}

void NpuStream::Run() {
  Timing timing;
  while (true) {
    Work work;
    {
      auto state = state_.Lock();
      state.Wait(wakeup_, [](const State& now) { return now.stopping || !now.queued.empty(); });
      if (state->queued.empty()) return;
      work = std::move(state->queued.front());
      state->queued.pop_front();
    }
    room_.notify_one();
    if (work.event == nullptr) {
      Copy(work, &timing);
      continue;
    }
    SleepUntil(timing.arrival);
    work.event->done_.store(true, std::memory_order_release);
    work.event->happened_.Set();
  }
}

Result<std::unique_ptr<NpuDevice>> NpuDevice::Create(const Options& options) {
  if (options.hbm_bytes == 0) return Error(StatusCode::kInvalidArgument, "an NPU without HBM");
  const uint64_t bytes = Aligned(options.hbm_bytes);
  void* hbm = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hbm == MAP_FAILED) {
    return Error(StatusCode::kResourceExhausted, "no memory for {} of HBM", FormatBytes(bytes));
  }
  ::madvise(hbm, bytes, MADV_HUGEPAGE);
  Options aligned = options;
  aligned.hbm_bytes = bytes;
  std::unique_ptr<NpuDevice> device(
      new NpuDevice(aligned, static_cast<std::byte*>(hbm)));  // NOLINT: the constructor is private
  auto arena = device->arena_.Lock();
  arena->free[0] = bytes;
  arena.Unlock();
  return device;
}

NpuDevice::~NpuDevice() {
  EMS_CHECK(::munmap(hbm_, options_.hbm_bytes) == 0, "unmapping {} of HBM",
            FormatBytes(options_.hbm_bytes));
}

Status NpuDevice::Check(HbmAddress address, uint64_t bytes) const {
  if (address.offset <= options_.hbm_bytes && bytes <= options_.hbm_bytes - address.offset)
    return OkStatus();
  return Error(StatusCode::kOutOfRange, "{}+{} of {} bytes of HBM", address.offset, bytes,
               options_.hbm_bytes);
}

Result<MutableBytes> NpuDevice::KernelView(HbmAddress address, uint64_t bytes) {
  EMS_RETURN_IF_ERROR(Check(address, bytes));
  return MutableBytes(hbm_ + address.offset, bytes);
}

// First fit: the pieces are few and large.
Result<HbmAddress> NpuDevice::Allocate(uint64_t bytes) {
  const uint64_t wanted = Aligned(bytes);
  uint64_t free = 0;
  auto arena = arena_.Lock();
  for (auto it = arena->free.begin(); it != arena->free.end(); ++it) {
    const auto [offset, room] = *it;
    free += room;
    if (wanted < bytes || room < wanted) continue;
    arena->free.erase(it);
    if (room > wanted) arena->free[offset + wanted] = room - wanted;
    arena->taken[offset] = wanted;
    return HbmAddress{offset};
  }
  return Error(StatusCode::kResourceExhausted, "{} of HBM in one piece: {} of {} are free", bytes,
               free, options_.hbm_bytes);
}

void NpuDevice::Free(HbmAddress address) {
  auto arena = arena_.Lock();
  const auto taken = arena->taken.find(address.offset);
  EMS_CHECK(taken != arena->taken.end(), "HBM at {} is not taken", address.offset);
  auto [offset, bytes] = *taken;
  arena->taken.erase(taken);
  const auto after = arena->free.find(offset + bytes);
  if (after != arena->free.end()) {
    bytes += after->second;
    arena->free.erase(after);
  }
  auto before = arena->free.lower_bound(offset);
  if (before != arena->free.begin() &&
      std::prev(before)->first + std::prev(before)->second == offset) {
    std::prev(before)->second += bytes;
    return;
  }
  arena->free[offset] = bytes;
}

uint64_t NpuDevice::free_bytes() {
  uint64_t free = 0;
  auto arena = arena_.Lock();
  for (const auto& [offset, bytes] : arena->free) free += bytes;
  return free;
}

}  // namespace ems::fabric
