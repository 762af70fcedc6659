#pragma once
// What an answer to a read says of copies of its key that other servers have for a while: one byte,
// FrameHeader::flags of answers to Get and GetRange, ItemResult::copies of their Multi forms.
//
// Which servers: HotHolders of the view (cluster/hot_holders.h), of which bit i stands for the
// i-th. A reader whose view says others asks in vain there, and its owner after that.
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ems::wire {

inline constexpr size_t kHotCopiesMax = 3;
inline constexpr uint32_t kCopySecondsMax = 31;  // that a hint can say

struct CopyHint {
  uint8_t holders = 0;   // a bit each; 0: there are no copies
  uint32_t seconds = 0;  // for so long still, at least

  // 0: nothing is said.
  uint8_t Pack() const {
    if (holders == 0 || seconds == 0) return 0;
    return static_cast<uint8_t>((holders & 7U) << 5 | std::min(seconds, kCopySecondsMax));
  }
  static CopyHint Unpack(uint16_t packed) {
    const CopyHint hint{.holders = static_cast<uint8_t>(packed >> 5 & 7),
                        .seconds = packed & kCopySecondsMax};
    return packed > 0xff || hint.Pack() == 0 ? CopyHint() : hint;
  }
  friend bool operator==(const CopyHint&, const CopyHint&) = default;
};

}  // namespace ems::wire
