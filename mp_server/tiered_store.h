#pragma once
// Objects wherever they are: in DRAM, on the SSD, or in both. What goes where, and when, is decided
// here and nowhere else.
//
//   Put     into DRAM, then written to the SSD: behind the answer, or before it when it is to be
//           durable. What the SSD cannot take in time stays in DRAM alone.
//   Get     from DRAM; else read from the SSD straight into a chunk, checked, and kept in DRAM.
//   Remove  from both; answered when a restart cannot bring it back. So is a Put that replaces.
//
// An object in DRAM that is being written is pinned: what is evicted is on the SSD, or was never
// going to be. A value that comes from the SSD becomes visible only if nobody has removed or
// replaced it meanwhile. Bound: SsdTier::reads_max fetches at once.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/guarded.h"
#include "mp_server/object_store.h"
#include "mp_server/ssd/ssd_tier.h"

namespace ems::server {

using Wake = std::function<void()>;

// A value on its way from the SSD into DRAM, for all who want it. Threading: thread-safe; the value
// may be read once the state is kHere.
class Fetch final {
 public:
  enum class State : uint8_t {
    kComing,
    kHere,
    kMiss,   // it could not be had
    kAgain,  // it is in DRAM by another way: look there
  };
  State state() const { return state_.load(std::memory_order_acquire); }
  ConstBytes value() const { return pin_.value(); }
  uint64_t checksum() const { return pin_.checksum(); }
  std::span<const uint64_t> piece_sums() const { return pin_.piece_sums(); }
  void DropDamaged() const { pin_.DropDamaged(); }

 private:
  friend class TieredStore;
  std::atomic<State> state_{State::kComing};
  std::atomic<bool> cancelled_{false};
  Reservation reservation_;
  ObjectPin pin_;
};
using FetchPtr = std::shared_ptr<Fetch>;

// Threading: thread-safe. No call waits for the disk.
class TieredStore final {
 public:
  // `ssd` may be null: DRAM alone. Both must outlive the store, which must outlive its fetches'
  // callbacks: destroy the tier, or what feeds it, first.
  TieredStore(ObjectStore* dram, ssd::SsdTier* ssd) : dram_(dram), ssd_(ssd) {}

  ObjectStore& dram() { return *dram_; }
  bool has_ssd() const { return ssd_ != nullptr; }
  std::string SsdState() const;

  std::optional<ObjectInfo> Find(NamespaceRef ns, std::string_view key, bool touch);

  // Whether the SSD has it. Cost: one leaf lock.
  bool OnSsd(NamespaceRef ns, std::string_view key);
  // Brings what the SSD has into DRAM, for all who ask for it at once. A fetch: it is coming, and
  // `wake` is called, on another thread, when it is not any more. Without one, `wake` is not
  // called: a miss, or, with `busy`, too many are coming or DRAM has no room just now: ask again.
  struct Started {
    FetchPtr fetch;
    bool busy = false;
  };
  Started StartFetch(NamespaceRef ns, std::string_view key, const Wake& wake);

  // As ObjectStore::Publish. The ticket, if there is one, says when the Put may be answered.
  Status Publish(Reservation reservation, uint64_t checksum, bool overwrite, bool durable,
                 const Wake& wake, bool* stored, ssd::TicketPtr* ticket);
  // Of an object that is there already, for a Put that stores nothing: true when it is there still.
  // The ticket, if there is one, says when the Put may be answered.
  bool Confirm(NamespaceRef ns, std::string_view key, bool durable, const Wake& wake,
               ssd::TicketPtr* ticket);
  // Whether a value of so many bytes can ever be durable here.
  bool FitsSsd(uint64_t value_bytes) const;

  struct Removed {
    bool found = false;
    ssd::TicketPtr ticket;  // when it may be answered; null: now
  };
  Removed Remove(NamespaceRef ns, std::string_view key, const Wake& wake);

  // As ObjectStore's and SsdTier's. From one thread.
  void SetNamespaces(const NamespaceTable& table, double share);
  // What `grant` does not keep of the one before is dropped, in DRAM, too.
  void SetOwnedSlots(const ssd::SlotGrant& grant);

 private:
  enum class Begun : uint8_t { kComing, kMiss, kBusy };
  Begun Begin(const FetchPtr& fetch, const ssd::ObjectName& name, std::string_view key);
  void Land(const FetchPtr& fetch, const ssd::ObjectName& name, uint64_t checksum,
            ssd::ReadOutcome outcome);
  // Those who wait, but the first `skip` of them, are woken.
  void End(const FetchPtr& fetch, const ssd::ObjectName& name, Fetch::State state, size_t skip);
  void Cancel(const ssd::ObjectName& name);
  void CancelAll();

  ObjectStore* const dram_;
  ssd::SsdTier* const ssd_;
  ssd::GrantRecord granted_;  // touched by SetOwnedSlots alone
  struct Flight {
    FetchPtr fetch;
    std::vector<Wake> waiting;
  };
  Guarded<std::map<ssd::ObjectName, Flight>> flights_;
};

}  // namespace ems::server
