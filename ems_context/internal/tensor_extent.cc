#include "ems_context/internal/tensor_extent.h"

#include <algorithm>
#include <limits>

namespace ems::context {
namespace {

__extension__ using Wide = unsigned __int128;
__extension__ using Offset = __int128;  // between two addresses, with sign

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

uint64_t Times(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return product > kMost ? kMost : static_cast<uint64_t>(product);
}

Offset FloorDivide(Offset a, Offset b) { return a / b - (a % b < 0 ? 1 : 0); }
Offset CeilDivide(Offset a, Offset b) { return -FloorDivide(-a, b); }

// Compares two extents level by level. A level is the number of dimensions already fixed.
class Comparison final {
 public:
  Comparison(const TensorExtent& a, const TensorExtent& b) : a_(a), b_(b) {}

  // `shift`: where b's part begins, seen from a's.
  bool Share(size_t level_a, size_t level_b, Offset shift) {
    if (++steps_ > kStepsMax) return true;
    const Offset bytes_a = a_.bytes[level_a], bytes_b = b_.bytes[level_b];
    if (shift >= bytes_a || -shift >= bytes_b) return false;
    if (level_a == 3 && level_b == 3) return true;
    const auto dimension = [](const TensorExtent& one, size_t level) {
      return level < 3 ? one.dimensions[level] : TensorExtent::Dimension{};
    };
    const auto of_a = dimension(a_, level_a), of_b = dimension(b_, level_b);
    if (of_a.count == 1 && level_a < 3) return Share(level_a + 1, level_b, shift);
    if (of_b.count == 1 && level_b < 3) return Share(level_a, level_b + 1, shift);
    // With equal strides only the distance of the two indices matters.
    if (level_a < 3 && level_b < 3 && of_a.stride == of_b.stride)
      return ShareAny(level_a + 1, level_b + 1, shift, of_a.stride, -Offset(of_a.count - 1),
                      Offset(of_b.count - 1));
    const bool take_b = level_a == 3 || (level_b < 3 && of_b.stride > of_a.stride);
    if (take_b)
      return ShareAny(level_a, level_b + 1, shift, of_b.stride, 0, Offset(of_b.count - 1));
    return ShareAny(level_a + 1, level_b, shift, of_a.stride, -Offset(of_a.count - 1), 0);
  }

 private:
  static constexpr uint64_t kStepsMax = 1'000'000;

  // Any of shift + i × stride, i in [first, last]; those that cannot meet are skipped.
  bool ShareAny(size_t level_a, size_t level_b, Offset shift, uint64_t stride, Offset first,
                Offset last) {
    const Offset bytes_a = a_.bytes[level_a], bytes_b = b_.bytes[level_b], step = stride;
    first = std::max(first, CeilDivide(-bytes_b + 1 - shift, step));
    last = std::min(last, FloorDivide(bytes_a - 1 - shift, step));
    for (Offset i = first; i <= last; ++i) {
      if (Share(level_a, level_b, shift + i * step)) return true;
    }
    return false;
  }

  const TensorExtent& a_;
  const TensorExtent& b_;
  uint64_t steps_ = 0;
};

}  // namespace

uint64_t HeadBytes(const KvTensor& tensor) {
  return uint64_t{tensor.head_size} * BytesOf(tensor.dtype);
}
uint64_t TokenBytes(const KvTensor& tensor) { return Times(HeadBytes(tensor), tensor.heads); }

void FillStrides(KvTensor* tensor) {
  const bool tokens_first = tensor->order == KvOrder::kTokensFirst;
  uint64_t& inner = tokens_first ? tensor->head_stride : tensor->token_stride;
  uint64_t& outer = tokens_first ? tensor->token_stride : tensor->head_stride;
  if (inner == 0) inner = HeadBytes(*tensor);
  if (outer == 0) outer = Times(inner, tokens_first ? tensor->heads : tensor->block_tokens);
  if (tensor->block_stride == 0)
    tensor->block_stride = Times(outer, tokens_first ? tensor->block_tokens : tensor->heads);
}

Result<TensorExtent> ExtentOf(const KvTensor& tensor) {
  TensorExtent extent;
  extent.start = reinterpret_cast<uintptr_t>(tensor.data);
  extent.leaf_bytes = HeadBytes(tensor);
  extent.dimensions = {{{tensor.blocks, tensor.block_stride},
                        {tensor.block_tokens, tensor.token_stride},
                        {tensor.heads, tensor.head_stride}}};
  // A stride over a single element is never taken: it counts as narrowest.
  std::stable_sort(extent.dimensions.begin(), extent.dimensions.end(),
                   [](const auto& a, const auto& b) {
                     return (a.count > 1 ? a.stride : 0) > (b.count > 1 ? b.stride : 0);
                   });
  Wide bytes = extent.leaf_bytes;
  extent.bytes[3] = extent.leaf_bytes;
  for (size_t i = 3; i-- > 0;) {
    const TensorExtent::Dimension& one = extent.dimensions[i];
    if (one.count > 1 && one.stride < bytes)
      return Error(StatusCode::kInvalidArgument,
                   "elements overlap: a stride of {} B, but {} B lie within it", one.stride,
                   static_cast<uint64_t>(bytes));
    if (one.count > 1) bytes += static_cast<Wide>(one.count - 1) * one.stride;
    if (bytes > tensor.bytes || bytes > kMost - extent.start)
      return Error(StatusCode::kInvalidArgument,
                   "too small: {} B given, the shape and strides need {} B{}", tensor.bytes,
                   bytes > kMost ? kMost : static_cast<uint64_t>(bytes), i > 0 ? " and more" : "");
    extent.bytes[i] = static_cast<uint64_t>(bytes);
  }
  return extent;
}

bool ShareAByte(const TensorExtent& a, const TensorExtent& b) {
  return Comparison(a, b).Share(0, 0, Offset(b.start) - Offset(a.start));
}

}  // namespace ems::context
