#pragma once
// `ems-bench memory`: how much of a full pool is payload, and how long allocation takes in it.
// Needs no cluster: the server's memory runs in this process.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddMemoryCommand(Command* program);

}  // namespace ems::bench
