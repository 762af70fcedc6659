#pragma once
// A client of the serving API that measures: streaming completions, when their tokens came, how
// much of their prompts came from the cache.
//
// Invariant: an outcome is OK only when the whole stream came, with its usage.
// Bound: a request ends with its timeout; an event has 1 MiB at most.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

struct ServeRequest {
  std::string prompt;
  uint32_t output_tokens = 16;  // generated to the last one, whatever the model says
  double temperature = 0;       // 0: greedy
  std::optional<uint64_t> seed = {};
  std::string cache_salt = {};  // requests with different ones share no cached blocks
};

struct ServeOutcome {
  Status status;
  Duration ttft{0};                // from when the request was due to its first token
  Duration e2e{0};                 // to the end of its stream
  std::vector<Duration> itl = {};  // between events with text
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of them, whose KV came from the cache
  uint64_t completion_tokens = 0;
  std::string text = {};  // the answer, as valid UTF-8

  // Mean time of a token after the first; zero when there was one alone.
  Duration tpot() const;
};

// Threading: immutable.
class ServeClient final {
 public:
  // `address`: host:port. `timeout`: of a whole request.
  ServeClient(std::string address, std::string model, Duration timeout = std::chrono::minutes(5))
      : address_(std::move(address)), model_(std::move(model)), timeout_(timeout) {}

  // Asks /v1/completions and reads the stream to its end, on a connection of its own. Times count
  // from `due`, so a request that was sent late has waited. Blocks.
  // Status of the outcome: kUnavailable  refused, cut, 503    kResourceExhausted  429
  // kInvalidArgument  another 4xx    kDeadlineExceeded  504, or no end in time    kInternal
  ServeOutcome Ask(const ServeRequest& request, TimePoint due) const;

 private:
  const std::string address_;
  const std::string model_;
  const Duration timeout_;
};

// The first model that the loop at `address` serves. Errors: as Ask; kInternal  it names none
Result<std::string> ServedModel(const std::string& address, Duration timeout);

}  // namespace ems::bench
