#include "mp_server/ssd/row_room.h"

namespace ems::ssd {

RowRoom::Answer RowRoom::Ask() {
  if (options_.objects() >= options_.objects_max) return Answer::kReclaim;
  if (options_.has_room()) {
    full_since_.reset();
    return Answer::kNow;
  }
  const TimePoint now = options_.clock->Now();
  if (!full_since_) full_since_ = now;
  if (now - *full_since_ < kMergePatience) return Answer::kSoon;
  if (now - *full_since_ < kMergeLongest) return Answer::kNone;
  full_since_ = now - kMergePatience;
  return Answer::kReclaim;
}

}  // namespace ems::ssd
