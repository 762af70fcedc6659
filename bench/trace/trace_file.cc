#include "bench/trace/trace_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace ems::bench {
namespace {

// Follows the brackets of an object. Threading: one thread.
class Brackets final {
 public:
  void Take(char byte) {
    if (in_string_) {
      if (!escaped_ && byte == '"') in_string_ = false;
      escaped_ = !escaped_ && byte == '\\';
    } else if (byte == '"') {
      in_string_ = true;
    } else if (byte == '{' || byte == '[') {
      ++depth_;
    } else if (byte == '}' || byte == ']') {
      --depth_;
    }
  }
  size_t depth() const { return depth_; }

 private:
  size_t depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace

Result<TraceFile> TraceFile::Open(const std::string& path) {
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rbe");
  if (file == nullptr)
    return Error(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument,
                 "cannot open trace {}: {}", path,
                 errno != 0 ? std::generic_category().message(errno) : "no memory");
  return TraceFile(path, file);
}

Status TraceFile::Located(const Status& status) const {
  return Prefixed(status, fmt::format("{}:{}", path_, line_number_));
}

Status TraceFile::CheckRead() const {
  int code = Z_OK;
  const char* const text = gzerror(file_.get(), &code);
  if (code == Z_OK || code == Z_STREAM_END) return OkStatus();
  return Located(Error(StatusCode::kDataLoss, "cannot read on, file cut or damaged: {}", text));
}

Result<std::optional<std::string_view>> TraceFile::NextLine() {
  line_number_ = ++lines_;
  buffer_.resize(kLineBytesMax + 2);  // a line, its end and a zero
  const z_off_t begin = gztell(file_.get());
  const char* const got = gzgets(file_.get(), buffer_.data(), static_cast<int>(buffer_.size()));
  EMS_RETURN_IF_ERROR(CheckRead());
  if (got == nullptr) return std::optional<std::string_view>();
  // Not up to the first zero: a damaged line may have one.
  std::string_view line(got, static_cast<size_t>(gztell(file_.get()) - begin));
  const bool whole = line.ends_with('\n');
  if (whole) line.remove_suffix(1);
  if (line.size() > kLineBytesMax || (!whole && gzeof(file_.get()) == 0))
    return Located(
        Error(StatusCode::kOutOfRange, "line of more than {} bytes: not a trace?", kLineBytesMax));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// -1 after the last.
int TraceFile::NextByte() {
  const int byte = gzgetc(file_.get());
  if (byte == '\n') ++lines_;
  return byte;
}

// Passes over what may stand between objects. False at the end.
Result<bool> TraceFile::FindObject() {
  while (true) {
    const int byte = NextByte();
    line_number_ = lines_ + 1;
    const bool space = byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
    if (space || (byte == ',' && has_object_ && list_ == List::kOpen)) continue;
    if (byte == '{' && list_ != List::kClosed) return true;
    if (byte == '[' && list_ == List::kNone && !has_object_) {
      list_ = List::kOpen;
    } else if (byte == ']' && list_ == List::kOpen) {
      list_ = List::kClosed;
    } else if (byte >= 0) {
      return Located(Error(StatusCode::kInvalidArgument,
                           "byte 0x{:02x} where a JSON object should begin", byte));
    } else {
      EMS_RETURN_IF_ERROR(CheckRead());
      if (list_ != List::kOpen) return false;
      return Located(Error(StatusCode::kDataLoss, "the list of objects does not end"));
    }
  }
}

Result<std::optional<std::string_view>> TraceFile::NextObject() {
  EMS_ASSIGN_OR_RETURN(const bool found, FindObject());
  if (!found) return std::optional<std::string_view>();
  has_object_ = true;
  buffer_.assign(1, '{');
  Brackets brackets;
  brackets.Take('{');
  while (brackets.depth() > 0) {
    const int byte = NextByte();
    if (byte < 0) {
      EMS_RETURN_IF_ERROR(CheckRead());
      return Located(Error(StatusCode::kDataLoss, "the object that begins here does not end"));
    }
    buffer_ += static_cast<char>(byte);
    brackets.Take(static_cast<char>(byte));
    if (brackets.depth() > kObjectDepthMax || buffer_.size() > kObjectBytesMax)
      return Located(Error(StatusCode::kOutOfRange,
                           "an object of more than {} bytes, or nested more than {} deep",
                           kObjectBytesMax, kObjectDepthMax));
  }
  return std::optional<std::string_view>(buffer_);
}

}  // namespace ems::bench
