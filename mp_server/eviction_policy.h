#pragma once
// Which object goes next. One policy object for each shard of an index, always called under that
// shard's lock.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace ems::server {

// What an object carries for its policy: links that cost no allocation, and when it was last
// touched.
struct EvictionHook {
  EvictionHook* colder = nullptr;
  EvictionHook* warmer = nullptr;
  // Nanoseconds on the store's clock. Written under the shard's lock; read without it to estimate
  // how cold memory is.
  std::atomic<int64_t> touched_ns{0};
};

// Threading: caller locks. Cost of every call: O(1), no allocation.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void OnInsert(EvictionHook* hook, int64_t now_ns) = 0;
  virtual void OnTouch(EvictionHook* hook, int64_t now_ns) = 0;
  virtual void OnRemove(EvictionHook* hook) = 0;
  // The first to go, or nullptr.
  virtual EvictionHook* Coldest() const = 0;
  // The next one to go after `hook`, or nullptr.
  virtual EvictionHook* Next(const EvictionHook* hook) const = 0;
};

using EvictionPolicyFactory = std::function<std::unique_ptr<EvictionPolicy>()>;

}  // namespace ems::server
