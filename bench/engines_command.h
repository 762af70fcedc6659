#pragma once
// ems-bench engines: what the seats in engines cost, beside what the engine would do without them.
//
// Each seat is measured by a script in its engine's own language, which starts a cluster of its own
// and writes a document: {"figures": {name: number}, "gates": [{"name", "op": ">=" or "<=",
// "bound"}]}, the value of a gate being the figure of its name.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddEnginesCommand(Command* program);

}  // namespace ems::bench
