#pragma once
// `ems-bench store`: how fast single objects go in and out, beside the raw socket of the same run.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddStoreCommand(Command* program);

}  // namespace ems::bench
