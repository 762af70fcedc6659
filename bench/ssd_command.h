#pragma once
// `ems-bench ssd`: the SSD tier beside fio, what it takes of the disk, and how long it takes to
// come back.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddSsdCommand(Command* program);

}  // namespace ems::bench
