#include "mp_server/index/sharing.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::server {
namespace {

using Hazard = HazardBoard::Hazard;

// Objects without bytes count too, or nobody would look for them.
uint64_t WeightOf(const ObjectEntry& entry) { return entry.value_bytes + kObjectHeaderBytes; }

// In order.
std::vector<uint64_t> GenerationsOf(const std::vector<ObjectEntry*>& entries) {
  std::vector<uint64_t> generations;
  generations.reserve(entries.size());
  for (const ObjectEntry* entry : entries) generations.push_back(entry->generation);
  std::sort(generations.begin(), generations.end());
  return generations;
}

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
  samples_.Add(session, page);
}

void Sharing::RemoveSession(uint64_t session) {
  hazards_.Remove(session);
  touches_.Remove(session);
  samples_.Remove(session);
}

void Sharing::Shut() {
  hazards_.Freeze();
  if (SharedIndex* const shared = index(); shared != nullptr) shared->Shut();
}

void Sharing::VisitRetired(const std::function<void(const ObjectEntry&)>& visit) {
  auto retired = retired_.Lock();
  for (const ObjectEntry* entry : *retired) visit(*entry);
}

bool Sharing::Retire(ObjectEntry* entry) {
  // Without an index at this point the object was never in one: clients cannot know it.
  if (index() == nullptr) return false;
  const bool waits = hazards_.costly();
  if (!waits && !hazards_.IsNamed(entry->generation)) return false;
  const uint64_t bytes = WeightOf(*entry);
  retired_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  auto retired = retired_.Lock();
  retired->push_back(entry);
  if (waits) {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    waiting_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  return true;
}

std::vector<ObjectEntry*> Sharing::TakeUnnamed() {
  std::vector<ObjectEntry*> looked_at;
  {
    auto retired = retired_.Lock();
    looked_at.swap(*retired);
    waiting_.store(0, std::memory_order_relaxed);
    waiting_bytes_.store(0, std::memory_order_relaxed);
  }
  if (looked_at.empty()) return looked_at;
  const std::vector<Hazard> hazards = hazards_.Naming(GenerationsOf(looked_at));
  const auto named = std::partition(looked_at.begin(), looked_at.end(), [&](ObjectEntry* entry) {
    return !std::binary_search(hazards.begin(), hazards.end(), Hazard{entry->generation, 0});
  });
  uint64_t freed_bytes = 0;
  for (auto at = looked_at.begin(); at != named; ++at) freed_bytes += WeightOf(**at);
  const uint64_t before = retired_bytes_.fetch_sub(freed_bytes, std::memory_order_relaxed);
  EMS_CHECK(before >= freed_bytes, "{} bytes of {} retired ones are freed", freed_bytes, before);
  if (named != looked_at.end()) {
    auto retired = retired_.Lock();
    retired->insert(retired->end(), named, looked_at.end());
  }
  looked_at.erase(named, looked_at.end());
  return looked_at;
}

std::map<uint64_t, uint64_t> Sharing::HeldBytes() {
  std::map<uint64_t, uint64_t> bytes_of;
  std::vector<uint64_t> generations;
  {
    auto retired = retired_.Lock();
    generations = GenerationsOf(*retired);
  }
  const std::vector<Hazard> hazards = hazards_.Naming(generations);
  auto retired = retired_.Lock();
  for (const ObjectEntry* entry : *retired) {
    const auto [first, last] =
        std::equal_range(hazards.begin(), hazards.end(), Hazard{entry->generation, 0});
    for (auto at = first; at != last; ++at) bytes_of[at->session] += WeightOf(*entry);
  }
  return bytes_of;
}

}  // namespace ems::server
