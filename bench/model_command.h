#pragma once
// ems-bench model: many instances load a model from a slow source, and switch between models: with
// no cache, with a cache of their own, with EMS (CM §4.4.3, Table 2).
#include <functional>

namespace CLI {
class App;
}

namespace ems::bench {

// Adds the command, and the one that its instances run; when one is chosen, `run` becomes what runs
// it.
void AddModelCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
