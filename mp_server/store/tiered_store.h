#pragma once
// Objects wherever they are: in DRAM, on the SSD, or in both. What goes where, and when, is decided
// here and nowhere else.
//
//   Put     into DRAM, then written to the SSD: behind the answer, or before it when it is to be
//           durable. What the SSD cannot take in time stays in DRAM alone.
//   Get     from DRAM; else read from the SSD straight into a chunk, checked, and kept in DRAM.
//   What
//           is found damaged in DRAM goes, and the SSD is asked.
//   Remove  from both; answered when a restart cannot bring it back. So is a Put that replaces.
//
// An object in DRAM that is being written stays there: what is evicted is on the SSD, or was never
// going to be. One that was put is not evicted before the SSD knows that an older value does not
// count any more. A value that comes from the SSD becomes visible only if nobody has removed or
// replaced it meanwhile. Bound: SsdTier::reads_max fetches at once.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/guarded.h"
#include "mp_server/ssd/ssd_tier.h"
#include "mp_server/store/allowance.h"
#include "mp_server/store/moved_slots.h"
#include "mp_server/store/object_store.h"

namespace ems::server {

using Wake = std::function<void()>;

// A value on its way from the SSD or another server into DRAM, for all who want this key.
// Threading: thread-safe; the pin may be used once the state is kHere.
class Fetch final {
 public:
  explicit Fetch(std::string_view key) : key_(key) {}
  enum class State : uint8_t {
    kComing,
    kHere,
    kMiss,   // it could not be had
    kAgain,  // it is in DRAM by another way: look there
  };
  State state() const { return state_.load(std::memory_order_acquire); }
  const ObjectPin& pin() const { return pin_; }

 private:
  friend class Forwarder;
  friend class TieredNamespace;
  friend class TieredStore;
  const std::string key_;  // others may have the same name on the SSD
  std::atomic<State> state_{State::kComing};
  std::atomic<bool> cancelled_{false};
  Reservation reservation_;
  ObjectPin pin_;
};
using FetchPtr = std::shared_ptr<Fetch>;

class TieredStore;

struct ReadOptions {
  bool touch = true;   // it counts as a use
  bool check = false;  // what lies in DRAM is compared with its checksums: a pass over the value
};

// One namespace in both tiers, opened for one request: which namespaces there are is not asked
// again for each key, nor is the clock read: what is used through this was used when it was opened.
// A namespace that is deleted meanwhile has nothing any more and takes nothing, and neither has or
// does one that was not known. Must not outlive the store. Threading: one thread at a time
// (holder).
class TieredNamespace final {
 public:
  explicit operator bool() const { return dram_ != nullptr; }
  // A key has one value for ever. Of one that was opened, as the next.
  bool immutable() const;
  const std::string& name() const;
  // On how many servers an object is to be, and whether copies of the slot's objects belong here.
  uint32_t replicas() const;
  bool HoldsCopies(SlotId slot) const;
  // Ends the request; keeps no memory of the namespace, but what makes the next Open cheaper.
  void Rest();

  struct Found {
    ObjectInfo info;
    bool in_dram = false;
  };
  // What is there under the key, in either tier.
  std::optional<Found> Find(std::string_view key, bool touch) const;
  // The same for a Put, which may find its value stored already: a use, and no look-up.
  std::optional<Found> FindForPut(std::string_view key) const;
  // As Find for many keys at once: `found` has a place for each. Bound: kFindMax keys a call.
  static constexpr size_t kFindMax = 256;
  void FindMany(std::span<const std::string_view> keys, bool touch,
                std::span<std::optional<Found>> found) const;

  struct Got {
    ObjectPin pin;                     // the value, in DRAM
    std::optional<ObjectInfo> on_ssd;  // without a pin: StartFetch may bring it
  };
  // Neither: a miss. Cost: one leaf lock, two when it is not in DRAM.
  Got Get(std::string_view key, ReadOptions options) const;
  // What the SSD has, whatever lies in DRAM.
  std::optional<ObjectInfo> OnSsd(std::string_view key) const;

  // Brings what the SSD has into DRAM, for all who ask for it at once. A fetch: it is coming, and
  // `wake` is called, on another thread, when it is not any more. Without one, `wake` is not
  // called: a miss, or, with `busy`, too many are coming or DRAM has no room just now: ask again.
  // A miss, too, while another key with the same hash is coming.
  struct Started {
    FetchPtr fetch;
    bool busy = false;
  };
  Started StartFetch(std::string_view key, const Wake& wake) const;

  // Counts a value that a client is about to send as one that is being received, until the hold
  // goes: before Reserve, so that Puts that do not go on cannot take the namespace's memory.
  // Errors: kFailedPrecondition  as Reserve    kResourceExhausted  a quarter of what the namespace
  // may have on this server is being received: try again shortly
  Result<Hold> AdmitPut(uint64_t value_bytes) const;
  // For the objects that an answer pins while it is sent, up to half of that memory over all
  // answers. Of one that is open.
  Hold HoldForAnswer() const;
  // What one answer may pin: a quarter of it.
  uint64_t answer_pins_max() const;
  // As ObjectStore's.
  Result<Reservation> Reserve(SlotId slot, std::string_view key, uint64_t value_bytes) const;
  // Of an object that is there already, for a Put that stores nothing: true when it is there still.
  // The ticket, if there is one, says when the Put may be answered.
  bool Confirm(std::string_view key, bool durable, const Wake& wake, ssd::TicketPtr* ticket) const;

