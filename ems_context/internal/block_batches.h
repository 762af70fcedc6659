#pragma once
// Runs one call as batches on a BlockStore: root-first by batch, tail-first within a batch, all
// under one deadline.
//
// Invariant: the results are those of the items, in the order of the items, and complete; items
// that no batch reached before the deadline say kDeadlineExceeded.
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "ems_context/block_store.h"
#include "ems_context/internal/batch_plan.h"

namespace ems::context {

// Whether to go on behind a batch with an absent block.
enum class ExistsScope : uint8_t { kAll, kLeading };

// kLeading: blocks of batches behind the first absent block are `false` without being asked for.
std::vector<Result<bool>> ExistsInBatches(BlockStore* store, std::span<const std::string> keys,
                                          ExistsScope scope, bool touch, const BatchLimits& limits,
                                          Deadline deadline);

std::vector<Result<uint64_t>> GetInBatches(BlockStore* store, std::span<const GetItem> items,
                                           bool touch, const BatchLimits& limits,
                                           Deadline deadline);

struct PutOutcome {
  std::vector<Status> items;
  size_t batches = 0;
};
PutOutcome PutInBatches(BlockStore* store, std::span<const PutItem> items, Durability durability,
                        const BatchLimits& limits, Deadline deadline);

}  // namespace ems::context
