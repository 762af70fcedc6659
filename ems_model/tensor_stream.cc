#include "ems_model/tensor_stream.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/check.h"

namespace ems::model {
namespace {

constexpr std::align_val_t kAlignment{64};

// How many of the slice's bytes lie before byte `at` of the tensor.
uint64_t SliceBytesBefore(const TensorSlice& slice, uint64_t at) {
  if (slice.bytes == 0 || at <= slice.first_offset) return 0;
  const uint64_t from_first = at - slice.first_offset;
  if (slice.ranges == 1) return std::min(from_first, slice.range_bytes);
  const uint64_t whole = from_first / slice.stride_bytes;
  if (whole >= slice.ranges) return slice.bytes;
  const uint64_t rest = std::min(from_first - whole * slice.stride_bytes, slice.range_bytes);
  return whole * slice.range_bytes + rest;
}

}  // namespace

TensorMemory::TensorMemory(uint64_t bytes)
    : bytes_(static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow))) {}

void TensorMemory::Free::operator()(std::byte* bytes) const {
  ::operator delete(bytes, kAlignment);
}

struct TensorStream::Tensor {
  std::string file;
  TensorInfo info;
  TensorSlice slice;
  MutableBytes bytes;
  TensorMemory memory;
  std::atomic<uint64_t> left{0};
  bool complete = false;  // guarded by delivery_

  uint64_t end() const { return info.offset + info.bytes; }
  // The slice's bytes in [offset, offset + bytes) of the file, as [from, to) of the slice.
  std::pair<uint64_t, uint64_t> Part(uint64_t offset, uint64_t size) const {
    const uint64_t from = std::max(offset, info.offset) - info.offset;
    const uint64_t to = std::min(offset + size, end()) - info.offset;
    return {SliceBytesBefore(slice, from), SliceBytesBefore(slice, to)};
  }
};

TensorStream::TensorStream(Options options, OnTensor on_tensor)
    : options_(std::move(options)), on_tensor_(std::move(on_tensor)) {}

TensorStream::~TensorStream() = default;

Status TensorStream::Begin(std::span<const LoadFile> files) {
  files_.clear();
  order_.clear();
  {
    auto delivery = delivery_.Lock();
    *delivery = {};
  }
  for (const LoadFile& file : files) {
    files_.emplace_back();
    if (file.table == nullptr) continue;
    for (const TensorInfo& info : file.table->tensors) {
      std::optional<SliceSpec> spec = SliceSpec{};
      if (options_.choose) spec = options_.choose(file.path, info);
      if (spec) EMS_RETURN_IF_ERROR(Add(file, info, *spec));
    }
  }
  std::vector<Tensor*> empty;
  for (Tensor* tensor : order_) {
    if (tensor->slice.bytes == 0) empty.push_back(tensor);
  }
  return Deliver(empty);
}

Status TensorStream::Add(const LoadFile& file, const TensorInfo& info, const SliceSpec& spec) {
  auto tensor = std::make_unique<Tensor>();
  if (!spec.range && spec.ranks == 1 &&
      spec.rank == 0) {  // whole: also types that cannot be cut, and scalars
    tensor->slice = {.shape = info.shape,
                     .bytes = info.bytes,
                     .ranges = info.bytes == 0 ? 0U : 1U,
                     .first_offset = 0,
                     .range_bytes = info.bytes,
                     .stride_bytes = info.bytes};
  } else {
    EMS_ASSIGN_OR_RETURN(tensor->slice, SliceTensor(info, spec));
  }
  tensor->file = file.path;
  tensor->info = info;
  tensor->left = tensor->slice.bytes;
  if (options_.room) {
    EMS_ASSIGN_OR_RETURN(tensor->bytes, options_.room(file.path, info, tensor->slice));
    if (tensor->bytes.size() != tensor->slice.bytes) {
      return Error(StatusCode::kInvalidArgument, "room of {} bytes for {} of {}",
                   tensor->bytes.size(), info.name, tensor->slice.bytes);
    }
  } else if (tensor->slice.bytes > 0) {
    tensor->memory = TensorMemory(tensor->slice.bytes);
    if (tensor->memory.data() == nullptr) {
      return Error(StatusCode::kResourceExhausted, "no memory for {} of {}", info.name,
                   FormatBytes(tensor->slice.bytes));
    }
    tensor->bytes = MutableBytes(tensor->memory.data(), tensor->slice.bytes);
  }
  order_.push_back(tensor.get());
  files_.back().push_back(std::move(tensor));
  return OkStatus();
}

