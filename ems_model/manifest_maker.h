#pragma once
// Makes the manifest of a version from its source: which files there are, what their headers say,
// and how they are cut into blocks.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "ems_model/model_name.h"
#include "model_files/format/manifest.h"
#include "model_files/format/tensor_table.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

// The rule for a second read of a block that is read for the first time: over another connection,
// with the same bytes as result. Costs twice the source's bytes, once.
enum class SourceVerify : uint8_t {
  kAuto,    // where the source gives nothing to compare it with: plain http without a checksum
  kAlways,  // also where it does
  kNever,   // nowhere: what is damaged on the way may be cached, and loaded as if it were right
};

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
  SourceVerify verify = SourceVerify::kAuto;
  // Entity tags of an object store are taken for no sums: of a store whose tags are something else.
  bool ignore_tags = false;
  // Called by ModelCache::Add with a line of text, on the caller's thread, when the version is
  // there: on_warning when damage of its first read would not be noticed, on_note when that is
  // noticed by reading twice, or the version stays as it was added before. May be empty.
  std::function<void(const std::string&)> on_warning{};
  std::function<void(const std::string&)> on_note{};
};

enum class FileFormat : uint8_t { kOpaque, kSafetensors, kGguf };
// By the ending of its name.
FileFormat FormatOf(std::string_view path);
// The parser for that format; kOpaque has none.
Result<HeaderParse> ParseHeader(FileFormat format, ConstBytes first_bytes, uint64_t file_bytes,
                                std::string_view file);

// Of how many of its files damage on the way is noticed by nothing that is known before they are
// read: they come over plain http, and the source says no sum of them.
size_t UnprotectedFiles(const Manifest& manifest);

// A remark to the client that has added a version. Empty: none.
struct AddRemark {
  std::string text;
  bool warning = false;
};
// Of a version that was there before.
struct AddedAgain {
  bool elsewhere = false;  // its URL, credentials, rate or namespace are not those asked for
  std::optional<FirstRead> before{};  // how it was first read until now, if that has changed
};
// `kept`: what is there, which is not what was asked for if it had been added before.
AddRemark RemarkOf(const Manifest& kept, SourceVerify asked, const AddedAgain& again = {});

// Lists `source` and reads the headers of its *.safetensors and *.gguf files, several at a time.
// What nothing protects on the way has to be the same twice in a row, lists included; every other
// time it is read from `second`, which shares no connection with `source` (null: from `source`). A
// GGUF file of a version or type not known here is cut like any other file.
// Errors: those of WeightSource    kInvalidArgument  a damaged header, a pattern that nothing
// matches, names or sizes against CheckManifest    kResourceExhausted  too many blocks
//   kDataLoss  a list or a header that is never the same twice
// Cost: one or two small reads a file, in an object store up to three requests more; where nothing
// protects them, reads and lists twice; blocks up to the deadline.
Result<Manifest> MakeManifest(WeightSource* source, const std::string& url, const ModelName& name,
                              const std::string& name_space, const AddOptions& options,
                              Deadline deadline, WeightSource* second = nullptr);

}  // namespace ems::model
