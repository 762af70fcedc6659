#include "mp_server/index/lru_policy.h"

namespace ems::server {

void LruPolicy::OnInsert(EvictionHook* hook, int64_t now_ns) {
  hook->touched_ns.store(now_ns, std::memory_order_relaxed);
  hook->warmer = nullptr;
  hook->colder = warmest_;
  (warmest_ != nullptr ? warmest_->warmer : coldest_) = hook;
  warmest_ = hook;
}

void LruPolicy::OnTouch(EvictionHook* hook, int64_t now_ns) {
  if (hook == warmest_) {
    hook->touched_ns.store(now_ns, std::memory_order_relaxed);
    return;
  }
  OnRemove(hook);
  OnInsert(hook, now_ns);
}

void LruPolicy::OnRemove(EvictionHook* hook) {
  (hook->colder != nullptr ? hook->colder->warmer : coldest_) = hook->warmer;
  (hook->warmer != nullptr ? hook->warmer->colder : warmest_) = hook->colder;
  hook->colder = nullptr;
  hook->warmer = nullptr;
}

}  // namespace ems::server
