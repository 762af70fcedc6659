#pragma once
// `ems-bench local`: what a client on its server's host gets, beside memcpy, redis and memcached in
// the same run.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddLocalCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
