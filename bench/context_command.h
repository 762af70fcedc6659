#pragma once
// ems-bench context: what an engine gains from context caching, and what it pays for it.
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the command; when it is chosen, `run` becomes what runs it.
void AddContextCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
