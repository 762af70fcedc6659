#pragma once
// The start side of a restart in place: memory that the process before this one has handed over,
// from the moment that its record is believed until its objects are in the namespaces they are of.
//
// Invariant: an object is served again only if nobody can have changed it meanwhile: its slot is
// this server's in the view that is installed, and has been nobody else's since the view that the
// record was made under (SlotGrant::Keeps); its namespace is the very one; its header is what the
// record says. All else goes, unread. Bound: as the record's.
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cluster/view_cache.h"
#include "common/status.h"
#include "mp_server/lease/kept_numbers.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/restart/hand_over_record.h"
#include "mp_server/ssd/slot_grant.h"
#include "mp_server/store/object_store.h"

namespace ems::server {

// Threading: one thread at a time: main's, then "ems-ctl".
class TakeOver final {
 public:
  // What this process knows of the one before; the record has to say the same.
  struct Expected {
    uint64_t number = 0;  // DataDir::TakeHandOver
    uint64_t folder_id = 0;
    ClusterId cluster;
    ViewIdentity highest;    // durable in the data folder: no life in between has had another view
    uint64_t tier_mark = 0;  // of the SSD tier as it lies on the disk; 0: there is none
    HugePages huge_pages = HugePages::kTry;
  };
  // From what was in the store. Errors: kNotFound  nothing was handed over    kFailedPrecondition
  // by another version, or for another life    kDataLoss  damaged or incomplete
  static Result<std::unique_ptr<TakeOver>> Begin(std::vector<fabric::Fd> fds,
                                                 const Expected& expected);
  // All that has not been taken must have been given to Drop.
  ~TakeOver();
  TakeOver(const TakeOver&) = delete;
  TakeOver& operator=(const TakeOver&) = delete;

  const HandOverHead& head() const { return record_.head; }
  // For SegmentPool::Options.
  uint64_t bytes() const;
  uint32_t next_segment_id() const;
  // By which grant the objects were held.
  ssd::GrantRecord granted() const;

  // A view with this grant is about to be installed. What it does not keep is not taken.
  void Expect(const ssd::SlotGrant& next);
  // What is not owned now, or was to be forgotten, is not taken either.
  void Keep(const std::bitset<kSlotCount>& owned) { kept_ &= owned; }
  bool expects() const { return expects_; }  // there was one

  struct Taken {
    uint64_t objects = 0;
    uint64_t value_bytes = 0;
    uint64_t dropped = 0;  // of slots that others had, of namespaces that are gone, or damaged
    friend bool operator==(const Taken&, const Taken&) = default;
  };
  // Puts all that may be served into the namespaces of `table`, none of which `store` knows yet,
  // and gives the rest of the memory back to `pool`. Cost: about 0.5 µs an object; blocks.
  Taken Adopt(const NamespaceTable& table, ObjectStore* store, SegmentPool* pool);
  // Nothing is taken.
  void Drop(SegmentPool* pool);

 private:
  explicit TakeOver(HandOver record);
  // Of the objects of `row`, the first of which is `object`: those that are kept, the hottest alone
  // where the namespace may not have all of them.
  std::vector<bool> Choose(const NamespaceRow& row, uint64_t object, NamespaceStore& store) const;
  void AdoptNamespace(const NamespaceRow& row, uint64_t run, uint64_t object, NamespaceStore* store,
                      SegmentPool* pool, Taken* taken);

  HandOver record_;
  std::vector<std::unique_ptr<Segment>> segments_;  // of the record's rows
  std::bitset<kSlotCount> kept_;
  ssd::GrantRecord before_;
  bool expects_ = false;
};

}  // namespace ems::server
