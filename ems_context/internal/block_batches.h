#pragma once
// Runs one call as batches on a BlockStore: root-first by batch, tail-first within a batch, all
// under one deadline.
//
// Invariant: the results are those of the items, in the order of the items, and complete; items
// that no batch reached before the deadline say kDeadlineExceeded, before it was cancelled
// kCancelled.
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "ems_context/block_store.h"
#include "ems_context/internal/batch_plan.h"

namespace ems::context {

// The conditions that end a call early. Checked before each batch.
struct CallBounds {
  CallBounds(Deadline when) : deadline(when) {}  // NOLINT(google-explicit-constructor)
  CallBounds(Deadline when, std::function<bool()> stop)
      : deadline(when), cancelled(std::move(stop)) {}
  // ok, or why the rest of the call is not done.
  Status Check() const;

  Deadline deadline;
  std::function<bool()> cancelled;  // may be empty
};

// The scope of a look-up: on behind a batch with an absent block, or not.
enum class ExistsScope : uint8_t { kAll, kLeading };

// kLeading: blocks of batches behind the first absent block are `false` without being asked for.
std::vector<Result<bool>> ExistsInBatches(BlockStore* store, std::span<const std::string> keys,
                                          ExistsScope scope, bool touch, const BatchLimits& limits,
                                          const CallBounds& bounds);

std::vector<Result<uint64_t>> GetInBatches(BlockStore* store, std::span<const GetItem> items,
                                           bool touch, const BatchLimits& limits,
                                           const CallBounds& bounds);

struct PutOutcome {
  std::vector<Status> items;
  size_t batches = 0;
};
PutOutcome PutInBatches(BlockStore* store, std::span<const PutItem> items, Durability durability,
                        const BatchLimits& limits, const CallBounds& bounds);

}  // namespace ems::context
