#pragma once
// `ems-bench ssd`: the SSD tier beside fio, what it takes of the disk, and how long it takes to
// come back.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the subcommand; when it is chosen, `*run` becomes what runs it and returns the exit code.
void AddSsdCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
