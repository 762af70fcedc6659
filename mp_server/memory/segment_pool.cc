#include "mp_server/memory/segment_pool.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "common/random_id.h"

namespace ems::server {
namespace {

constexpr size_t kWantedMax = 8;
// How long a large segment is made and kept for a namespace that asked once.
constexpr Duration kWantedFor = std::chrono::seconds(10);
constexpr Duration kIdle = std::chrono::seconds(1);

TimePoint Now() { return Clock::System().Now(); }

}  // namespace

uint64_t SegmentPool::DefaultSegmentBytes(uint64_t pool_bytes) {
  constexpr uint64_t kTenants = 7;
  constexpr uint64_t kWhole = 130 * kMiB;
  const uint64_t share = pool_bytes / kTenants / fabric::kHugePageBytes * fabric::kHugePageBytes;
  if (share < kWhole) return std::max(share, fabric::kHugePageBytes);
  return RoundUp((pool_bytes + kSegmentsMax - 1) / kSegmentsMax, kWhole);
}

SegmentPool::SegmentPool(const Options& options)
    : options_(options), boot_id_(RandomId()), bytes_max_(options.bytes) {
  EMS_CHECK(options_.segment_bytes >= fabric::kHugePageBytes &&
                options_.segment_bytes % fabric::kHugePageBytes == 0 &&
                options_.bytes >= options_.segment_bytes,
            "pool of {} bytes in segments of {}: multiples of 2 MiB, at least one", options_.bytes,
            options_.segment_bytes);
  {
    auto state = state_.Lock();
    state->created_bytes = state->in_use_bytes = options_.adopted_bytes;
    state->next_id = options_.first_id;
  }
  thread_ = Thread("ems-mem", [this] { Run(); });
}

SegmentPool::~SegmentPool() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

Result<std::unique_ptr<Segment>> SegmentPool::Acquire(uint64_t bytes_min) {
  if (bytes_min > bytes_max()) {
    return Error(StatusCode::kOutOfRange, "a segment of {} from a pool of {}",
                 FormatBytes(bytes_min), FormatBytes(bytes_max()));
  }
  std::unique_ptr<Segment> found;
  bool wanted = false;
  {
    auto state = state_.Lock();
    const bool large = bytes_min > options_.segment_bytes;
    Ready* best = nullptr;
    for (Ready& ready : state->ready) {
      if (state->in_use_bytes + ready.segment->size_bytes() > bytes_max()) continue;
      const uint64_t bytes = ready.segment->size_bytes();
      const bool fits = bytes >= bytes_min && (large || bytes <= options_.segment_bytes);
      if (fits && (best == nullptr || bytes < best->segment->size_bytes())) best = &ready;
    }
    if (best != nullptr) {
      found = std::move(best->segment);
      std::swap(*best, state->ready.back());
      state->ready.pop_back();
      EMS_CHECK(state->ready_bytes >= found->size_bytes(), "{} bytes ready, segment {} has {}",
                state->ready_bytes, found->id, found->size_bytes());
      state->ready_bytes -= found->size_bytes();
      state->in_use_bytes += found->size_bytes();
      std::erase_if(state->wanted, [&](const Wanted& w) { return w.bytes == found->size_bytes(); });
    } else if (large && Obtainable(*state) >= RoundUp(bytes_min, fabric::kHugePageBytes)) {
      wanted = true;
      Want(*state, RoundUp(bytes_min, fabric::kHugePageBytes));
    }
  }
  if (wanted) wakeup_.notify_all();
  if (found != nullptr) return found;
  return Error(StatusCode::kResourceExhausted,
               wanted ? "a segment of this size is being prepared" : "no segment is ready");
}

void SegmentPool::Want(State& state, uint64_t bytes) const {
  const TimePoint until = Now() + kWantedFor;
  state.poked = true;
  for (Wanted& wanted : state.wanted) {
    if (wanted.bytes == bytes) {
      wanted.until = until;
      return;
    }
  }
  if (state.wanted.size() < kWantedMax) state.wanted.push_back({bytes, until});
}

void SegmentPool::Release(std::unique_ptr<Segment> segment) {
  {
    auto state = state_.Lock();
    EMS_CHECK(state->in_use_bytes >= segment->size_bytes(), "segment {} was not handed out",
              segment->id);
    state->in_use_bytes -= segment->size_bytes();
    state->closing.push_back(std::move(segment));
    state->poked = true;
  }
  wakeup_.notify_all();
}

void SegmentPool::Resize(uint64_t bytes) {
  const uint64_t size =
      std::max(bytes / fabric::kHugePageBytes * fabric::kHugePageBytes, options_.segment_bytes);
  {
    auto state = state_.Lock();
    bytes_max_.store(size, std::memory_order_relaxed);
    state->poked = true;
  }
  wakeup_.notify_all();
}

uint64_t SegmentPool::excess_bytes() {
  auto state = state_.Lock();
  return state->in_use_bytes - std::min(state->in_use_bytes, bytes_max());
}

void SegmentPool::SetKeptByClients(uint64_t bytes) {
  {
    auto state = state_.Lock();
    if (state->kept_bytes == bytes) return;
    state->poked = true;
    state->kept_bytes = bytes;
  }
  wakeup_.notify_all();
}

Status SegmentPool::WaitReady(uint64_t bytes, Deadline deadline) {
  const uint64_t target =
      std::min(bytes, bytes_max() / fabric::kHugePageBytes * fabric::kHugePageBytes);
  auto state = state_.Lock();
  const auto made = [](const State& s) { return s.ready_bytes + s.in_use_bytes; };
  state.WaitFor(changed_, deadline.Remaining(),
                [&](const State& s) { return made(s) >= target || !s.last_error.ok(); });
  if (made(*state) >= target) return OkStatus();
  if (!state->last_error.ok()) return state->last_error;
  return Error(StatusCode::kDeadlineExceeded, "{} of {} of memory are ready",
               FormatBytes(made(*state)), FormatBytes(target));
}

bool SegmentPool::growing() {
  auto state = state_.Lock();
  return !state->complete_once;
}

uint64_t SegmentPool::free_bytes() {
  auto state = state_.Lock();
  const uint64_t obtainable = Obtainable(*state);
  // After a refusal only what exists counts: what the machine did not give cannot be handed out.
  if (state->last_error.ok()) return obtainable;
  return std::min(obtainable,
                  state->created_bytes - std::min(state->created_bytes, state->in_use_bytes));
}

SegmentPool::Stats SegmentPool::stats() {
  auto state = state_.Lock();
  Stats stats;
  stats.bytes_max = bytes_max();
  stats.bytes_held = state->created_bytes;
  stats.bytes_ready = state->ready_bytes;
  stats.bytes_in_use = state->in_use_bytes;
  stats.bytes_kept = state->kept_bytes;
  stats.bytes_created = stats.bytes_ready + stats.bytes_in_use;
  stats.refused = state->refused;
  stats.fell_back = state->fell_back;
  stats.page_kind = state->page_kind;
  return stats;
}

void SegmentPool::Run() {
  while (true) {
    std::vector<std::unique_ptr<Segment>> closing;
    uint64_t bytes = 0;
    {
      auto state = state_.Lock();
      if (state->stopping) return;
      state->poked = false;
      if (state->closing.empty()) bytes = NextBytes(*state);
      closing.swap(state->closing);
      if (bytes > 0) {
        state->created_bytes += bytes;
      } else if (closing.empty()) {
        state.WaitFor(wakeup_, std::min(kIdle, options_.retry_after),
                      [](const State& s) { return s.stopping || s.poked; });
        continue;
      }
    }
    uint64_t closed_bytes = 0;
    for (auto& segment : closing) {
      closed_bytes += segment->size_bytes();
      segment.reset();
    }
    if (closed_bytes > 0) {
      auto state = state_.Lock();
      EMS_CHECK(state->created_bytes >= closed_bytes, "closed {} bytes of {}", closed_bytes,
                state->created_bytes);
      state->created_bytes -= closed_bytes;
    }
    if (bytes > 0) Make(bytes);
  }
}

void SegmentPool::CloseReady(State& state, size_t index) const {
  std::swap(state.ready[index], state.ready.back());
  state.ready_bytes -= state.ready.back().segment->size_bytes();
  state.closing.push_back(std::move(state.ready.back().segment));
  state.ready.pop_back();
  state.poked = true;
}

// It is neither ready nor out of reach.
bool SegmentPool::Waits(const State& state, const Wanted& wanted) const {
  return Obtainable(state) >= wanted.bytes &&
         std::none_of(state.ready.begin(), state.ready.end(), [&](const Ready& ready) {
           return ready.segment->size_bytes() == wanted.bytes;
         });
}

// Large sizes that a namespace waits for come first, even at the price of closing ready segments.
uint64_t SegmentPool::NextWanted(State& state) const {
  const TimePoint now = Now();
  std::erase_if(state.wanted, [&](const Wanted& wanted) { return wanted.until < now; });
  for (const Wanted& wanted : state.wanted) {
    if (!Waits(state, wanted)) continue;
    if (Room(state) >= wanted.bytes) return wanted.bytes;
    if (!state.ready.empty()) CloseReady(state, 0);
    break;  // one after the other; what is closed becomes room in the next round
  }
  return 0;
}

uint64_t SegmentPool::Room(const State& state) const {
  return bytes_max() - std::min(bytes_max(), state.created_bytes + state.kept_bytes);
}

uint64_t SegmentPool::Obtainable(const State& state) const {
  return bytes_max() - std::min(bytes_max(), state.in_use_bytes + state.kept_bytes);
}

uint64_t SegmentPool::NextBytes(State& state) const {
  const TimePoint now = Now();
  if (state.created_bytes + state.kept_bytes > bytes_max() && !state.ready.empty()) {
    CloseReady(state, 0);  // made before the pool became smaller, or clients kept so much
    return 0;
  }
  if (now < state.retry_at) return 0;
  if (const uint64_t bytes = NextWanted(state); bytes > 0) return bytes;
  if (!state.closing.empty() || !state.wanted.empty()) {
    // Room is being made for a large segment: do not fill it with others.
    const bool waits = std::any_of(state.wanted.begin(), state.wanted.end(),
                                   [&](const Wanted& wanted) { return Waits(state, wanted); });
    if (waits || !state.closing.empty()) return 0;
  }
  for (size_t i = 0; i < state.ready.size(); ++i) {
    const Ready& ready = state.ready[i];
    if (ready.segment->size_bytes() > options_.segment_bytes && ready.since + kWantedFor < now) {
      CloseReady(state, i);  // nobody came for it
      return 0;
    }
  }
  const uint64_t room = Room(state) / fabric::kHugePageBytes * fabric::kHugePageBytes;
  const uint64_t bytes = std::min(room, options_.segment_bytes);
  if (bytes == 0) {
    state.complete_once = true;
    state.last_error = OkStatus();
  }
  return bytes;
}

void SegmentPool::Make(uint64_t bytes) {
  Result<fabric::ShmSegment> made = options_.create(bytes, options_.huge_pages);
  if (!made.ok()) return OnRefused(bytes, made.status());
  Result<fabric::Fd> read_only = made->OpenReadOnly();
  if (!read_only.ok()) return OnRefused(bytes, read_only.status());
  bool fell_back = false;
  {
    auto state = state_.Lock();
    state->page_kind = made->page_kind();
    fell_back = options_.huge_pages == HugePages::kTry &&
                made->page_kind() == fabric::PageKind::kSmall &&
                !std::exchange(state->fell_back, true);
    auto segment = std::make_unique<Segment>();
    segment->id = state->next_id++;
    segment->memory = std::move(*made);
    segment->read_only = std::make_shared<const fabric::Fd>(*std::move(read_only));
    EMS_CHECK(segment->size_bytes() == bytes, "asked for {} bytes, got {}", bytes,
              segment->size_bytes());
    state->ready_bytes += bytes;
    state->ready.push_back({std::move(segment), Now()});
    if (Room(*state) < fabric::kHugePageBytes) state->complete_once = true;
  }
  changed_.notify_all();
  if (fell_back) {
    EMS_LOG(kWarn, "mp_server",
            "huge pages are neither reserved nor to be had on request, the pool runs on smaller "
            "ones; to reserve them: sysctl -w vm.nr_hugepages={}",
            (bytes_max() + fabric::kHugePageBytes - 1) / fabric::kHugePageBytes);
  }
}

void SegmentPool::OnRefused(uint64_t bytes, const Status& error) {
  uint64_t made = 0;
  bool first = false;
  {
    auto state = state_.Lock();
    state->created_bytes -= bytes;
    made = state->created_bytes;
    first = state->refused++ == 0;
    state->last_error = error;
    state->complete_once = true;
    state->retry_at = Now() + options_.retry_after;
  }
  changed_.notify_all();
  if (first) {
    EMS_LOG(
        kWarn, "mp_server",
        "the pool is smaller than configured have={} want={} error=\"{}\"; trying again each {} s",
        FormatBytes(made), FormatBytes(bytes_max()), Message(error),
        std::chrono::duration_cast<std::chrono::seconds>(options_.retry_after).count());
  }
}

}  // namespace ems::server
