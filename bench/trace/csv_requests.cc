#include "bench/trace/csv_requests.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "common/bytes.h"

namespace ems::bench {
namespace {

constexpr uint64_t kNumberMax = uint64_t{1} << 53;  // as in traces of JSON

// Errors: kInvalidArgument  a quote that does not end, or with something behind it
Result<std::vector<std::string>> Cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false, closed = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char byte = line[i];
    std::string& cell = cells.back();
    if (quoted && byte == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cell += line[++i];
    } else if (byte == '"' && (quoted || (cell.empty() && !closed))) {
      closed = quoted;
      quoted = !quoted;
    } else if (byte == ',' && !quoted) {
      cells.emplace_back();
      closed = false;
    } else if (closed) {
      return Error(StatusCode::kInvalidArgument, "cell {}: text behind its closing quote",
                   cells.size());
    } else {
      cell += byte;
    }
  }
  if (quoted)
    return Error(StatusCode::kInvalidArgument, "cell {}: its quote does not end", cells.size());
  return cells;
}

std::string_view Trimmed(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

Result<uint64_t> NumberOf(std::string_view text, std::string_view name) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number <= kNumberMax)
    return number;
  return Error(StatusCode::kInvalidArgument, "{} must be a whole number from 0 to 2^53, not \"{}\"",
               name, text.substr(0, 40));
}

Result<std::vector<uint64_t>> Ids(std::string_view text, std::string_view name) {
  if (text.starts_with('[') && text.ends_with(']') && text.size() >= 2)
    text = text.substr(1, text.size() - 2);
  std::vector<uint64_t> ids;
  constexpr std::string_view kBetween = " ,;\t";
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBetween), text.size()));
    if (text.empty()) return ids;
    const std::string_view one = text.substr(0, text.find_first_of(kBetween));
    EMS_ASSIGN_OR_RETURN(const uint64_t id, NumberOf(one, name));
    ids.push_back(id);
    text.remove_prefix(one.size());
  }
}

}  // namespace

Result<CsvRequests> CsvRequests::Make(std::string_view header) {
  if (header.starts_with("\xef\xbb\xbf")) header.remove_prefix(3);  // a byte order mark
  EMS_ASSIGN_OR_RETURN(const std::vector<std::string> cells, Cells(header));
  CsvRequests made;
  made.cells_ = cells.size();
  for (size_t at = 0; at < cells.size(); ++at) {
    for (size_t column = 0; column < kColumns; ++column) {
      if (Trimmed(cells[at]) != kNames[column]) continue;
      if (made.places_[column])
        return Error(StatusCode::kInvalidArgument, "two columns {}", kNames[column]);
      made.places_[column] = at;
    }
  }
  if (made.places_[kInputLength]) return made;
  return Error(StatusCode::kInvalidArgument,
               "the first line has to name the columns, {} among them", kNames[kInputLength]);
}

// 0 where there is no such column.
Result<uint64_t> CsvRequests::Number(const std::vector<std::string>& cells, Column column) const {
  if (!places_[column]) return uint64_t{0};
  return NumberOf(Trimmed(cells[*places_[column]]), kNames[column]);
}

Result<TraceRequest> CsvRequests::Parse(std::string_view line) {
  EMS_ASSIGN_OR_RETURN(const std::vector<std::string> cells, Cells(line));
  if (cells.size() != cells_)
    return Error(StatusCode::kInvalidArgument, "{} cells, but {} columns", cells.size(), cells_);
  TraceRequest request;
  EMS_ASSIGN_OR_RETURN(request.timestamp_ms, Number(cells, kTimestamp));
  EMS_ASSIGN_OR_RETURN(request.input_tokens, Number(cells, kInputLength));
  EMS_ASSIGN_OR_RETURN(request.output_tokens, Number(cells, kOutputLength));
  if (request.input_tokens > kCsvInputTokensMax)
    return Error(StatusCode::kInvalidArgument, "{} of {}: {} at most", kNames[kInputLength],
                 request.input_tokens, kCsvInputTokensMax);
  if (places_[kHashIds]) {
    EMS_ASSIGN_OR_RETURN(request.blocks, Ids(Trimmed(cells[*places_[kHashIds]]), kNames[kHashIds]));
  }
  if (!request.blocks.empty()) return request;
  request.blocks.resize(RoundUp(request.input_tokens, kTraceBlockTokens) / kTraceBlockTokens);
  for (uint64_t& block : request.blocks) block = next_own_++;
  return request;
}

}  // namespace ems::bench
