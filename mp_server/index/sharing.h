#pragma once
// The state that one namespace shares with clients on this host: its shared index, the sessions'
// hazard pointers, touch and sample rings, and its retired objects, which are freed once no
// client's hazard names them.
//
// Invariant: a retired object is unlinked and unpinned; either a session named it at the last look,
// or, where a look is costly, it waits for the next one, which is for many. Its memory and its
// charge stay until TakeUnnamed returns it. Bound: kHazardsMax objects a session, and kWaitingMax.
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/guarded.h"
#include "mp_server/index/object_entry.h"
#include "mp_server/index/reclaim.h"
#include "mp_server/index/sample_rings.h"
#include "mp_server/index/shared_index.h"
#include "mp_server/index/touch_rings.h"

namespace ems::server {

// Threading: thread-safe but where stated.
class Sharing final {
 public:
  // Makes the shared index; ok when there is one. From one thread.
  // Errors: those of SharedIndex::Create
  // `all_objects`: what is not in the index is not on this server.
  Status Start(NamespaceRef ns, uint64_t boot_id, bool all_objects);
  // nullptr until Start.
  SharedIndex* index() const { return index_.load(std::memory_order_acquire); }
  TouchRings& touches() { return touches_; }
  SampleRings& samples() { return samples_; }
  // A session, with its page: from now on what it names stays, and what it uses counts.
  void AddSession(uint64_t session, const HazardBoard::Page& page);
  void RemoveSession(uint64_t session);

  // Ends the sharing for good, before the memory goes to another process (SharedIndex::Shut): no
  // client begins to read any more, and what one looks at now is remembered, also when its session
  // ends.
  void Shut();
  // After Shut: the generations of all objects that clients look at, in order.
  std::vector<uint64_t> Named() { return hazards_.Named(); }
  // When the memory goes: nothing that clients look at is held back any more.
  void Forget() { hazards_.Forget(); }
  // Calls `visit` for each object that is retired and not freed yet.
  void VisitRetired(const std::function<void(const ObjectEntry&)>& visit);

  // Retires an unlinked, unpinned object when a client looks at it, or may do; false: nobody does,
  // free it. Cost: without sessions, a fence; with few hazard pointers in use, a look at them.
  [[nodiscard]] bool Retire(ObjectEntry* entry);
  bool has_retired() const { return retired_bytes_.load(std::memory_order_relaxed) > 0; }
  uint64_t retired_bytes() const { return retired_bytes_.load(std::memory_order_relaxed); }
  // Of those, how many and how much have waited for a look since they were retired: TakeUnnamed is
  // due when there are kWaitingMax.
  static constexpr uint32_t kWaitingMax = 64;
  uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }
  uint64_t waiting_bytes() const { return waiting_bytes_.load(std::memory_order_relaxed); }
  bool look_is_costly() const { return hazards_.costly(); }
  // Those that nobody looks at any more; the caller frees them. Cost: one look at all hazards.
  std::vector<ObjectEntry*> TakeUnnamed();
  // The bytes of retired objects that sessions hold back, by session. Cost: as TakeUnnamed.
  std::map<uint64_t, uint64_t> HeldBytes();

 private:
  std::unique_ptr<SharedIndex> owned_;
  std::atomic<SharedIndex*> index_{nullptr};
  HazardBoard hazards_;
  TouchRings touches_;
  SampleRings samples_;
  std::atomic<uint64_t> retired_bytes_{0};
  std::atomic<uint32_t> waiting_{0};  // those at the end of retired_
  std::atomic<uint64_t> waiting_bytes_{0};
  Guarded<std::vector<ObjectEntry*>> retired_;
};

}  // namespace ems::server