  // Whether a durable Put of this size cannot be stored now, however often it is repeated: it is
  // too small for what is left of the SSD's index, and is not there.
  // What is kept here for the owner of the slot's next era, and of its key for whom to ask instead
  // (MovedSlots). Of one that is open.
  ObjectPin GetKept(SlotId slot, std::string_view key, Era era) const;
  std::optional<Origin> Untouched(SlotId slot, std::string_view key, Era era) const;
  Hash128 HashOf(std::string_view key) const;
  // As TieredStore::Publish, of a value that another server has kept for the era of its slot that
  // began with `era_since`, or, with 0, holds a copy of; not durable. The pin is on what was
  // stored.
  Status PublishKept(Reservation reservation, uint64_t checksum, uint64_t era_since, bool* stored,
                     ObjectPin* pin) const;

  // A copy of what another server owns, in DRAM alone; of one that is there already it is ok, too.
  // Errors: as ObjectStore::Publish
  static Status PublishCopy(Reservation reservation, uint64_t checksum, bool* stored) {
    return ObjectStore::Publish(std::move(reservation), checksum, {.copy = true}, stored);
  }
  // Whether a copy that has not been used for so long is worth its room here.
  bool IsWorthCopy(std::string_view key, uint64_t value_bytes, Duration idle) const;

  bool TooSmallForSsd(std::string_view key, uint64_t value_bytes, bool overwrite) const;

  struct Removed {
    bool found = false;
    ssd::TicketPtr ticket;  // when it may be answered; null: now
  };
  Removed Remove(std::string_view key, const Wake& wake,
                 std::optional<SlotId> slot = std::nullopt) const;

 private:
  friend class KeyWalk;
  friend class TieredStore;
  enum class Begun : uint8_t { kComing, kMiss, kBusy };
  Begun Begin(const FetchPtr& fetch, const ssd::ObjectName& name, std::string_view key) const;
  bool open() const;
  std::optional<Found> FindOnSsd(std::string_view key, bool touch) const;
  ssd::ObjectName NameOf(std::string_view key) const;
  void CountLookups(uint64_t keys, uint64_t in_dram) const {
    looked_up_ += keys;
    in_dram_ += in_dram;
  }

  TieredStore* store_ = nullptr;
  NamespaceRef ns_;
  std::shared_ptr<NamespaceStore> dram_;
  std::weak_ptr<NamespaceStore> last_;  // of the request before
  TimePoint opened_{};
  // Of the request in hand; told at its end.
  mutable uint64_t looked_up_ = 0, in_dram_ = 0;
};

// Threading: thread-safe. No call waits for the disk.
class TieredStore final {
 public:
  // `ssd` may be null: DRAM alone. Both must outlive the store, which must outlive its fetches'
  // callbacks: destroy the tier, or what feeds it, first. From the tier's end on nothing may evict
  // from `dram`.
  TieredStore(ObjectStore* dram, ssd::SsdTier* ssd);

  // For who wants what is in DRAM alone.
  ObjectStore& dram() { return *dram_; }
  bool has_ssd() const { return ssd_ != nullptr; }
  // There is one, and it could not be opened.
  bool ssd_offline() const;
  std::string SsdState() const;

  // False: the namespace is not known here with this very generation. The same one as the last time
  // costs no lock.
  bool Open(NamespaceRef ns, TieredNamespace* objects);
  TieredNamespace Open(NamespaceRef ns) {
    TieredNamespace objects;
    (void)Open(ns, &objects);
    return objects;
  }

  // As ObjectStore::Publish. The ticket, if there is one, says when the Put may be answered.
  Status Publish(Reservation reservation, uint64_t checksum, bool overwrite, bool durable,
                 const Wake& wake, bool* stored, ssd::TicketPtr* ticket);
  // Whether a value of so many bytes can ever be durable here.
  bool FitsSsd(uint64_t value_bytes) const;

  // As ObjectStore's and SsdTier's. From one thread.
  void SetNamespaces(const NamespaceTable& table, double share);
  // A view that gives `grant` is about to count: changes of what it gives are marked from now on.
  // `origins`: as MovedSlots::Gain takes them.
  void GainSlots(const ssd::SlotGrant& grant, const std::map<uint16_t, Origin>& origins);
  // What `grant` does not keep of the one before is dropped, in DRAM, too, or kept for the slot's
  // next owner.
  void SetOwnedSlots(const ssd::SlotGrant& grant);
  // What DRAM holds is by this grant: of the process before this one, before the first
  // SetOwnedSlots; to be told to the next one, after the last.
  void Continue(const ssd::GrantRecord& granted) { granted_ = granted; }
  const ssd::GrantRecord& granted() const { return granted_; }

 private:
  friend class KeyWalk;
  friend class TieredNamespace;
  void Land(const FetchPtr& fetch, const ssd::ObjectName& name, uint64_t checksum,
            ssd::ReadOutcome outcome);
  // Those who wait, but the first `skip` of them, are woken.
  void End(const FetchPtr& fetch, const ssd::ObjectName& name, Fetch::State state, size_t skip);
  // Of a pinned object that was published as settling: the SSD is told of it.
  Status TellSsd(const ssd::ObjectName& name, const ObjectPin& pin, bool overwrite, bool durable,
                 const Wake& wake, ssd::TicketPtr* ticket);
  // The slots whose next owner by `grant` has them from this server, for sure.
  std::bitset<kSlotCount> LostTo(const ssd::SlotGrant& grant) const;
  void Cancel(const ssd::ObjectName& name);
  void CancelAll();

  ObjectStore* const dram_;
  ssd::SsdTier* const ssd_;
  ssd::GrantRecord granted_;  // touched by SetOwnedSlots alone, as the next
  std::bitset<kSlotCount> owned_;
  struct Flight {
    FetchPtr fetch;
    std::vector<Wake> waiting;
  };
  Guarded<std::map<ssd::ObjectName, Flight>> flights_;
};

}  // namespace ems::server
