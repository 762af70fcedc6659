#include "model_files/format/tensor_slice.h"

#include "common/bytes.h"
#include "common/check.h"

namespace ems::model {
namespace {

// Elements of the dimensions [begin, end). TensorBytes has ruled out that all of them together
// overflow, but beside an extent of 0 a product of some may; then there are no bytes, and nobody
// asks.
uint64_t Product(const std::vector<uint64_t>& shape, size_t begin, size_t end) {
  EMS_CHECK(begin <= end && end <= shape.size(), "dimensions [{}, {}) of {}", begin, end,
            shape.size());
  uint64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= shape[i];
  return product;
}

Status CheckSpec(const TensorInfo& tensor, const SliceSpec& spec) {
  if (!spec.range && (spec.ranks == 0 || spec.rank >= spec.ranks)) {
    return Error(StatusCode::kInvalidArgument, "tensor '{}': rank {} of {} ranks",
                 Printable(tensor.name), spec.rank, spec.ranks);
  }
  if (spec.axis >= tensor.shape.size()) {
    return Error(StatusCode::kInvalidArgument, "tensor '{}' has no axis {}: its shape is {}",
                 Printable(tensor.name), spec.axis, ShapeText(tensor.shape));
  }
  const uint64_t extent = tensor.shape[spec.axis];
  if (spec.range && (spec.range->begin > spec.range->end || spec.range->end > extent)) {
    return Error(StatusCode::kInvalidArgument, "tensor '{}' of shape {}: axis {} has no [{}, {})",
                 Printable(tensor.name), ShapeText(tensor.shape), spec.axis, spec.range->begin,
                 spec.range->end);
  }
  if (!spec.range && extent % spec.ranks != 0) {
    return Error(
        StatusCode::kInvalidArgument,
        "tensor '{}' of shape {}: axis {} has {} elements, which {} ranks cannot share evenly",
        Printable(tensor.name), ShapeText(tensor.shape), spec.axis, extent, spec.ranks);
  }
  auto bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return Prefixed(bytes.status(), "tensor '" + Printable(tensor.name) + "'");
  if (*bytes != tensor.bytes) {
    return Error(StatusCode::kInvalidArgument,
                 "tensor '{}' has {} bytes, but {} of shape {} needs {}", Printable(tensor.name),
                 tensor.bytes, TraitsOf(tensor.dtype).name, ShapeText(tensor.shape), *bytes);
  }
  return OkStatus();
}

std::string SpecText(const SliceSpec& spec) {
  if (!spec.range) return fmt::format("{} ranks", spec.ranks);
  return fmt::format("[{}, {})", spec.range->begin, spec.range->end);
}

}  // namespace

Result<TensorSlice> SliceTensor(const TensorInfo& tensor, const SliceSpec& spec) {
  EMS_RETURN_IF_ERROR(CheckSpec(tensor, spec));
  const uint64_t extent = tensor.shape[spec.axis];
  const uint64_t count = spec.range ? spec.range->end - spec.range->begin : extent / spec.ranks;
  const uint64_t begin = spec.range ? spec.range->begin : spec.rank * count;
  TensorSlice slice;
  slice.shape = tensor.shape;
  slice.shape[spec.axis] = count;
  if (tensor.bytes == 0 || count == 0) return slice;
  const DTypeTraits& traits = TraitsOf(tensor.dtype);
  const uint64_t outer = Product(tensor.shape, 0, spec.axis);
  const uint64_t inner = Product(tensor.shape, spec.axis + 1, tensor.shape.size());
  const uint64_t run = count * inner;
  // Cuts are at these multiples, so this is enough for all of them.
  for (const uint64_t elements : {run, begin * inner, extent * inner}) {
    if (elements % traits.block_elements == 0) continue;
    return Error(StatusCode::kInvalidArgument,
                 "tensor '{}' of shape {}: axis {} for {} cuts runs of {} elements, through "
                 "{}'s blocks of {}",
                 Printable(tensor.name), ShapeText(tensor.shape), spec.axis, SpecText(spec),
                 elements, traits.name, traits.block_elements);
  }
  const auto bytes_of = [&](uint64_t elements) {
    return elements / traits.block_elements * traits.block_bytes;
  };
  slice.bytes = outer * bytes_of(run);
  slice.first_offset = bytes_of(begin * inner);
  slice.stride_bytes = bytes_of(extent * inner);
  // Who takes everything has runs that touch.
  slice.ranges = count == extent ? 1 : outer;
  EMS_CHECK(slice.ranges > 0 && slice.bytes % slice.ranges == 0 && slice.bytes <= tensor.bytes,
            "{} bytes in {} ranges of a tensor of {}", slice.bytes, slice.ranges, tensor.bytes);
  slice.range_bytes = slice.bytes / slice.ranges;
  return slice;
}

}  // namespace ems::model
