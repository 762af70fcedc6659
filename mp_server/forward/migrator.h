#pragma once
// Brings to this server, without being asked, what others keep of the slots that came here, and
// closes each slot of which all has come.
//
// A slot at a time: its origin lists what it keeps, page by page, the keys that were used last
// first, and each goes the Forwarder's way, so that the marks decide as for a Get. Where the origin
// vouches for what an owner before it keeps, that one is asked, too, as the Forwarder would ask it.
// A slot is closed (MovedSlots::Finish) only if each page of each of them has come and each key was
// brought, was here, was changed here or is gone: what is kept only gets less, so nothing is left
// that the Forwarder could bring. All else leaves it open, to be tried again until its time is
// over. Bound: one page of keys and one value at a time, `bytes_per_s` of values; where memory is
// short only what was used more recently than the coldest object that is here.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "mp_server/forward/forwarder.h"
#include "mp_server/forward/peer_calls.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/moved_slots.h"
#include "mp_server/store/tiered_store.h"
#include "proto/kept_page.h"

namespace ems::server {

struct MigrateMetrics {
  Counter keys, bytes;  // brought
  // Slots: all of them has come; their time is over; the next key was not worth its room.
  Counter closed, given_up, no_room;
  Gauge seconds;  // from the first to the last step of the last migration from one server
};

// Threading: Step, and what it calls, from one thread: "ems-migrate" once Start was called; Poke
// thread-safe.
class Migrator final {
 public:
  struct Options {
    TieredStore* store = nullptr;  // all must outlive it
    const Ownership* ownership = nullptr;
    MovedSlots* moved = nullptr;
    Forwarder* forwarder = nullptr;
    MigrateMetrics metrics{};
    uint64_t bytes_per_s = 256 * kMiB;
    uint32_t page_keys = wire::kScanItemsMax;
    Duration timeout = std::chrono::seconds(2);  // of a page or a value
    // Between the first time that all of a slot has come and the second, which closes it: a Get
    // that found nothing before a key came has asked for it by then, and finds it.
    Duration linger = std::chrono::seconds(2);
    const Clock* clock = &Clock::System();
  };
  explicit Migrator(const Options& options);
  ~Migrator();
  Migrator(const Migrator&) = delete;
  Migrator& operator=(const Migrator&) = delete;

  void Start();
  // Slots have come.
  void Poke();
  // Asks for a page, or brings a key. How long the next step can wait; zero: not at all. Blocks up
  // to `timeout` on a server.
  Duration Step();

 private:
  struct Wanted {
    NamespaceRef ns;
    std::string key;
    uint64_t value_bytes = 0;
    TimePoint used;
  };
  // A slot that is being brought.
  struct Job {
    SlotId slot;
    Origin origin;
    Origin from;  // who is asked for pages: the origin, then who was before it
    std::optional<Origin> before = {};  // as the origin says
    wire::ScanCursor cursor = wire::kScanBegin;
    uint32_t pages = 0;    // of all that are asked
    bool further = false;  // `from` is not the origin any more
    bool listed = false;   // the last page has come
    bool whole = true;     // nothing was left out
    std::deque<Wanted> keys = {};
  };
  struct Tried {
    Era era;
    int times = 0;
    TimePoint again_at{};
    bool complete = false;  // all of it has come once
  };
  // All that comes from one server, from the first slot on until none is open.
  struct Run {
    TimePoint began{};
    TimePoint again_at{};  // it does not answer, or does not know how
    uint64_t keys = 0, bytes = 0;
    uint64_t closed = 0, given_up = 0;
    size_t open = 0;
  };
  struct Wake {
    bool stop = false;
    bool poked = false;
  };

  void Loop();
  bool Next(TimePoint now);
  // Looks which slots are open; begins and ends runs.
  void Look(TimePoint now);
  void EndRun(NodeId node, const Run& run, TimePoint now) const;
  bool IsDue(const MovedSlots::Opened& one, TimePoint now);
  // Whether the server may be called now; where not, its slots wait.
  bool MayCall(NodeId node, TimePoint now);
  void ListSome(TimePoint now);
  bool GoesOn(const wire::KeptPage& page);
  Result<wire::WireStatus> AskForPage(const wire::ScanKeptBody& body, wire::KeptPage* page);
  void BringNext(TimePoint now);
  void Spend(uint64_t bytes, TimePoint now);
  void EndListing(TimePoint now);
  // Ends the slot in hand; it is tried again after `time`, later each time.
  void PutOff(Duration time, TimePoint now);
  void PutOffAll(NodeId node, Duration time, TimePoint now);

  const Options options_;
  PeerCalls::Channels channels_;
  std::optional<Job> job_;
  std::deque<MovedSlots::Opened> due_;
  std::map<SlotId, MovedSlots::Opened> known_;  // were open at the last look
  std::map<SlotId, Tried> tried_;
  std::map<NodeId, Run> runs_;
  TimePoint ready_at_{};  // by the rate
  Guarded<Wake> wake_;
  std::condition_variable wakeup_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::server
