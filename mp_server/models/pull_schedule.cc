#include "mp_server/models/pull_schedule.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "common/check.h"

namespace ems::server {

PullSchedule::Work PullSchedule::Next(const Pulls& pulls) {
  std::vector<ModelPull*> order;
  for (const auto& [id, pull] : pulls) order.push_back(pull.get());
  std::ranges::stable_sort(order, std::greater<>{},
                           [](const ModelPull* p) { return p->priority(); });
  // What is here comes first: who loads waits for it.
  for (ModelPull* pull : order) {
    if (checking_ == checks_max()) break;
    if (auto check = pull->NextCheck()) {
      ++checking_;
      return {.check = std::move(check), .pull = {}};
    }
  }
  for (ModelPull* pull : order) {
    const auto busy = busy_.find(pull->origin());
    if (busy != busy_.end() && (busy->second >= pulls_max_ || OneIsLeft())) continue;
    auto task = pull->Next();
    if (!task) continue;
    ++busy_[pull->origin()];
    return {.check = {}, .pull = std::move(task)};
  }
  return {};
}

// Checks end soon, so they are not counted.
bool PullSchedule::OneIsLeft() const {
  uint32_t pulling = 0;
  for (const auto& [origin, workers] : busy_) pulling += workers;
  return pulling + 1 >= workers();
}

void PullSchedule::PullEnded(const std::string& origin) {
  const auto busy = busy_.find(origin);
  EMS_CHECK(busy != busy_.end(), "a worker of {} has ended, and none was given out", origin);
  if (--busy->second == 0) busy_.erase(busy);
}

void PullSchedule::CheckEnded() {
  EMS_CHECK(checking_ > 0, "a check has ended, and none was given out");
  --checking_;
}

}  // namespace ems::server
