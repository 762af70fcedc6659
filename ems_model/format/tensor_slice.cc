#include "ems_model/format/tensor_slice.h"

#include "common/bytes.h"

namespace ems::model {
namespace {

// Elements of the dimensions [begin, end). TensorBytes has ruled out that all of them together
// overflow, but beside an extent of 0 a product of some may; then there are no bytes, and nobody
// asks.
uint64_t Product(const std::vector<uint64_t>& shape, size_t begin, size_t end) {
  uint64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= shape[i];
  return product;
}

Status CheckSpec(const TensorInfo& tensor, const SliceSpec& spec) {
  if (spec.ranks == 0 || spec.rank >= spec.ranks) {
    return Error(StatusCode::kInvalidArgument, "tensor '{}': rank {} of {} ranks",
                 Printable(tensor.name), spec.rank, spec.ranks);
  }
  if (spec.axis >= tensor.shape.size()) {
    return Error(StatusCode::kInvalidArgument, "tensor '{}' has no axis {}: its shape is {}",
                 Printable(tensor.name), spec.axis, ShapeText(tensor.shape));
  }
  const uint64_t extent = tensor.shape[spec.axis];
  if (extent % spec.ranks != 0) {
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

}  // namespace

Result<TensorSlice> SliceTensor(const TensorInfo& tensor, const SliceSpec& spec) {
  EMS_RETURN_IF_ERROR(CheckSpec(tensor, spec));
  TensorSlice slice;
  slice.shape = tensor.shape;
  slice.shape[spec.axis] /= spec.ranks;
  if (tensor.bytes == 0) return slice;
  const DTypeTraits& traits = TraitsOf(tensor.dtype);
  const uint64_t outer = Product(tensor.shape, 0, spec.axis);
  const uint64_t run = Product(slice.shape, spec.axis, slice.shape.size());
  // Every cut is at a multiple of `run` elements, so this is enough for all of them.
  if (run % traits.block_elements != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "tensor '{}' of shape {}: axis {} for {} ranks cuts runs of {} elements, through "
                 "{}'s blocks of {}",
                 Printable(tensor.name), ShapeText(tensor.shape), spec.axis, spec.ranks, run,
                 traits.name, traits.block_elements);
  }
  const uint64_t run_bytes = run / traits.block_elements * traits.block_bytes;
  slice.bytes = tensor.bytes / spec.ranks;
  // One rank takes everything: its runs touch.
  slice.ranges = spec.ranks == 1 ? 1 : outer;
  slice.range_bytes = slice.bytes / slice.ranges;
  slice.first_offset = spec.rank * run_bytes;
  slice.stride_bytes = spec.ranks * run_bytes;
  return slice;
}

}  // namespace ems::model
