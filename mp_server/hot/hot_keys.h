#pragma once
// What reads of this server's own objects tell about hot keys, and what they are told: counted and
// looked up for every value that is sent over a socket, merged and written by "ems-hot".
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/ids.h"
#include "mp_server/hot/copy_hints.h"
#include "mp_server/hot/read_sketch.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

// Threading: thread-safe; sketch.Take and hints.Show from one thread ("ems-hot").
class HotKeys final {
 public:
  static constexpr size_t kRemovedMost = 256;
  struct Removed {
    NamespaceRef ns;
    SlotId slot;
    std::string key;
  };

  ReadSketch& sketch() { return sketch_; }
  CopyHints& hints() { return hints_; }

  // A value of `objects`, which are immutable, is being sent. What the answer says of copies, as
  // CopyHint packs it. Cost: a nanosecond or two; of one read in sixteen, and while keys are hot, a
  // hash of the key.
  uint8_t OnRead(const TieredNamespace& objects, NamespaceRef ns, SlotId slot, std::string_view key,
                 uint64_t bytes) {
    const bool counts = sketch_.Samples(bytes), tells = hints_.any();
    if (!counts && !tells) [[likely]]
      return 0;
    const Hash128 hash = objects.HashOf(key);
    if (counts) sketch_.Count({.ns = ns, .slot = slot, .key = key, .hash = hash}, bytes);
    return tells ? hints_.Of(ns, hash) : uint8_t{0};
  }
  // The key was removed: its copies are to go. Beyond kRemovedMost they go when their time is over.
  void OnRemoved(const TieredNamespace& objects, NamespaceRef ns, SlotId slot,
                 std::string_view key) {
    if (!hints_.any() || hints_.Of(ns, objects.HashOf(key)) == 0) return;
    auto removed = removed_.Lock();
    if (removed->size() < kRemovedMost)
      removed->push_back({.ns = ns, .slot = slot, .key = std::string(key)});
  }
  std::vector<Removed> TakeRemoved() {
    auto removed = removed_.Lock();
    return std::exchange(*removed, {});
  }

 private:
  ReadSketch sketch_;
  CopyHints hints_;
  Guarded<std::vector<Removed>> removed_;
};

}  // namespace ems::server
