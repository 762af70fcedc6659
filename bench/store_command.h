#pragma once
// `ems-bench store`: how fast single objects go in and out, beside the raw socket of the same run.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddStoreCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
