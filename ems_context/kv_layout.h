#pragma once
// The memory layout of an engine's KV: paged tensors, described once, and the copies of a cached
// block's bytes out of them and back into them.
//
// A tensor is [blocks, block_tokens, heads, head_bytes] (kTokensFirst, "NHD") or [blocks, heads,
// block_tokens, head_bytes] (kHeadsFirst, "HND"), with any strides between; a *token slot* is block
// * block_tokens + token. A layer has one or more tensors: {K, V}, {latent, rope}, or any. Layers
// form groups (hybrid attention); all tensors of a group have the same paging (blocks,
// block_tokens).
//
// A cached block of n tokens is, in this order and without gaps: layer by layer, tensor by tensor,
//   kTokensFirst: n × heads × head_bytes      kHeadsFirst: heads × n × head_bytes
// so that one layer is one range of the object.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "ems_context/kv_tensor.h"

namespace ems::context {

struct KvLayer {
  std::vector<KvTensor> tensors;
  uint32_t group = 0;
};

// The token slots [start_slot, start_slot + tokens) of one cached block.
struct SlotRun {
  uint64_t start_slot = 0;
  uint32_t tokens = 0;
  friend bool operator==(const SlotRun&, const SlotRun&) = default;
};

// Threading: immutable; the tensors' memory must outlive it.
class KvLayout final {
 public:
  // Errors: kInvalidArgument, naming layer and tensor: no layer, a layer without bytes, groups
  // whose tensors page differently, bytes too few for the shape, strides or tensors that share a
  // byte, group numbers with gaps. Tensors may lie between each other ([blocks, 2, …] fused K and
  // V, [blocks, layers, …]). Cost: O(tensors²), under 1 ms for 80 layers.
  static Result<KvLayout> Make(std::vector<KvLayer> layers);

  size_t layers() const { return layers_.size(); }
  size_t groups() const { return groups_.size(); }
  // What Make was given, strides filled in.
  const std::vector<KvLayer>& description() const { return layers_; }

  // Of a group below groups(), a layer below layers().
  uint64_t slots(uint32_t group) const { return groups_[group].slots; }
  uint32_t block_tokens(uint32_t group) const { return groups_[group].block_tokens; }  // of a page
  uint32_t group_of(size_t layer) const { return layers_[layer].group; }
  // Bytes of a cached block of so many tokens: all layers of the group; one layer.
  uint64_t BlockBytes(uint32_t group, uint64_t tokens) const {
    return groups_[group].token_bytes * tokens;
  }
  uint64_t LayerBytes(size_t layer, uint64_t tokens) const {
    return places_[layer].token_bytes * tokens;
  }
  // Where the layer begins in its group's part of a cached block.
  uint64_t LayerOffset(size_t layer, uint64_t tokens) const {
    return places_[layer].token_bytes_before * tokens;
  }

  // For KeyDomain::kv_layout: equal texts, equal bytes. Paging, strides, addresses and empty
  // tensors are not in it, nor is the order where there is one head. Equal neighbours are counted:
  // "kv1 61*(g0 bf16:NHD:1x512 bf16:NHD:1x64)".
  std::string Fingerprint() const;

  // Checks that these token slots exist. Errors: kOutOfRange  one does not    kInvalidArgument  no
  // such group
  Status CheckRuns(uint32_t group, std::span<const SlotRun> runs) const;

  // The pieces of memory that a cached block is made of, in its order; adjacent ones are joined.
  // Appends to `parts`. Cost: O(pieces): one a page and tensor where it is dense, one a head and
  // page for kHeadsFirst, one a token or a token and head where strides leave gaps.
  // Errors: kOutOfRange  a token slot the layout does not have    kInvalidArgument  no such group
  // or layer (nothing is appended)
  Status AppendParts(uint32_t group, std::span<const SlotRun> runs,
                     std::vector<MutableBytes>* parts) const;
  Status AppendLayerParts(size_t layer, std::span<const SlotRun> runs,
                          std::vector<MutableBytes>* parts) const;

 private:
  struct Group {
    uint64_t slots = 0;
    uint32_t block_tokens = 0;
    uint64_t token_bytes = 0;  // of all its layers
    std::vector<size_t> layers;
  };
  // Of a layer in its group's part of a cached block.
  struct Place {
    uint64_t token_bytes = 0;
    uint64_t token_bytes_before = 0;
  };

  KvLayout() = default;
  Status AddLayer(size_t layer);
  Status JoinGroup(size_t layer, size_t tensor);

  std::vector<KvLayer> layers_;
  std::vector<Place> places_;  // [layers]
  std::vector<Group> groups_;
};

// Token slots, one a token → runs. `slot_mapping` is [tokens]. A negative one (padding) makes a run
// that no layout has.
std::vector<SlotRun> RunsOf(std::span<const int64_t> slot_mapping);
// The tokens of all runs together.
uint64_t TokensOf(std::span<const SlotRun> runs);

}  // namespace ems::context
