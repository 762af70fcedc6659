#pragma once
// A request as the schedulers see it: sizes, never tokens.
#include <cstdint>

namespace ems::pdc {

struct Request {
  uint64_t id = 0;             // unique among the requests under way
  uint64_t input_tokens = 0;   // at least 1
  uint64_t cached_tokens = 0;  // leading tokens whose KV comes from the pool; below input_tokens
  uint64_t output_tokens = 0;  // expected; 0: not known
  // It may come to so many; 0: no bound is known, or the expected number is it.
  uint64_t output_tokens_max = 0;
  uint64_t new_tokens() const { return input_tokens - cached_tokens; }
};

}  // namespace ems::pdc
