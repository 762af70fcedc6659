#pragma once
// Room in the durable index for one more row. With small values the index is what runs out first.
//
// RocksDB is given time to merge its files. Removes that are queued behind a Put must not wait for
// long, so the Put is shed then; and where merging does not help at all, a region has to go.
#include <cstdint>
#include <functional>
#include <optional>

#include "common/clock.h"

namespace ems::ssd {

// Threading: one thread (the tier's log thread).
class RowRoom final {
 public:
  static constexpr Duration kMergePatience = std::chrono::milliseconds(200);
  static constexpr Duration kMergeLongest = std::chrono::seconds(5);

  struct Options {
    std::function<uint64_t()> objects;
    uint64_t objects_max = UINT64_MAX;
    std::function<bool()> has_room;  // RegionIndex::HasRoom
    const Clock* clock = &Clock::System();
  };
  explicit RowRoom(Options options) : options_(std::move(options)) {}

  enum class Answer : uint8_t {
    kNow,
    kSoon,     // ask again
    kReclaim,  // when a region has gone
    kNone,     // not for this one
  };
  Answer Ask();

 private:
  const Options options_;
  std::optional<TimePoint> full_since_;
};

}  // namespace ems::ssd
