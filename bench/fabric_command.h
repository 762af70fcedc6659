#pragma once
// `ems-bench fabric`: the emulated fabric: messages between processes beside memcpy, paced links
// beside their model. Needs no cluster.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddFabricCommand(Command* program);

}  // namespace ems::bench
