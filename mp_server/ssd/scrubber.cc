#include "mp_server/ssd/scrubber.h"

#include <utility>

namespace ems::ssd {
namespace {

// Small records are paid for together.
constexpr uint64_t kPayPart = 50;  // of a second
constexpr Duration kRest = std::chrono::seconds(1);

}  // namespace

Scrubber::Scrubber(Options options)
    : options_(std::move(options)), thread_("ems-ssd-scrub", [this] { Run(); }) {}

Scrubber::~Scrubber() {
  stop_.Set();
  thread_.Join();
}

Scrubber::Stats Scrubber::stats() const {
  return {passes_.load(std::memory_order_relaxed), objects_.load(std::memory_order_relaxed),
          bytes_.load(std::memory_order_relaxed)};
}

void Scrubber::Run() {
  while (true) {
    const TimePoint began = options_.clock->Now();
    if (!Pass()) return;
    const Duration took = options_.clock->Now() - began;
    if (took < options_.pass_at_least && stop_.WaitFor(options_.pass_at_least - took)) return;
  }
}

bool Scrubber::Pass() {
  for (size_t shard = 0; shard < SsdIndex::kShards; ++shard) {
    for (const auto& [name, row] : options_.index->StoredIn(shard)) {
      if (stop_.IsSet()) return false;
      const SsdIndex::Found now = options_.index->Find(name, false);
      if (!now.stored || !SameRecord(now.row, row)) continue;         // replaced or gone since
      if (!ReadOne(name, row) && stop_.WaitFor(kRest)) return false;  // others come first
      unpaid_bytes_ += RecordBlocks(row).bytes();
      if (unpaid_bytes_ < options_.bytes_per_s / kPayPart) continue;
      const std::chrono::duration<double> due(static_cast<double>(std::exchange(unpaid_bytes_, 0)) /
                                              static_cast<double>(options_.bytes_per_s));
      if (stop_.WaitFor(std::chrono::duration_cast<Duration>(due))) return false;
    }
  }
  passes_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Scrubber::ReadOne(const ObjectName& name, const Row& row) {
  const MutableBytes value =
      memory_.Take(RoundUp(std::max<uint64_t>(row.value_bytes, 1), kBlockBytes));
  sums_.resize(PieceCount(row.value_bytes));
  StopFlag landed;  // set last: whoever waits owns what `done` holds
  const bool begun = options_.read(name, row, {value.first(row.value_bytes), sums_},
                                   [&landed](ReadOutcome) { landed.Set(); });
  if (!begun) return false;
  while (!landed.WaitFor(kRest)) {
  }
  objects_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(row.value_bytes, std::memory_order_relaxed);
  return true;
}

}  // namespace ems::ssd
