#pragma once
// Admits tasks of a decode worker: room for a task's KV is taken first, and only then a prefill
// peer is asked (CM §4.3.3), the one with the least to do, off the decode loop.
//
// A task waits for KV blocks and a place in the batch, the oldest first; it is admitted until its
// end, or until it waits again: its prefill was lost, or its blocks were wanted back. Its first
// token goes out while its KV still comes.
// Invariant: a task that was added is waiting, arriving, or the decode loop's; one that ends here
// has left before on_ended hears of it. Bound: batch_max tasks admitted; attempts_max tries that
// bring no token; without a peer that is well a task waits peer_patience.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "pdc/decode/decode_job.h"
#include "pdc/decode/kv_intake.h"
#include "pdc/engine/kv_arena.h"
#include "pdc/engine/model_config.h"
#include "pdc/prefill/prefill_peer.h"

namespace ems::pdc {

using DecodeJobPtr = std::shared_ptr<DecodeJob>;

struct AdmissionOptions {
  uint32_t batch_max = 32;
  uint32_t attempts_max = 3;
  Duration peer_patience = std::chrono::seconds(5);
};

// Called on threads of the admission, or within a call to it, without a lock. They do not block.
struct AdmissionEvents {
  // The KV of its prompt is here; the decode loop calls HandOn next.
  std::function<void(const DecodeJobPtr&)> on_arrived;
  // It is over.
  std::function<void(const DecodeJobPtr&, Result<FinishReason>)> on_ended;
  // Blocks came back: who lacked some may look again.
  std::function<void()> on_room;
};

struct AdmissionStats {
  uint64_t first_tokens = 0;
  uint64_t preempted = 0;  // times that a task gave its blocks back
  uint64_t lost = 0;       // prefills and hand-overs that failed and were asked again
  uint32_t waiting = 0, admitted = 0;
};

// Threading: thread-safe. Threads: "ems-admit", and one "ems-intake" a peer.
class Admission final {
 public:
  // `arena` and the peers, at least one, must outlive this.
  Admission(const ModelConfig& config, KvArena* arena, const std::vector<PrefillPeer*>& peers,
            const AdmissionOptions& options, AdmissionEvents events);
  ~Admission();  // Stop
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // False: it has stopped.
  bool Add(const DecodeJobPtr& job);
  // `job` has been cancelled: it ends soon, unless the decode loop has it.
  void OnCancelled(const DecodeJobPtr& job);
  // Ends all that wait or arrive (kUnavailable), and what comes back later. Idempotent; one thread
  // (the owner).
  void Stop();

  // Of the decode loop, which has the job from a HandOn that gives true until one of the others.
  // False: its blocks were wanted back meanwhile, and it waits again.
  bool HandOn(const DecodeJobPtr& job);
  // Its blocks are wanted by others: it waits again.
  void GiveWay(const DecodeJobPtr& job);
  // It has ended.
  void Leave(const DecodeJobPtr& job);
  // Asks the youngest of those that arrive, and came after `order`, for its blocks. True: one of
  // them gives its blocks back, which takes a moment.
  bool AskForBlocks(uint64_t order);

  // Errors: kUnavailable  no prefill peer is well
  Status admits() const { return ChooseIntake(intakes_, nullptr).status(); }
  AdmissionStats stats();
  // Of KV for so many tokens.
  uint32_t BlocksFor(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens - 1) / arena_->block_tokens() + 1);
  }

 private:
  struct State {
    std::deque<DecodeJobPtr> waiting;  // the oldest first
    std::set<DecodeJobPtr> arriving;   // admitted, and not the decode loop's yet
    uint64_t handoffs = 0;
    uint64_t changes = 0;     // that may let a task in
    TimePoint pause_until{};  // the peers' queues were full
    AdmissionStats stats;     // but for what waits
    bool stopping = false;
  };

  void Run();
  void SweepWaiting();
  bool TryAdmit(const DecodeJobPtr& job);
  void Begin(const DecodeJobPtr& job, KvIntake* intake, std::vector<TokenId> tokens);
  bool OnFirst(const DecodeJobPtr& job, const PrefillOutcome& outcome);
  void OnArrived(const DecodeJobPtr& job);
  void OnLost(const DecodeJobPtr& job, const Status& why);
  bool GivesWay(const DecodeJobPtr& job);
  void Requeue(const DecodeJobPtr& job, Duration pause = Duration(0));
  void End(const DecodeJobPtr& job, Result<FinishReason> how);
  // It holds nothing any more.
  static void Unplace(State* state, const DecodeJobPtr& job);

  const ModelConfig& config_;
  KvArena* const arena_;
  const AdmissionOptions options_;
  const AdmissionEvents events_;
  Guarded<State> state_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<KvIntake>> intakes_;
  std::optional<TimePoint> no_peer_since_;  // of the thread: none was well then, nor since
  Thread thread_;
};

}  // namespace ems::pdc
