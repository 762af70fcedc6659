#pragma once
// The body of an answer to Scan (data_plane.h): some keys of a namespace and what is known of each,
// and where to go on. Parsing treats the bytes as foreign.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "proto/data_plane.h"

namespace ems::wire {

inline constexpr uint32_t kUnknownMs = UINT32_MAX;

struct ScanHead {
  ScanCursor next = kScanBegin;
  uint32_t count = 0;
  uint32_t more = 0;  // 1: `next` says where the rest begins; 0: that was all
};
static_assert(sizeof(ScanHead) == 32);

struct KeyHead {
  uint64_t value_bytes = 0;
  uint32_t age_ms = kUnknownMs;   // since it came to this server's DRAM
  uint32_t idle_ms = kUnknownMs;  // since it was used there
  uint16_t key_bytes = 0;
  ItemTier tier = ItemTier::kUnknown;
  uint8_t reserved = 0;
  uint32_t reserved2 = 0;
};
static_assert(sizeof(KeyHead) == 24);

struct ListedKey {
  std::string key;
  uint64_t value_bytes = 0;
  ItemTier tier = ItemTier::kUnknown;
  uint32_t age_ms = kUnknownMs;  // as KeyHead's
  uint32_t idle_ms = kUnknownMs;
};

struct KeyPage {
  std::vector<ListedKey> keys;
  std::optional<ScanCursor> next;  // none: that was all
};

// Cost: O(bytes), one allocation.
void AppendTo(const KeyPage& page, std::vector<std::byte>* body);
// Errors: kDataLoss  a length that does not fit the count, a key that is none, or an unknown tier
Result<KeyPage> ParseKeyPage(ConstBytes body);

}  // namespace ems::wire
