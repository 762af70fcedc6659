// Invariant: pins are dropped after the lock.
#include "mp_server/models/orphaned_blocks.h"

#include "common/check.h"

namespace ems::server {

void OrphanedBlocks::Keep(NamespaceRef ns, ObjectPin pin) {
  EMS_CHECK(pin, "nothing to keep");
  Kept block{.pin = std::move(pin), .until = clock_->Now() + kKeepFor};
  BlockName name(ns, block.pin.key());
  auto kept = orphans_.Lock();
  std::swap((*kept)[std::move(name)], block);
  kept.Unlock();
}

void OrphanedBlocks::Keep(ObjectStore* store, const std::vector<BlockName>& names) {
  for (const auto& [ns, key] : names) {
    if (ObjectPin pin = store->Get(ns, key, false)) Keep(ns, std::move(pin));
  }
}

ObjectPin OrphanedBlocks::Take(NamespaceRef ns, const std::string& key) {
  auto kept = orphans_.Lock();
  const auto found = kept->find(BlockName(ns, key));
  if (found == kept->end()) return {};
  ObjectPin pin = std::move(found->second.pin);
  kept->erase(found);
  return pin;
}

void OrphanedBlocks::DropOld() {
  std::vector<ObjectPin> dropped;
  const TimePoint now = clock_->Now();
  auto kept = orphans_.Lock();
  for (auto it = kept->begin(); it != kept->end();) {
    if (now < it->second.until) {
      ++it;
      continue;
    }
    dropped.push_back(std::move(it->second.pin));
    it = kept->erase(it);
  }
  kept.Unlock();
}

bool OrphanedBlocks::Clear() {
  std::map<BlockName, Kept> dropped;
  auto kept = orphans_.Lock();
  dropped.swap(*kept);
  kept.Unlock();
  return !dropped.empty();
}

}  // namespace ems::server
