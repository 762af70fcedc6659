#include "mp_server/sharing.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ems::server {
namespace {

using Hazard = HazardBoard::Hazard;

// Objects without bytes count too, or nobody would look for them.
uint64_t WeightOf(const ObjectEntry& entry) { return entry.value_bytes + kObjectHeaderBytes; }

}  // namespace

Status Sharing::Start(NamespaceRef ns, uint64_t boot_id, bool all_objects) {
  if (index() != nullptr) return OkStatus();
  EMS_ASSIGN_OR_RETURN(owned_, SharedIndex::Create(ns, boot_id, all_objects));
  index_.store(owned_.get(), std::memory_order_release);
  return OkStatus();
}

void Sharing::AddSession(uint64_t session, const HazardBoard::Page& page) {
  hazards_.Add(session, page);
  touches_.Add(session, page);
}

void Sharing::RemoveSession(uint64_t session) {
  hazards_.Remove(session);
  touches_.Remove(session);
}

bool Sharing::Park(ObjectEntry* entry) {
  // Without an index at this point the object was never in one: clients cannot know it.
  if (index() == nullptr || !hazards_.IsNamed(entry->generation)) return false;
  parked_bytes_.fetch_add(WeightOf(*entry), std::memory_order_relaxed);
  auto parked = parked_.Lock();
  parked->push_back(entry);
  return true;
}

std::vector<ObjectEntry*> Sharing::TakeUnnamed() {
  std::vector<ObjectEntry*> looked_at;
  {
    auto parked = parked_.Lock();
    looked_at.swap(*parked);
  }
  if (looked_at.empty()) return looked_at;
  const std::vector<Hazard> hazards = hazards_.Collect();
  const auto named = std::partition(looked_at.begin(), looked_at.end(), [&](ObjectEntry* entry) {
    return !std::binary_search(hazards.begin(), hazards.end(), Hazard{entry->generation, 0});
  });
  uint64_t freed_bytes = 0;
  for (auto at = looked_at.begin(); at != named; ++at) freed_bytes += WeightOf(**at);
  parked_bytes_.fetch_sub(freed_bytes, std::memory_order_relaxed);
  if (named != looked_at.end()) {
    auto parked = parked_.Lock();
    parked->insert(parked->end(), named, looked_at.end());
  }
  looked_at.erase(named, looked_at.end());
  return looked_at;
}

std::vector<uint64_t> Sharing::SessionsAbove(uint64_t bytes_max) {
  std::vector<uint64_t> above;
  if (parked_bytes() <= bytes_max) return above;
  const std::vector<Hazard> hazards = hazards_.Collect();
  std::map<uint64_t, uint64_t> bytes_of;
  {
    auto parked = parked_.Lock();
    for (const ObjectEntry* entry : *parked) {
      const auto [first, last] =
          std::equal_range(hazards.begin(), hazards.end(), Hazard{entry->generation, 0});
      for (auto at = first; at != last; ++at) bytes_of[at->session] += WeightOf(*entry);
    }
  }
  for (const auto& [session, bytes] : bytes_of) {
    if (bytes > bytes_max) above.push_back(session);
  }
  return above;
}

}  // namespace ems::server
