#include "bench/trace/trace_reader.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "bench/trace/conversation.h"
#include "bench/trace/csv_requests.h"
#include "bench/trace/trace_file.h"
#include "common/check.h"

namespace ems::bench {
namespace {

constexpr uint64_t kRequestsMax = 1'000'000;
constexpr uint64_t kReferencesMax = 50'000'000;
constexpr uint64_t kNumberMax = uint64_t{1} << 53;  // what JSON numbers hold exactly

using Json = nlohmann::json;

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
  return request;
}

// A trace as it grows. Threading: one thread.
class Builder final {
 public:
  explicit Builder(uint64_t requests_max) : requests_max_(requests_max) {}

  bool full() const { return requests_max_ > 0 && trace_.requests.size() >= requests_max_; }
  // Appends `request` and keeps the sums.
  Status Add(TraceRequest request) {
    EMS_RETURN_IF_ERROR(CheckBlockCount(request));
    if (!trace_.requests.empty() && request.timestamp_ms < trace_.requests.back().timestamp_ms)
      return Error(StatusCode::kInvalidArgument,
                   "\"timestamp\" {} lies before {} of the line above", request.timestamp_ms,
                   trace_.requests.back().timestamp_ms);
    trace_.block_references += request.blocks.size();
    trace_.input_tokens += request.input_tokens;
    trace_.request_blocks_max = std::max(trace_.request_blocks_max, request.blocks.size());
    if (trace_.requests.size() == kRequestsMax || trace_.block_references > kReferencesMax)
      return Error(StatusCode::kOutOfRange, "more than {} requests or {} block references",
                   kRequestsMax, kReferencesMax);
    seen_.insert(request.blocks.begin(), request.blocks.end());
    trace_.requests.push_back(std::move(request));
    return OkStatus();
  }
  Trace Take() {
    trace_.unique_blocks = seen_.size();
    return std::move(trace_);
  }

 private:
  const uint64_t requests_max_;
  Trace trace_;
  std::unordered_set<uint64_t> seen_;
};

Status ReadLines(const std::function<Result<TraceRequest>(std::string_view)>& parse,
                 TraceFile* file, Builder* builder) {
  while (!builder->full()) {
    EMS_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, file->NextLine());
    if (!line) break;
    if (line->empty()) continue;
    Result<TraceRequest> request = parse(*line);
    const Status added = request.ok() ? builder->Add(*std::move(request)) : request.status();
    if (!added.ok()) return file->Located(added);
  }
  return OkStatus();
}

Status ReadCsv(TraceFile* file, Builder* builder) {
  EMS_ASSIGN_OR_RETURN(const std::optional<std::string_view> header, file->NextLine());
  Result<CsvRequests> requests = CsvRequests::Make(header.value_or(""));
  if (!requests.ok()) return file->Located(requests.status());
  return ReadLines([&](std::string_view line) { return requests->Parse(line); }, file, builder);
}

// Several conversations at a time: each that has ended makes room for the next of the file.
Status ReadConversations(Result<Conversation> (*parse)(std::string_view), TraceFile* file,
                         Builder* builder) {
  struct Going {
    Conversation conversation;
    size_t turn = 0;
  };
  std::deque<Going> going;
  bool more = true;
  while (!builder->full()) {
    while (more && going.size() < kConversationsAtOnce) {
      EMS_ASSIGN_OR_RETURN(const std::optional<std::string_view> object, file->NextObject());
      more = object.has_value();
      if (!more) break;
      Result<Conversation> conversation = parse(*object);
      if (!conversation.ok()) return file->Located(conversation.status());
      if (!conversation->turns.empty()) going.push_back({*std::move(conversation)});
    }
    if (going.empty()) break;
    Going one = std::move(going.front());
    going.pop_front();
    const Status added = builder->Add(one.conversation.Request(one.turn));
    if (!added.ok()) return file->Located(added);
    if (++one.turn < one.conversation.turns.size()) going.push_back(std::move(one));
  }
  return OkStatus();
}

Status ReadAll(TraceFormat format, TraceFile* file, Builder* builder) {
  switch (format) {
    case TraceFormat::kMooncake:
      return ReadLines(ParseRequest, file, builder);
    case TraceFormat::kVllm:
      return ReadConversations(ParsePrompt, file, builder);
    case TraceFormat::kShareGpt:
      return ReadConversations(ParseConversation, file, builder);
    case TraceFormat::kCsv:
      return ReadCsv(file, builder);
  }
  return Error(StatusCode::kInternal, "a format that is none");
}

}  // namespace

std::vector<std::string> TraceFormatNames() { return {"mooncake", "vllm", "sharegpt", "csv"}; }

TraceFormat TraceFormatOf(std::string_view name) {
  const std::vector<std::string> names = TraceFormatNames();
  const auto at = std::find(names.begin(), names.end(), name);
  EMS_CHECK(at != names.end(), "{}", name);
  return static_cast<TraceFormat>(at - names.begin());
}

Result<Trace> ReadTrace(const std::string& path, uint64_t requests_max, TraceFormat format) {
  EMS_ASSIGN_OR_RETURN(TraceFile file, TraceFile::Open(path));
  Builder builder(requests_max);
  EMS_RETURN_IF_ERROR(ReadAll(format, &file, &builder));
  Trace trace = builder.Take();
  if (trace.requests.empty())
    return Error(StatusCode::kInvalidArgument, "{}: no request in it", path);
  return trace;
}

}  // namespace ems::bench
