// table_dump FILE AXIS RANK RANKS: the tensor table of a safetensors or GGUF file and each tensor's
// slice, as a line of JSON. It reads a file as the product does: a few bytes, then as many as the
// parser asks for. tables_test.py compares.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model_files/format/gguf.h"
#include "model_files/format/safetensors.h"
#include "model_files/format/tensor_slice.h"

namespace ems::model {
namespace {

Result<TensorTable> ReadTable(const std::string& path) {
  const uint64_t file_bytes = std::filesystem::file_size(path);
  std::string first;
  for (uint64_t want = 8;;) {
    first.resize(want);
    std::ifstream(path, std::ios::binary).read(first.data(), static_cast<std::streamsize>(want));
    auto parse = path.ends_with(".gguf") ? ParseGguf(AsBytes(first), file_bytes, path)
                                         : ParseSafetensors(AsBytes(first), file_bytes, path);
    if (!parse.ok()) return parse.status();
    if (parse->done()) return std::move(parse->table);
    want = parse->bytes_needed;
  }
}

nlohmann::json SliceJson(const TensorInfo& tensor, const SliceSpec& spec) {
  const auto slice = SliceTensor(tensor, spec);
  if (!slice.ok()) return ToString(slice.status());
  nlohmann::json ranges = nlohmann::json::array();
  for (uint64_t i = 0; i < slice->ranges; ++i) {
    const SliceRange range = slice->Range(i);
    ranges.push_back({range.offset, range.bytes, range.destination});
  }
  return ranges;
}

int Run(const std::string& path, const SliceSpec& spec) {
  const auto table = ReadTable(path);
  if (!table.ok()) {
    std::fputs((ToString(table.status()) + "\n").c_str(), stderr);
    return 1;
  }
  nlohmann::json json = {{"metadata", table->metadata}, {"tensors", nlohmann::json::array()}};
  for (const TensorInfo& tensor : table->tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", TraitsOf(tensor.dtype).name},
                               {"shape", tensor.shape},
                               {"offset", tensor.offset},
                               {"bytes", tensor.bytes},
                               {"slice", SliceJson(tensor, spec)}});
  }
  std::fputs((json.dump() + "\n").c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace ems::model

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto number = [&](int i) {
    return static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10));
  };
  return ems::model::Run(argv[1], {.axis = number(2), .rank = number(3), .ranks = number(4)});
}
