#pragma once
// ems-bench context: what an engine gains from context caching, and what it pays for it.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddContextCommand(Command* program);

}  // namespace ems::bench