std::span<const std::unique_ptr<TensorStream::Tensor>> TensorStream::Touching(
    uint32_t file, uint64_t offset, uint64_t bytes) const {
  EMS_CHECK(file < files_.size(), "file {} of {}", file, files_.size());
  const auto& tensors = files_[file];
  const auto first = std::ranges::upper_bound(tensors, offset, {},
                                              [](const auto& tensor) { return tensor->end(); });
  const auto last = std::ranges::lower_bound(
      tensors, offset + bytes, {}, [](const auto& tensor) { return tensor->info.offset; });
  if (first >= last) return {};
  return {first, last};
}

uint64_t TensorStream::Wants(uint32_t file, uint64_t offset, uint64_t bytes) {
  uint64_t sum = 0;
  for (const auto& tensor : Touching(file, offset, bytes)) {
    const auto [from, to] = tensor->Part(offset, bytes);
    sum += to - from;
  }
  return sum;
}

Status TensorStream::Place(uint32_t file, uint64_t offset, uint64_t bytes,
                           std::vector<LoadRange>* ranges) {
  for (const auto& tensor : Touching(file, offset, bytes)) {
    const TensorSlice& slice = tensor->slice;
    auto [at, to] = tensor->Part(offset, bytes);
    EMS_CHECK(at == to || slice.range_bytes > 0, "{} is cut into nothing", tensor->info.name);
    while (at < to) {
      const SliceRange range = slice.Range(at / slice.range_bytes);
      const uint64_t inside = at - range.destination;
      const uint64_t length = std::min(range.bytes - inside, to - at);
      ranges->push_back({.offset = tensor->info.offset + range.offset + inside,
                         .into = tensor->bytes.subspan(at, length)});
      at += length;
    }
  }
  return OkStatus();
}

Status TensorStream::Arrived(uint32_t file, uint64_t offset, uint64_t bytes) {
  std::vector<Tensor*> complete;
  for (const auto& tensor : Touching(file, offset, bytes)) {
    const auto [from, to] = tensor->Part(offset, bytes);
    if (from == to) continue;
    // Partner: the same on other threads; the last one sees all of their writes.
    const uint64_t left = tensor->left.fetch_sub(to - from, std::memory_order_acq_rel);
    EMS_CHECK(left >= to - from, "{} bytes of {} arrived twice", to - from - left,
              tensor->info.name);
    if (left == to - from) complete.push_back(tensor.get());
  }
  return complete.empty() ? OkStatus() : Deliver(complete);
}

TensorStream::Tensor* TensorStream::NextOf(Delivery* delivery) const {
  if (!delivery->refused.ok()) return nullptr;
  if (options_.order == TensorOrder::kFile) {
    if (delivery->next == order_.size() || !order_[delivery->next]->complete) return nullptr;
    return order_[delivery->next++];
  }
  if (delivery->complete.empty()) return nullptr;
  Tensor* const tensor = delivery->complete.back();
  delivery->complete.pop_back();
  return tensor;
}

// One thread at a time hands over; what others bring meanwhile it takes along.
Status TensorStream::Deliver(const std::vector<Tensor*>& complete) {
  auto delivery = delivery_.Lock();
  for (Tensor* tensor : complete) {
    tensor->complete = true;
    if (options_.order == TensorOrder::kAny) delivery->complete.push_back(tensor);
  }
  if (delivery->delivering) return delivery->refused;
  delivery->delivering = true;
  delivery.Unlock();
  while (true) {
    auto again = delivery_.Lock();
    Tensor* const tensor = NextOf(&*again);
    if (tensor == nullptr) {
      again->delivering = false;
      return again->refused;
    }
    again.Unlock();
    Status taken = on_tensor_({.file = tensor->file,
                               .info = &tensor->info,
                               .slice = &tensor->slice,
                               .bytes = tensor->bytes,
                               .memory = std::move(tensor->memory)});
    if (taken.ok()) continue;
    auto refused = delivery_.Lock();
    refused->refused = std::move(taken);
  }
}

Status TensorStream::End(const Status& load) {
  if (!load.ok()) return OkStatus();
  for (const Tensor* tensor : order_) {
    const uint64_t left = tensor->left.load(std::memory_order_acquire);
    if (left == 0) continue;
    return Error(StatusCode::kInternal, "{} bytes of {} are in no block", left, tensor->info.name);
  }
  return OkStatus();
}

}  // namespace ems::model
