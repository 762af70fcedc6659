#pragma once
// Requests as lines of comma-separated values. The first line names the columns, in any order:
//
//   timestamp,input_length,output_length,hash_ids
//   0,6758,500,"0 1 2 3 4 5 6 7 8 9 10 11 12 13"
//
// Only input_length is needed. timestamp: ms, never before the line above, 0 without it; lengths:
// tokens; hash_ids: names of the 512-token blocks, as in Mooncake's traces, apart by blanks, commas
// or semicolons, in square brackets or not. A request without them has nothing in common with
// others. Cells may be in double quotes; other columns are passed over.
// Bound: kCsvInputTokensMax tokens of input.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/trace/trace.h"
#include "common/status.h"

namespace ems::bench {

inline constexpr uint64_t kCsvInputTokensMax = uint64_t{1} << 28;

// Threading: one thread.
class CsvRequests final {
 public:
  // Errors: kInvalidArgument  a column is missing or named twice
  static Result<CsvRequests> Make(std::string_view header);
  // Errors: kInvalidArgument  names the column and what is wrong with it
  Result<TraceRequest> Parse(std::string_view line);

 private:
  enum Column : size_t { kTimestamp, kInputLength, kOutputLength, kHashIds, kColumns };
  static constexpr std::array<std::string_view, kColumns> kNames = {"timestamp", "input_length",
                                                                    "output_length", "hash_ids"};
  Result<uint64_t> Number(const std::vector<std::string>& cells, Column column) const;

  std::array<std::optional<size_t>, kColumns> places_ = {};
  size_t cells_ = 0;  // of a line
  // Names of blocks that nobody else has; of the file's own there are not so large ones.
  uint64_t next_own_ = uint64_t{1} << 63;
};

}  // namespace ems::bench
