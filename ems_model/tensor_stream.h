#pragma once
// Loads tensors, or the slices of them that one rank of tensor parallelism wants, and hands each
// one over as soon as it is complete.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/guarded.h"
#include "ems_model/load_target.h"
#include "model_files/format/tensor_slice.h"

namespace ems::model {

// Memory for one tensor, 64-byte aligned, contents undefined. Move-only.
class TensorMemory final {
 public:
  TensorMemory() = default;
  explicit TensorMemory(uint64_t bytes);
  std::byte* data() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

// A tensor that is complete. `file`, `info` and `slice` live until the load has ended.
struct LoadedTensor {
  std::string_view file;
  const TensorInfo* info = nullptr;
  const TensorSlice* slice = nullptr;  // its shape is that of `bytes`, row-major, dense
  MutableBytes bytes;
  TensorMemory memory;  // what `bytes` lies in; empty when the memory is the caller's
};

enum class TensorOrder : uint8_t {
  kAny,   // as they become complete
  kFile,  // files in the manifest's order, tensors by offset; what comes early waits
};

// Files without tensors are not loaded. Bound: memory of all wanted slices, reserved when the load
// begins and touched as bytes arrive.
// Threading: as LoadTarget; `on_tensor` is called on loading threads, one call at a time.
class TensorStream final : public LoadTarget {
 public:
  struct Options {
    // Which tensors, and which slice of them; nothing: not this one. Empty: all of them, whole.
    std::function<std::optional<SliceSpec>(std::string_view file, const TensorInfo& tensor)>
        choose{};
    // The caller's memory for a slice, exactly its size; empty: it is allocated here.
    std::function<Result<MutableBytes>(std::string_view file, const TensorInfo& tensor,
                                       const TensorSlice& slice)>
        room{};
    TensorOrder order = TensorOrder::kAny;
  };
  // Takes the tensor. An error ends the load.
  using OnTensor = std::function<Status(LoadedTensor tensor)>;

  TensorStream(Options options, OnTensor on_tensor);
  ~TensorStream() override;
  TensorStream(const TensorStream&) = delete;
  TensorStream& operator=(const TensorStream&) = delete;

  bool wants_tables() const override { return true; }
  // Errors: kInvalidArgument  a slice that the tensor does not have, room of another size
  //   kResourceExhausted  no memory    as `room`
  Status Begin(std::span<const LoadFile> files) override;
  uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override;
  Status Arrived(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status End(const Status& load) override;

 private:
  struct Tensor;
  struct Delivery {
    std::vector<Tensor*> complete;  // and not handed over
    size_t next = 0;                // of order_, for kFile
    bool delivering = false;
    Status refused;
  };
  Status Add(const LoadFile& file, const TensorInfo& info, const SliceSpec& spec);
  // The wanted tensors of `file` that touch [offset, offset + bytes).
  std::span<const std::unique_ptr<Tensor>> Touching(uint32_t file, uint64_t offset,
                                                    uint64_t bytes) const;
  Status Deliver(const std::vector<Tensor*>& complete);
  Tensor* NextOf(Delivery* delivery) const;

  const Options options_;
  const OnTensor on_tensor_;
  std::vector<std::vector<std::unique_ptr<Tensor>>> files_;  // by offset
  std::vector<Tensor*> order_;
  Guarded<Delivery> delivery_;
};

}  // namespace ems::model
