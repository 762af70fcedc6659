#pragma once
// The body of an answer to Peers (data_plane.h): which servers have said that they have a view, and
// how long ago, as one server tells it to another. Parsing treats the bytes as foreign.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "common/ids.h"
#include "common/status.h"
#include "proto/data_plane.h"

namespace ems::wire {

struct WordTable {
  ViewVersion view;
  uint64_t fingerprint = 0;  // of all that this view says
  std::vector<PeerWord> words;
};

// At most kWordsMax words are told; the rest are left out. Cost: O(words), one allocation.
void AppendTo(const WordTable& table, std::vector<std::byte>* body);
// An empty body is an empty table. Ids and ages are whatever the sender wrote.
// Errors: kDataLoss  a length that does not fit the count, or more than kWordsMax words
Result<WordTable> ParseWordTable(ConstBytes body);

}  // namespace ems::wire
