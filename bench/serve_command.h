#pragma once
// ems-bench serve: conversations and prompts that begin alike through the HTTP API of the serving
// loop with a real engine, with EMS and without, side by side.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddServeCommand(Command* program);

}  // namespace ems::bench
