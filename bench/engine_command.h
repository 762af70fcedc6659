#pragma once
// `ems-bench engine`: how fast the serving loop's engine computes, beside what the core can do.
// Needs no cluster.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddEngineCommand(Command* program);

}  // namespace ems::bench
