#include "tests/simulation/world.h"

#include <utility>

namespace ems::simulation {

void World::RunUntil(TimePoint until, const std::function<bool()>& stop) {
  while (!events_.empty() && events_.top().at <= until) {
    Event next = std::move(const_cast<Event&>(events_.top()));  // NOLINT: popped at once
    events_.pop();
    now_ = next.at;
    next.run();
    if (stop()) return;
  }
  now_ = until;
}

}  // namespace ems::simulation
