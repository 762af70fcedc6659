#pragma once
// Publishes block events, and sends missed ones, or the present state, to subscribers that ask.
//
// Sequence: each batch has the next number. The first one is the time of the start in microseconds,
// so that a subscriber of an earlier process sees a gap, and what it then asks for is older than
// anything here. When events were lost a number is left out.
//
// A request for a batch that is here is answered with it and all later ones; one for a batch that
// is not here (too old, left out, of another process, kStateNow) gets the present state: batches
// that all bear the number of the last one the state includes, the first of which begins with
// AllBlocksCleared, then the later ones. Both end with kEndOfAnswer and an empty payload. Applying
// a batch again, or one that the state includes already, changes nothing in the end: the last event
// of each block is what holds.
//
// Bound: kAskersMax answers under way, kTellsMax messages and kListSteps steps of listing each time
// round; one listing for all who wait; an answer that is not taken for kPatience is abandoned.
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "mp_server/kv_events/block_events.h"
#include "mp_server/kv_events/event_encoder.h"
#include "mp_server/kv_events/event_sockets.h"
#include "mp_server/kv_events/replay_buffer.h"

namespace ems::kv_events {

inline constexpr uint64_t kStateNow = UINT64_MAX;  // as a request
inline constexpr uint64_t kEndOfAnswer = UINT64_MAX;

struct EventMetrics {
  Counter events, batches, lost, gaps;
  Counter replays, states, refused, foreign, given_up;
};

// The position of a listing of the blocks that are present; begins as {}.
struct ListCursor {
  uint32_t part = 0;
  uint64_t shard = 0;
  uint64_t place = 0;
  uint64_t size = 0;
};

// A walk over what is present: the publisher's.
struct Listing {
  uint64_t as_of = 0;
  ListCursor cursor;
  std::vector<BlockEvent> found;
  std::vector<std::string> payloads;
};

// Threading: Start, Announce and the destructor from any one thread; the work is
// "ems-kv-events"'.
class EventPublisher final {
 public:
  static constexpr size_t kEventsPerBatch = 1024;
  static constexpr size_t kAskersMax = 32;
  static constexpr size_t kTellsMax = 256;
  static constexpr size_t kListSteps = 64;
  static constexpr Duration kPatience = std::chrono::seconds(5);

  struct Options {
    EventSockets::Options sockets;
    std::string topic;
    EventEncoder::Options encoder;
    size_t replay_batches = 10'000;
    size_t replay_bytes = 64 << 20;
    Duration batch_every = std::chrono::milliseconds(10);
    Duration heartbeat_every = std::chrono::seconds(1);  // an empty batch; 0: none
    BlockEvents* events = nullptr;                       // must outlive the publisher
    // Appends some of what is present, as stored events; false: that was all. What comes or goes
    // meanwhile may be in it or not, and twice. On the publisher's thread.
    std::function<bool(ListCursor*, std::vector<BlockEvent>*)> list;
    EventMetrics metrics;
  };
  // Binds, then starts the thread. Errors: as EventSockets::Open
  static Result<std::unique_ptr<EventPublisher>> Start(Options options);
  ~EventPublisher();

  // Publishes all that is present once more: for when much has come at once that nobody pushed.
  void Announce() { announce_.store(true, std::memory_order_release); }
  const std::string& address() const { return sockets_->address(); }
  const std::string& replay_address() const { return sockets_->replay_address(); }

 private:
  // The present state, as of a batch.
  struct State {
    uint64_t as_of = 0;
    TimePoint made_at{};
    std::vector<std::string> payloads;
  };
  struct Answer {
    Asker asker;
    bool wants_state = false;
    int states = 0;  // begun so far: it may become too old on the way
    std::shared_ptr<const State> state;
    size_t told = 0;  // payloads of it
    uint64_t next = 0;
    uint64_t until = 0;
    TimePoint give_up_at{};
  };
  enum class Went : uint8_t { kOn, kWaits, kOver };

  EventPublisher(Options options, std::unique_ptr<EventSockets> sockets);
  void Run();
  void HearRequests();
  void BeginAnswer(Asker asker, uint64_t start);
  void PublishEvents();
  void PublishBatch(bool cleared, std::span<const BlockEvent> events);
  std::string Encode(bool cleared, std::span<const BlockEvent> events) const;
  void GoOnAnnouncing();
  void GoOnListing();
  std::shared_ptr<const State> UsableState() const;
  bool GoOnAnswering();
  Went TellSome(Answer* answer, size_t* tells_left);
  Went WaitForState(const Answer* answer);
  bool Told(Answer* answer, EventSockets::Told told, Went* went);

  const Options options_;
  const EventEncoder encoder_;
  const std::unique_ptr<EventSockets> sockets_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> announce_{false};
  // The thread's own.
  ReplayBuffer buffer_;
  uint64_t next_sequence_ = 0;
  uint64_t lost_before_ = 0;
  TimePoint batch_at_{};
  TimePoint beat_at_{};
  std::vector<BlockEvent> pending_;
  std::optional<Listing> announcing_, listing_;
  std::shared_ptr<const State> state_;
  std::list<Answer> answers_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::kv_events
