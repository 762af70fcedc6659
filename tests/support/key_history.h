#pragma once
// What may be read under one key, from what was asked for and how it was answered.
//
// One writer a key, so its calls have an order. A call that was answered decides; one that was not
// may have happened or not. A crash forgets what was only acknowledged as in DRAM, and nothing
// else: never does an older value come back.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

namespace ems::testing {

// Threading: caller locks.
class KeyHistory final {
 public:
  static constexpr uint64_t kMiss = 0;  // put ids start at 1

  void OnPut(uint64_t put_id, bool durable, bool answered_ok) {
    if (answered_ok) {
      allowed_ = {put_id};
      volatile_ = !durable;
      oldest_ = put_id;
    } else {
      allowed_.insert(put_id);
      volatile_ = true;  // which of them it is now is not known, nor how well it is kept
    }
  }
  void OnRemove(bool answered) {
    if (answered) {
      if (!allowed_.empty()) oldest_ = std::max(oldest_, *allowed_.rbegin() + 1);
      allowed_.clear();
    }
    allowed_.insert(kMiss);
  }
  // For who reads beside the writer: a read that begins now finds a value with this put id or a
  // later one, which may still be on its way, or none. Holds when the ids of a key grow.
  uint64_t oldest() const { return oldest_; }
  // Whether this may be read now. `may_be_evicted`: durable values can have gone for want of room.
  bool Allows(uint64_t put_id, bool may_be_evicted) const {
    if (allowed_.contains(put_id)) return true;
    return put_id == kMiss && (volatile_ || may_be_evicted);
  }
  std::string ToText() const {
    std::string text;
    for (const uint64_t id : allowed_) text += (text.empty() ? "" : " or ") + std::to_string(id);
    return text + (volatile_ ? ", or nothing" : "");
  }

 private:
  std::set<uint64_t> allowed_{kMiss};
  uint64_t oldest_ = kMiss;
  bool volatile_ = false;
};

}  // namespace ems::testing
