#pragma once
// Requests of a language model's users, one after the other.
#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace ems::bench
