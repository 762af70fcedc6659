#pragma once
// Makes the manifest of a version from its source: which files there are, what their headers say,
// and how they are cut into blocks.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "ems_model/format/manifest.h"
#include "ems_model/format/tensor_table.h"
#include "ems_model/model_name.h"
#include "ems_model/source/weight_source.h"

namespace ems::model {

struct AddOptions {
  uint64_t block_bytes = kBlockBytesDefault;
  // Only these files, by their paths below the source; empty: all that it lists. A file that is not
  // there is an error.
  std::vector<std::string> files{};
  // Of those, only files that match one of these patterns (fnmatch(3): "*.safetensors", '*' matches
  // slashes, too); empty: all.
  std::vector<std::string> include{};
  // The name under which servers find the source's keys in models.credentials_file; empty: none.
  std::string credentials{};
  uint64_t bytes_per_s_max = 0;  // of each server; 0: as fast as it goes
};

enum class FileFormat : uint8_t { kOpaque, kSafetensors, kGguf };
// By the ending of its name.
FileFormat FormatOf(std::string_view path);
// The parser for that format; kOpaque has none.
Result<HeaderParse> ParseHeader(FileFormat format, ConstBytes first_bytes, uint64_t file_bytes,
                                std::string_view file);

// Lists `source` and reads the headers of its *.safetensors and *.gguf files, several at a time. A
// GGUF file of a version or type not known here is cut like any other file.
// Errors: those of WeightSource    kInvalidArgument  a damaged header, a pattern that nothing
// matches, names or sizes against CheckManifest    kResourceExhausted  too many blocks
// Cost: one or two small reads a file; blocks up to the deadline.
Result<Manifest> MakeManifest(WeightSource* source, const std::string& url, const ModelName& name,
                              const std::string& name_space, const AddOptions& options,
                              Deadline deadline);

}  // namespace ems::model
