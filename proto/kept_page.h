#pragma once
// The body of an answer to ScanKept (data_plane.h): some keys that a server keeps of a slot that it
// has lost, those that were used last first. Parsing treats the bytes as foreign.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "common/ids.h"
#include "common/status.h"
#include "proto/key_page.h"

namespace ems::wire {

struct KeptPageHead {
  uint32_t namespace_id = 0;  // of the keys of this page
  uint32_t namespace_generation = 0;
  // The server has taken no change in its time but of the keys it marked: for the others `node`
  // keeps for the era since `since` what is still true. 0: it cannot say so.
  uint32_t node = 0;
  uint32_t reserved = 0;
  uint64_t since = 0;
};
static_assert(sizeof(KeptPageHead) == 24);

struct KeptPage {
  KeptPageHead head;
  KeyPage keys;

  NamespaceRef ns() const { return {NamespaceId(head.namespace_id), head.namespace_generation}; }
};

// Cost: O(bytes).
void AppendTo(const KeptPage& page, std::vector<std::byte>* body);
// Errors: kDataLoss  a length that is none, or as ParseKeyPage
Result<KeptPage> ParseKeptPage(ConstBytes body);

}  // namespace ems::wire
