#pragma once
// Reads request traces in the format that Mooncake publishes: one JSON object a line, plain or
// gzip.
//
//   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, …, 13]}
//
// timestamp: ms since the start; lengths: tokens; hash_ids: prefix-chained names of 512-token
// blocks of the input, the last one possibly partial, so equal ids mean equal prefixes up to there.
// Bound: 1 MiB a line, 1 million requests, 50 million block references.
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace ems::bench {

inline constexpr uint64_t kTraceBlockTokens = 512;

struct TraceRequest {
  uint64_t timestamp_ms = 0;  // never before the request in front
  uint64_t input_tokens = 0;  // at least 1
  uint64_t output_tokens = 0;
  std::vector<uint64_t> blocks;  // [ceil(input_tokens / 512)]
};

struct Trace {
  std::vector<TraceRequest> requests;
  uint64_t block_references = 0;
  uint64_t unique_blocks = 0;
  uint64_t input_tokens = 0;
  size_t request_blocks_max = 0;
};

// Reads the first `requests_max` requests of `path`; 0: all of them.
// Errors: kNotFound  no such file    kInvalidArgument  not a trace: names file, line and what is
// wrong with it    kOutOfRange  above a bound    kDataLoss  a gzip stream that is cut or damaged
Result<Trace> ReadTrace(const std::string& path, uint64_t requests_max = 0);

}  // namespace ems::bench
