#include "ems_context/kv_layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "ems_context/internal/tensor_extent.h"

namespace ems::context {
namespace {

bool IsEmpty(const KvTensor& tensor) { return tensor.head_size == 0; }

Status Refuse(size_t layer, size_t tensor, std::string_view why) {
  return Error(StatusCode::kInvalidArgument, "KV layout, layer {}, tensor {}: {}", layer, tensor,
               why);
}

Status CheckShape(const KvTensor& tensor) {
  if (static_cast<size_t>(tensor.dtype) >= kKvDtypes ||
      (tensor.order != KvOrder::kTokensFirst && tensor.order != KvOrder::kHeadsFirst))
    return Error(StatusCode::kInvalidArgument, "unknown dtype or order");
  if (IsEmpty(tensor)) return OkStatus();
  if (tensor.blocks == 0 || tensor.block_tokens == 0 || tensor.heads == 0)
    return Error(StatusCode::kInvalidArgument,
                 "a shape with zero in it: {} blocks of {} tokens, {} heads of {}", tensor.blocks,
                 tensor.block_tokens, tensor.heads, tensor.head_size);
  if (tensor.data == nullptr) return Error(StatusCode::kInvalidArgument, "no memory given");
  return OkStatus();
}

// Tensors that share bytes would overwrite each other on every load.
Status CheckApart(std::span<const KvLayer> layers) {
  struct Named {
    TensorExtent extent;
    size_t layer, tensor;
  };
  std::vector<Named> seen;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t tensor = 0; tensor < layers[layer].tensors.size(); ++tensor) {
      const KvTensor& one = layers[layer].tensors[tensor];
      if (IsEmpty(one)) continue;
      auto extent = ExtentOf(one);
      if (!extent.ok()) return Refuse(layer, tensor, Message(extent.status()));
      for (const Named& other : seen) {
        if (ShareAByte(*extent, other.extent))
          return Refuse(
              layer, tensor,
              fmt::format("shares memory with layer {}, tensor {}", other.layer, other.tensor));
      }
      seen.push_back({*extent, layer, tensor});
    }
  }
  return OkStatus();
}

// Appends pieces, and joins those that follow each other in memory; what was in the list before
// stays as it was.
class Pieces final {
 public:
  explicit Pieces(std::vector<MutableBytes>* parts) : parts_(parts), first_(parts->size()) {}
  void Add(std::byte* data, uint64_t bytes) {
    if (parts_->size() > first_) {
      MutableBytes& last = parts_->back();
      if (last.data() + last.size() == data) {
        last = MutableBytes(last.data(), last.size() + bytes);
        return;
      }
    }
    parts_->emplace_back(data, bytes);
  }

 private:
  std::vector<MutableBytes>* parts_;
  size_t first_;
};

// `count` elements of `bytes` each, `stride` apart.
void AddRow(std::byte* data, uint64_t count, uint64_t bytes, uint64_t stride, Pieces* pieces) {
  if (stride == bytes) return pieces->Add(data, count * bytes);
  for (uint64_t i = 0; i < count; ++i) pieces->Add(data + i * stride, bytes);
}

// Calls add(first token's address, tokens) for each stretch of a run within one page.
template <typename Add>
void ForEachPage(const KvTensor& tensor, std::span<const SlotRun> runs, Add add) {
  for (const SlotRun& run : runs) {
    uint64_t slot = run.start_slot;
    for (uint64_t left = run.tokens; left > 0;) {
      const uint64_t token = slot % tensor.block_tokens;
      const uint64_t here = std::min<uint64_t>(left, tensor.block_tokens - token);
      add(tensor.data + slot / tensor.block_tokens * tensor.block_stride +
              token * tensor.token_stride,
          here);
      slot += here;
      left -= here;
    }
  }
}

void AddTensor(const KvTensor& tensor, std::span<const SlotRun> runs, Pieces* pieces) {
  if (IsEmpty(tensor)) return;
  const uint64_t head_bytes = HeadBytes(tensor), token_bytes = TokenBytes(tensor);
  if (tensor.order == KvOrder::kHeadsFirst) {
    for (uint64_t head = 0; head < tensor.heads; ++head) {
      ForEachPage(tensor, runs, [&](std::byte* data, uint64_t tokens) {
        AddRow(data + head * tensor.head_stride, tokens, head_bytes, tensor.token_stride, pieces);
      });
    }
    return;
  }
  const bool dense_token = tensor.heads == 1 || tensor.head_stride == head_bytes;
  ForEachPage(tensor, runs, [&](std::byte* data, uint64_t tokens) {
    if (dense_token) return AddRow(data, tokens, token_bytes, tensor.token_stride, pieces);
    for (uint64_t token = 0; token < tokens; ++token)
      AddRow(data + token * tensor.token_stride, tensor.heads, head_bytes, tensor.head_stride,
             pieces);
  });
}

std::string Describe(const KvLayer& layer) {
  std::string text = fmt::format("(g{}", layer.group);
  for (const KvTensor& one : layer.tensors) {
    if (IsEmpty(one)) continue;
    // With one head both orders are the same bytes.
    const KvOrder order = one.heads == 1 ? KvOrder::kTokensFirst : one.order;
    text += fmt::format(" {}:{}:{}x{}", NameOf(one.dtype), NameOf(order), one.heads, one.head_size);
  }
  return text + ")";
}

}  // namespace

