#pragma once
// A target that wants the headers of a version's files with tensors, and nothing else.
//
// Bound: what the parsers ask for, which is bounded by the formats.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/bytes.h"
#include "ems_model/load_target.h"
#include "model_files/format/manifest.h"
#include "model_files/format/tensor_table.h"

namespace ems::model::internal {

// Load, then Parse, until done(). Threading: as LoadTarget; Parse between loads.
class HeaderTarget final : public LoadTarget {
 public:
  // `manifest` must outlive it.
  explicit HeaderTarget(const Manifest* manifest);

  bool done() const { return open_.empty(); }
  // Reads what has arrived; headers that are longer than it want more.
  // Errors: kInvalidArgument  a damaged header
  Status Parse();
  // Shape: [files]; none for files without tensors, or in a version of their format not known here.
  std::vector<std::optional<TensorTable>> TakeTables() { return std::move(tables_); }

  Status Begin(std::span<const LoadFile>) override { return OkStatus(); }
  uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override;
  Status Arrived(uint32_t, uint64_t, uint64_t) override { return OkStatus(); }
  Status End(const Status&) override { return OkStatus(); }

 private:
  struct Head {
    uint64_t there = 0, wanted = 0;
    std::vector<std::byte> bytes;
  };
  // From now on the first `bytes` of `file` are wanted; earlier ones are there.
  void Want(uint32_t file, uint64_t bytes);

  const Manifest& manifest_;
  std::vector<uint32_t> open_;  // files whose header is not complete
  std::vector<Head> heads_;
  std::vector<std::optional<TensorTable>> tables_;
};

}  // namespace ems::model::internal
