#pragma once
// ems-bench serve: conversations and prompts that begin alike through the HTTP API of the serving
// loop with a real engine, with EMS and without, side by side.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the command; when it is chosen, `run` becomes what runs it.
void AddServeCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
