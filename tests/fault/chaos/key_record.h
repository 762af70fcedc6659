#pragma once
// What clients did to one key and what they read there, and whether any order of these calls
// explains it.
//
// The model is a register whose values all differ. It may lose its value at any time, since a miss
// is always legal, so misses are not recorded. A value was there, and nothing else, from the first
// end to the last begin of the calls that show it: its Put, and the reads that found it. No order
// explains the calls if two values were there at the same time, or if a Put or a Remove began and
// ended while another value was there; otherwise there is one (P. B. Gibbons, E. Korach, "Testing
// shared memories", SIAM Journal on Computing 26, 1997).
// A Put of unknown outcome replaces nothing for good: one that is made in memory alone can be seen,
// and be undone by a crash. Only what was acknowledged rules other values out.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace ems::testing {

struct TimedCall {
  TimePoint begun, ended;
  std::string by;  // the client
};

enum class PutOutcome : uint8_t {
  kDone,
  kUnknown,  // it takes effect by `ended`, or never, and may be undone
  kRefused,  // it has not been made, and never will be
};

// Bound: what can still be read, and the Puts and Removes since the last Check.
// Threading: caller locks.
class KeyRecord final {
 public:
  // Put ids are never used again. Before the call, for a read may find the value before it ends.
  void BeginPut(uint64_t put_id, TimePoint now);
  void EndPut(uint64_t put_id, const TimedCall& call, PutOutcome outcome);
  // An acknowledged one, also where there was nothing to remove.
  void OnRemove(const TimedCall& call);
  // One that found the value of this Put.
  void OnRead(uint64_t put_id, const TimedCall& call);

  // Between calls: what no order explains since the last Check, as text, with times in seconds
  // since `origin`. Values that have certainly been replaced are forgotten: no later read of one is
  // explained.
  std::vector<std::string> Check(TimePoint origin);

 private:
  struct Value {
    TimePoint begun;  // its Put
    TimePoint shown;  // the first end of a call that shows it; of a Put of unknown outcome the
                      // moment by which it takes effect, if it does
    TimePoint last;   // the last begin of one
    std::string by;   // whose that was
    bool acknowledged = false, refused = false, read = false;
  };
  // Of a value, or a Remove.
  struct Span {
    TimePoint low, high;
    bool stayed;  // it was there from low to high; otherwise at one moment between them
    bool acknowledged;
    std::string text;
  };
  std::vector<Span> Spans(TimePoint origin) const;
  void Forget();

  std::map<uint64_t, Value> values_;  // by put id
  std::vector<TimedCall> removes_;
  std::vector<std::pair<uint64_t, TimedCall>> strange_;  // reads of values that are not in values_
};

}  // namespace ems::testing
