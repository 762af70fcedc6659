#pragma once
// `ems-bench memory`: how much of a full pool is payload, and how long allocation takes in it.
// Needs no cluster: the server's memory runs in this process.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddMemoryCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
