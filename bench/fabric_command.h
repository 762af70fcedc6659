#pragma once
// `ems-bench fabric`: the emulated fabric: messages between processes beside memcpy, paced links
// beside their model. Needs no cluster.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddFabricCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
