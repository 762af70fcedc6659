// Any bytes, as a GGUF file that ends with them and as the beginning of a longer one: an error, a
// number of bytes that is missing, or a table that keeps its invariants and can be cut and sliced.
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/check.h"
#include "model_files/format/gguf.h"
#include "tests/fuzz/table_checks.h"

namespace ems::model {
namespace {

void CheckFile(ConstBytes bytes, uint64_t file_bytes) {
  const auto parse = ParseGguf(bytes, file_bytes, "fuzz");
  if (!parse.ok()) return;
  if (!parse->done()) {
    EMS_CHECK(parse->bytes_needed > bytes.size() && parse->bytes_needed <= file_bytes);
    EMS_CHECK(parse->table == TensorTable());
    return;
  }
  CheckTable(parse->table, file_bytes);
  // Half of the bytes: the same table, or a wish for more; never an error.
  const auto half = ParseGguf(bytes.first(bytes.size() / 2), file_bytes, "fuzz");
  EMS_CHECK(half.ok());
  EMS_CHECK(half->done() ? half->table == parse->table : half->bytes_needed > bytes.size() / 2);
}

}  // namespace
}  // namespace ems::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ems::ConstBytes bytes = std::as_bytes(std::span(data, size));
  ems::model::CheckFile(bytes, size);
  ems::model::CheckFile(bytes, size + 4096);
  ems::model::CheckFile(bytes, uint64_t{1} << 50);
  return 0;
}
