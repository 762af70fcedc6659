#pragma once
// The interface of an eviction policy, which names the object to evict next. One policy object for
// each shard of an index, always called under that shard's lock.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace ems::server {

// The part of an object that its policy uses: links that cost no allocation, the time of the last
// touch, and the group it is evicted with.
struct EvictionHook {
  EvictionHook* colder = nullptr;
  EvictionHook* warmer = nullptr;
  // Nanoseconds on the store's clock. Written under the shard's lock; read without it to estimate
  // how cold memory is.
  std::atomic<int64_t> touched_ns{0};
  uint32_t group = 0;  // of VersionHeat; 0: it goes by itself
};

// Threading: caller locks. Cost of every call: O(1), no allocation, unless said.
class EvictionPolicy {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  virtual ~EvictionPolicy() = default;
  virtual void OnInsert(EvictionHook* hook, int64_t now_ns) = 0;
  virtual void OnTouch(EvictionHook* hook, int64_t now_ns) = 0;
  virtual void OnRemove(EvictionHook* hook) = 0;
  // It was to go, and somebody holds it: others come before it now.
  virtual void OnHeld(EvictionHook* hook, int64_t now_ns) { OnTouch(hook, now_ns); }
  // From now on it goes together with others of `group`. Policies that know no groups ignore it.
  virtual void OnGroup(EvictionHook* /*hook*/, uint32_t /*group*/) {}
  // The first to go, or nullptr.
  virtual EvictionHook* Coldest() const = 0;
  // When the first to go was used, as far as its order counts; kNever: there is none.
  virtual int64_t ColdestNs() const {
    const EvictionHook* coldest = Coldest();
    return coldest == nullptr ? kNever : coldest->touched_ns.load(std::memory_order_relaxed);
  }
};

using EvictionPolicyFactory = std::function<std::unique_ptr<EvictionPolicy>()>;

}  // namespace ems::server
