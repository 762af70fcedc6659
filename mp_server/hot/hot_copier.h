#pragma once
// Sends copies of hot objects to other servers, and has those that were sent here go in time.
//
// A second at a time it merges what the io threads have counted (HotKeys), decides which keys are
// hot (HotSet), and sends what is missing, one copy after the other, at `bytes_per_s`. What was
// removed here is removed there. Only objects in DRAM are sent, compared with their checksums
// before. Bound: a copy at a time, HotSet::kKeys keys.
#include <condition_variable>
#include <optional>

#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "mp_server/forward/copy_calls.h"
#include "mp_server/hot/hot_guests.h"
#include "mp_server/hot/hot_keys.h"
#include "mp_server/hot/hot_set.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

struct HotMetrics {
  Counter sent, refused, failed;  // copies: kept there; not taken; no answer
  Counter bytes;                  // of those that are kept
  Gauge keys, copies, guests;     // hot here, copies of them elsewhere, of others' here
};

// Threading: Step, and what it calls, from one thread: "ems-hot" once Start was called.
class HotCopier final {
 public:
  static constexpr Duration kPeriod = std::chrono::seconds(1);  // of counting
  static constexpr Duration kLook = std::chrono::milliseconds(250);

  struct Options {
    TieredStore* store = nullptr;  // all must outlive it
    const Ownership* ownership = nullptr;
    ViewCache* views = nullptr;
    HotKeys* keys = nullptr;
    HotGuests* guests = nullptr;
    HotMetrics metrics{};
    HotSet::Options hot{};
    uint64_t bytes_per_s = 64 * kMiB;
    Duration timeout = std::chrono::seconds(2);  // of a copy
    const Clock* clock = &Clock::System();
  };
  explicit HotCopier(const Options& options);
  ~HotCopier();
  HotCopier(const HotCopier&) = delete;
  HotCopier& operator=(const HotCopier&) = delete;

  void Start();
  // Counts when it is time, sends a copy where one is due. How long the next step can wait. Blocks
  // up to the timeout on a server.
  Duration Step();
  const HotSet& hot() const { return set_; }

 private:
  void Loop();
  void Follow();
  void DropRemoved();
  void Send(const HotSet::Wanted& wanted, TimePoint now);

  const Options options_;
  HotSet set_;
  CopyCalls calls_;
  ViewCache::View view_;  // the last one
  TimePoint counted_{};   // when the last period ended
  TimePoint send_at_{};
  StopFlag stop_;
  Thread thread_;
};

}  // namespace ems::server
