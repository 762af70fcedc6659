#include "fabric/npu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/check.h"

namespace ems::fabric {
namespace {

constexpr uint64_t kAlignment = 512;
// A paced copy is made and waited for in such pieces.
constexpr uint64_t kPieceBytes = 1 * kMiB;

uint64_t Aligned(uint64_t bytes) {
  return (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

NpuStream::NpuStream(NpuDevice* device) : device_(device) {
  engine_ = Thread("npu-sdma", [this] { Run(); });
}

NpuStream::~NpuStream() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  engine_.Join();
}

void NpuStream::Push(Copy copy) {
  auto state = state_.Lock();
  state.Wait(room_, [](const State& now) { return now.queued.size() < kQueuedMax; });
  state->queued.push_back(std::move(copy));
  state.Unlock();
  wakeup_.notify_one();
}

Status NpuStream::CopyIn(HbmAddress to, ConstBytes from) {
  EMS_RETURN_IF_ERROR(device_->Check(to, from.size()));
  Push({.to = device_->hbm_ + to.offset, .from = from.data(), .bytes = from.size(), .event = {}});
  return OkStatus();
}

Status NpuStream::CopyOut(MutableBytes to, HbmAddress from) {
  EMS_RETURN_IF_ERROR(device_->Check(from, to.size()));
  Push({.to = to.data(), .from = device_->hbm_ + from.offset, .bytes = to.size(), .event = {}});
  return OkStatus();
}

NpuEventPtr NpuStream::Record() {
  auto event = std::make_shared<NpuEvent>();
  Push({.to = nullptr, .from = nullptr, .bytes = 0, .event = event});
  return event;
}

void NpuStream::Run() {
  const uint64_t rate = device_->options_.bytes_per_s;
  StopFlag never;
  TimePoint free_at{};  // when the engine could have done what it was given
  while (true) {
    Copy copy;
    {
      auto state = state_.Lock();
      state.Wait(wakeup_, [](const State& now) { return now.stopping || !now.queued.empty(); });
      if (state->queued.empty()) return;
      copy = std::move(state->queued.front());
      state->queued.pop_front();
    }
    room_.notify_one();
    if (copy.event != nullptr) {
      copy.event->happened_.Set();
      continue;
    }
    if (rate == 0) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      continue;
    }
    for (uint64_t at = 0; at < copy.bytes; at += kPieceBytes) {
      const uint64_t part = std::min(kPieceBytes, copy.bytes - at);
      const TimePoint now = Clock::System().Now();
      std::memcpy(copy.to + at, copy.from + at, part);
      free_at = std::max(free_at, now) +
                std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(part) * 1e9 /
                                                              static_cast<double>(rate)));
      const Duration early = free_at - Clock::System().Now();
      if (early > Duration::zero()) never.WaitFor(early);
    }
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

NpuDevice::~NpuDevice() { ::munmap(hbm_, options_.hbm_bytes); }

Status NpuDevice::Check(HbmAddress address, uint64_t bytes) const {
  if (address.offset <= options_.hbm_bytes && bytes <= options_.hbm_bytes - address.offset)
    return OkStatus();
  return Error(StatusCode::kOutOfRange, "{}+{} of {} bytes of HBM", address.offset, bytes,
               options_.hbm_bytes);
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
