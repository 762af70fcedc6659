#pragma once
// Conversion of token slots, one for each token, to runs of consecutive ones, block by block, and
// the check that runs do not overlap.
//
// Invariant: a run lies in one block and inside the layout. Bound: none of its own; a run a page
// that does not follow the one before it. No Python in here.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "ems_context/kv_layout.h"

namespace ems::batches {

// Errors: kInvalidArgument  no tokens, or token slots that are not all in [0, slots)
Status CheckRun(uint64_t slots, int64_t start, int64_t tokens);

// Takes the token slots of a call in pieces of any size. Threading: one thread.
class SlotRunBuilder final {
 public:
  // `lengths`: tokens of each block; it and the two lists that are appended to outlive this.
  // run_ends gets the end in `runs` of each block.
  SlotRunBuilder(uint64_t slots, std::span<const int64_t> lengths,
                 std::vector<context::SlotRun>* runs, std::vector<size_t>* run_ends)
      : slots_(slots), lengths_(lengths), runs_(runs), run_ends_(run_ends) {}
  // The next token slots. Errors: kInvalidArgument  outside the layout, more than the lengths sum
  // up to, or a length that is not above 0. Cost: about a nanosecond a slot.
  Status Add(std::span<const int64_t> slots);
  // After the last ones. Errors: kInvalidArgument  fewer than the lengths sum up to, or none
  Status Finish() const;

 private:
  Status NextBlock();
  Status EndRun();

  const uint64_t slots_;
  const std::span<const int64_t> lengths_;
  std::vector<context::SlotRun>* const runs_;
  std::vector<size_t>* const run_ends_;
  size_t block_ = 0;    // the one that is being filled, plus 1
  uint64_t left_ = 0;   // tokens of it that are still to come
  int64_t start_ = 0;   // the run that is being built
  int64_t tokens_ = 0;  // of it; 0: none
  uint64_t taken_ = 0;  // token slots so far
};

// Checks that each token slot is in one run at most. Runs of block b in group g end at run_ends[g ×
// blocks + b]. Errors: kInvalidArgument  which slot, and the two blocks. Cost: O(runs) when they
// are in order, O(runs × log runs) otherwise.
Status CheckOnce(size_t blocks, std::span<const context::SlotRun> runs,
                 std::span<const size_t> run_ends);

// Checks that each block is whole pages of its groups, with `one_each` a single one. Runs are as
// above. Errors: kInvalidArgument  which block, and what it is instead
Status CheckPages(const context::KvLayout& layout, size_t blocks,
                  std::span<const context::SlotRun> runs, std::span<const size_t> run_ends,
                  bool one_each);

}  // namespace ems::batches
