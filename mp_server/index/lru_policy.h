#pragma once
// Least recently used: a list from cold to warm.
//
// Invariant: hooks lie in the order in which they were inserted or touched last.
#include "mp_server/index/eviction_policy.h"

namespace ems::server {

// Threading: caller locks.
class LruPolicy final : public EvictionPolicy {
 public:
  void OnInsert(EvictionHook* hook, int64_t now_ns) override;
  void OnTouch(EvictionHook* hook, int64_t now_ns) override;
  void OnRemove(EvictionHook* hook) override;
  EvictionHook* Coldest() const override { return coldest_; }

 private:
  EvictionHook* coldest_ = nullptr;
  EvictionHook* warmest_ = nullptr;
};

}  // namespace ems::server
