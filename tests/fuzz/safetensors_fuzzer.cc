// Any bytes, as a safetensors file: an error, or a table that
// keeps its invariants and can be cut and sliced. The first bytes are a JSON header as they are,
// too, so that mutations need no valid length.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/check.h"
#include "model_files/format/safetensors.h"
#include "tests/fuzz/table_checks.h"

namespace ems::model {
namespace {

void CheckFile(ConstBytes bytes) {
  const auto parse = ParseSafetensors(bytes, bytes.size(), "fuzz");
  if (!parse.ok()) return;
  EMS_CHECK(parse->done());  // it was given the whole file
  CheckTable(parse->table, bytes.size());
  // Without holes: the sizes are those of the file.
  uint64_t end = parse->table.data_begin;
  for (const TensorInfo& tensor : parse->table.tensors) end += tensor.bytes;
  EMS_CHECK(end == bytes.size());
  const auto header = ParseSafetensors(bytes.first(parse->table.data_begin), bytes.size(), "fuzz");
  EMS_CHECK(header.ok() && header->done() && header->table == parse->table);
}

}  // namespace
}  // namespace ems::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ems::ConstBytes bytes = std::as_bytes(std::span(data, size));
  ems::model::CheckFile(bytes);
  // As a header with the length it has, and as much data as its last tensor wants, without that
  // data being there.
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{size} >> (8 * i));
  file.append(ems::AsText(bytes));
  for (const uint64_t data_bytes : {0u, 4u, 64u, 4096u}) {
    const auto parse =
        ems::model::ParseSafetensors(ems::AsBytes(file), file.size() + data_bytes, "fuzz");
    if (parse.ok()) ems::model::CheckTable(parse->table, file.size() + data_bytes);
  }
  return 0;
}