Result<KvLayout> KvLayout::Make(std::vector<KvLayer> layers) {
  if (layers.empty()) return Error(StatusCode::kInvalidArgument, "KV layout: no layers");
  KvLayout layout;
  layout.layers_ = std::move(layers);
  uint32_t last_group = 0;
  for (const KvLayer& layer : layout.layers_) last_group = std::max(last_group, layer.group);
  if (last_group >= layout.layers_.size())
    return Error(StatusCode::kInvalidArgument,
                 "KV layout: group {} of {} layers: groups are counted from 0 without gaps",
                 last_group, layout.layers_.size());
  layout.groups_.resize(last_group + 1);
  layout.places_.resize(layout.layers_.size());
  for (size_t layer = 0; layer < layout.layers_.size(); ++layer)
    EMS_RETURN_IF_ERROR(layout.AddLayer(layer));
  for (size_t group = 0; group < layout.groups_.size(); ++group) {
    if (layout.groups_[group].layers.empty())
      return Error(StatusCode::kInvalidArgument,
                   "KV layout: no layer is of group {}: groups are counted from 0 without gaps",
                   group);
  }
  EMS_RETURN_IF_ERROR(CheckApart(layout.layers_));
  EMS_CHECK(layout.places_.size() == layout.layers_.size());
  return layout;
}

Status KvLayout::AddLayer(size_t layer) {
  KvLayer& description = layers_[layer];
  Group& group = groups_[description.group];
  Place& place = places_[layer];
  place.token_bytes_before = group.token_bytes;
  for (size_t i = 0; i < description.tensors.size(); ++i) {
    KvTensor& tensor = description.tensors[i];
    if (const Status shape = CheckShape(tensor); !shape.ok())
      return Refuse(layer, i, Message(shape));
    if (IsEmpty(tensor)) continue;
    FillStrides(&tensor);
    // Before the sums below, so that nothing in them can be larger than memory.
    if (const auto extent = ExtentOf(tensor); !extent.ok())
      return Refuse(layer, i, Message(extent.status()));
    EMS_RETURN_IF_ERROR(JoinGroup(layer, i));
    place.token_bytes += TokenBytes(tensor);
  }
  if (place.token_bytes == 0)
    return Error(StatusCode::kInvalidArgument, "KV layout, layer {}: no tensor with bytes", layer);
  EMS_CHECK(place.token_bytes_before == group.token_bytes, "layer {} was laid twice", layer);
  group.token_bytes += place.token_bytes;
  group.layers.push_back(layer);
  return OkStatus();
}

Status KvLayout::JoinGroup(size_t layer, size_t tensor) {
  const KvTensor& one = layers_[layer].tensors[tensor];
  Group& group = groups_[layers_[layer].group];
  const uint64_t slots = one.blocks * one.block_tokens;
  if (group.slots == 0) {
    group.slots = slots;
    group.block_tokens = one.block_tokens;
  }
  if (group.slots == slots && group.block_tokens == one.block_tokens) return OkStatus();
  return Refuse(layer, tensor,
                fmt::format("{} blocks of {} tokens, but its group {} has {} of {}", one.blocks,
                            one.block_tokens, layers_[layer].group,
                            group.slots / group.block_tokens, group.block_tokens));
}

std::string KvLayout::Fingerprint() const {
  std::string text = "kv1";
  for (size_t first = 0; first < layers_.size();) {
    const std::string one = Describe(layers_[first]);
    size_t next = first + 1;
    while (next < layers_.size() && Describe(layers_[next]) == one) ++next;
    text += fmt::format(" {}*{}", next - first, one);
    first = next;
  }
  return text;
}

Status KvLayout::CheckRuns(uint32_t group, std::span<const SlotRun> runs) const {
  if (group >= groups_.size())
    return Error(StatusCode::kInvalidArgument, "KV layout: group {} of {}", group, groups_.size());
  const uint64_t have = groups_[group].slots;
  for (const SlotRun& run : runs) {
    if (run.tokens == 0) continue;
    if (run.start_slot >= have || run.tokens > have - run.start_slot)
      return Error(StatusCode::kOutOfRange, "slots {} + {} of group {}, which has {}",
                   static_cast<int64_t>(run.start_slot), run.tokens, group, have);
  }
  return OkStatus();
}

Status KvLayout::AppendParts(uint32_t group, std::span<const SlotRun> runs,
                             std::vector<MutableBytes>* parts) const {
  EMS_RETURN_IF_ERROR(CheckRuns(group, runs));
  Pieces pieces(parts);
  for (const size_t layer : groups_[group].layers) {
    for (const KvTensor& tensor : layers_[layer].tensors) AddTensor(tensor, runs, &pieces);
  }
  return OkStatus();
}

Status KvLayout::AppendLayerParts(size_t layer, std::span<const SlotRun> runs,
                                  std::vector<MutableBytes>* parts) const {
  if (layer >= layers_.size())
    return Error(StatusCode::kInvalidArgument, "KV layout: layer {} of {}", layer, layers_.size());
  EMS_RETURN_IF_ERROR(CheckRuns(layers_[layer].group, runs));
  Pieces pieces(parts);
  for (const KvTensor& tensor : layers_[layer].tensors) AddTensor(tensor, runs, &pieces);
  return OkStatus();
}

std::vector<SlotRun> RunsOf(std::span<const int64_t> slot_mapping) {
  std::vector<SlotRun> runs;
  for (const int64_t one : slot_mapping) {
    const auto slot = static_cast<uint64_t>(one);
    const bool follows = !runs.empty() && runs.back().start_slot + runs.back().tokens == slot &&
                         runs.back().tokens < std::numeric_limits<uint32_t>::max();
    if (follows)
      ++runs.back().tokens;
    else
      runs.push_back({slot, 1});
  }
  return runs;
}

uint64_t TokensOf(std::span<const SlotRun> runs) {
  uint64_t tokens = 0;
  for (const SlotRun& run : runs) tokens += run.tokens;
  return tokens;
}

}  // namespace ems::context
