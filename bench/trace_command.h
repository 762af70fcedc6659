#pragma once
// `ems-bench trace`: replays a request trace through context caching against a running cluster.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddTraceCommand(Command* program);

}  // namespace ems::bench
