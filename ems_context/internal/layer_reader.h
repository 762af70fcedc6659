#pragma once
// Reads blocks layer by layer: which layers go into one read, and the reads.
#include <cstddef>
#include <span>
#include <vector>

#include "ems_context/block_store.h"
#include "ems_context/context_cache.h"
#include "ems_context/internal/block_batches.h"
#include "ems_context/layer_load.h"
#include "ems_context/paged_block.h"

namespace ems::context {

// Layers [begin, end).
struct LayerRange {
  size_t begin = 0, end = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};
// Cuts all layers into ranges in which the largest block has at least `bytes_min`; the last may
// have less. Cost: O(layers × blocks).
std::vector<LayerRange> PlanLayerReads(const KvLayout& layout, std::span<const PagedBlock> blocks,
                                       uint64_t bytes_min);

// The load itself. Invariant: as LayerLoad; what was found damaged, gone or of another length is
// not read again. Threading: one thread.
class LayerReader final {
 public:
  // `blocks` have passed CheckBlocks. Everything given must outlive this.
  LayerReader(BlockStore* store, const KvLayout& layout, std::span<const PagedBlock> blocks,
              LayerProgress* progress);
  LoadResult Run(const std::vector<LayerRange>& plan, bool touch, const CallBounds& bounds);
  // Blocks of another length than the layout asks for.
  size_t size_mismatches() const { return size_mismatches_; }

 private:
  struct Read {
    size_t block = 0;
    uint64_t offset = 0;
    size_t parts_end = 0;  // in parts_
  };
  // One layer range of all blocks that are still there.
  void ReadRange(LayerRange range, const GetOptions& options);
  void Plan(LayerRange range);
  void FailRest(const Status& why);

  BlockStore* store_;
  const KvLayout& layout_;
  std::span<const PagedBlock> blocks_;
  LayerProgress* progress_;
  LoadResult result_;
  std::vector<uint64_t> object_bytes_;  // [blocks]
  std::vector<Read> reads_;
  std::vector<MutableBytes> parts_;
  size_t size_mismatches_ = 0;
};

}  // namespace ems::context
