#include "bench/trace/trace_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_set>

namespace ems::bench {
namespace {

constexpr size_t kLineBytesMax = size_t{1} << 20;
constexpr uint64_t kRequestsMax = 1'000'000;
constexpr uint64_t kReferencesMax = 50'000'000;
constexpr uint64_t kNumberMax = uint64_t{1} << 53;  // what JSON numbers hold exactly

using Json = nlohmann::json;

struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

// Lines of a file that may be compressed. zlib passes plain files through. Threading: one thread.
class LineReader final {
 public:
  static Result<LineReader> Open(const std::string& path) {
    errno = 0;
    gzFile file = gzopen(path.c_str(), "rbe");
    if (file == nullptr)
      return Error(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument,
                   "cannot open trace {}: {}", path,
                   errno != 0 ? std::generic_category().message(errno) : "no memory");
    return LineReader(path, file);
  }

  // The next line without its end; nullopt after the last. The view lives until the next call.
  Result<std::optional<std::string_view>> Next() {
    ++line_number_;
    const char* const got = gzgets(file_.get(), buffer_.data(), static_cast<int>(buffer_.size()));
    int code = Z_OK;
    const char* const text = gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END)
      return Error(StatusCode::kDataLoss, "{}:{}: cannot read on, file cut or damaged: {}", path_,
                   line_number_, text);
    if (got == nullptr) return std::optional<std::string_view>();
    std::string_view line = got;
    const bool whole = line.ends_with('\n');
    if (whole) line.remove_suffix(1);
    if (line.size() > kLineBytesMax || (!whole && gzeof(file_.get()) == 0))
      return Error(StatusCode::kOutOfRange, "{}:{}: line of more than {} bytes: not a trace?",
                   path_, line_number_, kLineBytesMax);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  uint64_t line_number() const { return line_number_; }

 private:
  LineReader(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
  std::string buffer_ = std::string(kLineBytesMax + 2, '\0');  // a line, its end and a zero
  uint64_t line_number_ = 0;
};

Result<uint64_t> NumberOf(const Json& number, std::string_view name) {
  if (number.is_number_unsigned() && number.get<uint64_t>() <= kNumberMax)
    return number.get<uint64_t>();
  return Error(StatusCode::kInvalidArgument, "\"{}\" must be a whole number from 0 to 2^53", name);
}

Result<uint64_t> Field(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end()) return Error(StatusCode::kInvalidArgument, "\"{}\" is missing", name);
  return NumberOf(*at, name);
}

Status CheckBlockCount(const TraceRequest& request) {
  const uint64_t needed = (request.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (request.input_tokens == 0)
    return Error(StatusCode::kInvalidArgument, "\"input_length\" must be at least 1");
  if (request.blocks.size() == needed) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "input of {} tokens has {} blocks of {} tokens, but \"hash_ids\" names {}",
               request.input_tokens, needed, kTraceBlockTokens, request.blocks.size());
}

Result<TraceRequest> ParseRequest(std::string_view line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Error(StatusCode::kInvalidArgument, "not a JSON object");
  TraceRequest request;
  EMS_ASSIGN_OR_RETURN(request.timestamp_ms, Field(object, "timestamp"));
  EMS_ASSIGN_OR_RETURN(request.input_tokens, Field(object, "input_length"));
  EMS_ASSIGN_OR_RETURN(request.output_tokens, Field(object, "output_length"));
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array())
    return Error(StatusCode::kInvalidArgument, "\"hash_ids\" is missing or not a list");
  request.blocks.reserve(ids->size());
  for (const Json& id : *ids) {
    EMS_ASSIGN_OR_RETURN(const uint64_t block, NumberOf(id, "hash_ids"));
    request.blocks.push_back(block);
  }
  EMS_RETURN_IF_ERROR(CheckBlockCount(request));
  return request;
}

// Appends `request` and keeps the sums.
Status Add(TraceRequest request, std::unordered_set<uint64_t>* seen, Trace* trace) {
  if (!trace->requests.empty() && request.timestamp_ms < trace->requests.back().timestamp_ms)
    return Error(StatusCode::kInvalidArgument, "\"timestamp\" {} lies before {} of the line above",
                 request.timestamp_ms, trace->requests.back().timestamp_ms);
  trace->block_references += request.blocks.size();
  trace->input_tokens += request.input_tokens;
  trace->request_blocks_max = std::max(trace->request_blocks_max, request.blocks.size());
  if (trace->requests.size() == kRequestsMax || trace->block_references > kReferencesMax)
    return Error(StatusCode::kOutOfRange, "more than {} requests or {} block references",
                 kRequestsMax, kReferencesMax);
  seen->insert(request.blocks.begin(), request.blocks.end());
  trace->requests.push_back(std::move(request));
  return OkStatus();
}

}  // namespace

Result<Trace> ReadTrace(const std::string& path, uint64_t requests_max) {
  EMS_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
  Trace trace;
  std::unordered_set<uint64_t> seen;
  while (requests_max == 0 || trace.requests.size() < requests_max) {
    EMS_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, lines.Next());
    if (!line) break;
    if (line->empty()) continue;
    Result<TraceRequest> request = ParseRequest(*line);
    const Status added = request.ok() ? Add(*std::move(request), &seen, &trace) : request.status();
    if (!added.ok()) return Prefixed(added, fmt::format("{}:{}", path, lines.line_number()));
  }
  if (trace.requests.empty())
    return Error(StatusCode::kInvalidArgument, "{}: no request in it", path);
  trace.unique_blocks = seen.size();
  return trace;
}

}  // namespace ems::bench
