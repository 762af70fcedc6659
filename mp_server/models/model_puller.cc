#include "mp_server/models/model_puller.h"

#include <vector>

#include "mp_server/models/pull_worker.h"

namespace ems::server {

ModelPuller::ModelPuller(const Options& options)
    : table_(options),
      workers_(PullSchedule(options.pulls_max).workers()),
      blocks_(options.store, options.ownership, &table_.stop, workers_, &table_.orphans),
      digests_(&table_),
      reporter_(&table_, &digests_),
      watch_(&table_, &digests_, &reporter_) {
  threads_.emplace_back("ems-model-watch", [this] { watch_.Run(); });
  threads_.emplace_back("ems-model-tell", [this] { reporter_.Run(); });
  threads_.emplace_back("ems-model-hear", [this] { digests_.Run(); });
  for (uint32_t i = 0; i < workers_; ++i)
    threads_.emplace_back(fmt::format("ems-pull-{}", i),
                          [this] { PullWorker(&table_, &blocks_).Run(); });
}

ModelPuller::~ModelPuller() {
  table_.Stop();
  threads_.clear();
}

void ModelPuller::KeepBlocks(const std::bitset<kSlotCount>& slots) {
  std::vector<BlockName> names;
  {
    auto locked = table_.state.Lock();
    for (const auto& [id, pull] : locked->pulls) pull->NamesIn(slots, &names);
  }
  table_.orphans.Keep(&table_.options.store->dram(), names);
}

void ModelPuller::LoseSlots(const std::bitset<kSlotCount>& kept) {
  {
    auto locked = table_.state.Lock();
    for (const auto& [id, pull] : locked->pulls) pull->LoseSlots(kept);
  }
  table_.Wake();
}

}  // namespace ems::server
