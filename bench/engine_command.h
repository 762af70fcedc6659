#pragma once
// `ems-bench engine`: how fast the serving loop's engine computes, beside what the core can do.
// Needs no cluster.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddEngineCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
