#pragma once
// The bytes of a trace, plain or gzip, a line or a JSON object at a time.
//
// Bound: kLineBytesMax a line; kObjectBytesMax an object, nested kObjectDepthMax deep.
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::bench {

inline constexpr size_t kLineBytesMax = size_t{1} << 20;
inline constexpr size_t kObjectBytesMax = size_t{16} << 20;
inline constexpr size_t kObjectDepthMax = 64;

// A file is read by lines or by objects, not by both. Threading: one thread.
class TraceFile final {
 public:
  // zlib passes files through that are not compressed.
  // Errors: kNotFound  no such file    kInvalidArgument  it cannot be opened
  static Result<TraceFile> Open(const std::string& path);

  // The next line without its end; nullopt after the last. The view lives until the next call.
  // Errors: kOutOfRange  the line is too long    kDataLoss  cut or damaged. They name file and line
  Result<std::optional<std::string_view>> NextLine();
  // The text of the next JSON object, of those that stand in one list or one after the other. Only
  // its brackets are looked at. Errors: as NextLine; kInvalidArgument  what is there is no object
  Result<std::optional<std::string_view>> NextObject();
  // Of the last line, or where the last object began; the first is 1.
  uint64_t line_number() const { return line_number_; }
  // "path:line: " before the text of `status`.
  Status Located(const Status& status) const;

 private:
  struct CloseGzip {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };

  TraceFile(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  Status CheckRead() const;
  int NextByte();
  Result<bool> FindObject();

  std::string path_;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
  std::string buffer_;  // the line or object
  uint64_t lines_ = 0;  // that have ended
  uint64_t line_number_ = 0;
  enum class List { kNone, kOpen, kClosed } list_ = List::kNone;
  bool has_object_ = false;
};

}  // namespace ems::bench
