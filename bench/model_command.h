#pragma once
// ems-bench model: many instances load a model from a slow source, and switch between models: with
// no cache, with a cache of their own, with EMS (CM §4.4.3, Table 2).

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command, and the one that its instances run.
void AddModelCommand(Command* program);

}  // namespace ems::bench
