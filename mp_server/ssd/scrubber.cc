#include "mp_server/ssd/scrubber.h"

#include <utility>

#include "common/check.h"

namespace ems::ssd {
namespace {

// Small records are paid for together.
constexpr uint64_t kPayPart = 50;  // of a second
constexpr Duration kRest = std::chrono::seconds(1);
constexpr int kTries = 3;  // of a record that is not read

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
  EMS_CHECK(options_.index != nullptr && options_.bytes_per_s > 0,
            "a scrubber of {} bytes a second", options_.bytes_per_s);
  while (true) {
    const TimePoint began = options_.clock->Now();
    if (!Pass()) return;
    const Duration took = options_.clock->Now() - began;
    if (took < options_.pass_at_least && stop_.WaitFor(options_.pass_at_least - took)) return;
  }
}

bool Scrubber::Pass() {
  SsdIndex::Cursor cursor;
  SsdIndex::Stored some;
  while (options_.index->SomeStored(&cursor, &some)) {
    for (const auto& [name, row] : std::exchange(some, {})) {
      if (!Look(name, row)) return false;
    }
    if (stop_.IsSet()) return false;
  }
  passes_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// A disk that is busy, or fails, has its rest: nothing is concluded from a read that did not work.
bool Scrubber::Look(const ObjectName& name, const Row& row) {
  for (int i = 0; i < kTries; ++i) {
    if (stop_.IsSet()) return false;
    const SsdIndex::Found now = options_.index->Find(name, false);
    if (!now.stored || !SameRecord(now.row, row)) return true;  // replaced or gone since
    if (ReadOne(name, row)) break;
    if (stop_.WaitFor(kRest)) return false;
  }
  unpaid_bytes_ += RecordBlocks(row).bytes();
  if (unpaid_bytes_ < options_.bytes_per_s / kPayPart) return true;
  const std::chrono::duration<double> due(static_cast<double>(std::exchange(unpaid_bytes_, 0)) /
                                          static_cast<double>(options_.bytes_per_s));
  return !stop_.WaitFor(std::chrono::duration_cast<Duration>(due));
}

bool Scrubber::ReadOne(const ObjectName& name, const Row& row) {
  const MutableBytes value =
      memory_.Take(RoundUp(std::max<uint64_t>(row.value_bytes, 1), kBlockBytes));
  sums_.resize(PieceCount(row.value_bytes));
  StopFlag landed;  // set last: the waiting thread owns what `done` holds
  ReadOutcome outcome = ReadOutcome::kFailed;
  const bool begun = options_.read(name, row, {value.first(row.value_bytes), sums_},
                                   [&landed, &outcome](ReadOutcome got) {
                                     outcome = got;
                                     landed.Set();
                                   });
  if (!begun) return false;
  while (!landed.WaitFor(kRest)) {
  }
  if (outcome == ReadOutcome::kFailed) return false;
  objects_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(row.value_bytes, std::memory_order_relaxed);
  return true;
}

}  // namespace ems::ssd
