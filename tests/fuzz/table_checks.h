#pragma once
// What holds for each table that a parser let through, whatever the file was.
#include <cstdint>
#include <set>
#include <string_view>

#include "common/check.h"
#include "model_files/format/block_cutter.h"
#include "model_files/format/tensor_slice.h"
#include "model_files/format/tensor_table.h"

namespace ems::model {

inline void CheckBlocks(const TensorTable& table, uint64_t file_bytes) {
  const CutFile file{.path = "fuzz", .bytes = file_bytes, .table = &table};
  const auto blocks = CutIntoBlocks({&file, 1}, kBlockBytesMax);
  if (!blocks.ok()) {  // too many; there is no other reason
    EMS_CHECK(blocks.status().code() == StatusCode::kResourceExhausted);
    return;
  }
  uint64_t at = 0;
  for (const BlockSpan& block : *blocks) {
    EMS_CHECK(block.offset == at && block.bytes > 0 && block.bytes <= kBlockBytesMax);
    at += block.bytes;
  }
  EMS_CHECK(at == file_bytes);
}

inline void CheckSlices(const TensorInfo& tensor) {
  for (uint32_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const auto slice = SliceTensor(tensor, {.axis = axis, .rank = 1, .ranks = 2});
    if (!slice.ok() || slice->ranges == 0) continue;
    const SliceRange last = slice->Range(slice->ranges - 1);
    EMS_CHECK(last.offset + last.bytes <= tensor.bytes);
    EMS_CHECK(last.destination + last.bytes == slice->bytes && slice->bytes * 2 == tensor.bytes);
  }
}

inline void CheckTable(const TensorTable& table, uint64_t file_bytes) {
  EMS_CHECK(table.data_begin <= file_bytes && table.tensors.size() <= kTensorsMax);
  std::set<std::string_view> names;
  uint64_t end = table.data_begin;
  for (const TensorInfo& tensor : table.tensors) {
    EMS_CHECK(names.insert(tensor.name).second && IsUtf8(tensor.name));
    EMS_CHECK(tensor.offset >= end && tensor.offset <= file_bytes);
    EMS_CHECK(tensor.bytes <= file_bytes - tensor.offset);
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    EMS_CHECK(bytes.ok() && *bytes == tensor.bytes);
    end = tensor.offset + tensor.bytes;
    CheckSlices(tensor);
  }
  // Some ten thousand blocks take as long as thousands of other inputs.
  if (file_bytes <= uint64_t{1} << 40) CheckBlocks(table, file_bytes);
}

}  // namespace ems::model
