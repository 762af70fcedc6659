#pragma once
// Which trace a command replays: a file, the one that comes with EMS, or one that is made.
#include <cstdint>
#include <string>

#include "bench/trace/trace.h"
#include "common/command_line.h"
#include "common/status.h"

namespace ems::bench {

struct TraceChoice {
  std::string path = {};  // empty: the conversation trace that comes with EMS
  std::string format = "mooncake";
  std::string shape = {};  // of a made trace; empty: one is read
  uint64_t seed = 1;
  uint64_t requests = 0;  // only the first so many; 0: all, or kMadeRequests that are made
};

inline constexpr uint64_t kMadeRequests = 5000;
inline constexpr uint64_t kMadeRequestsMax = 1'000'000;

// --trace, --format, --make, --seed. Owner of `choice`: the caller, until the arguments
// are parsed.
void AddTraceOptions(Command* command, TraceChoice* choice);

// The trace; its name goes to `choice->path`. Errors: as ReadTrace; kInvalidArgument  too many are
// to be made
Result<Trace> TakeTrace(TraceChoice* choice);

}  // namespace ems::bench
