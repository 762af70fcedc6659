#pragma once
// `ems-bench trace`: replays a request trace through context caching against a running cluster.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddTraceCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
