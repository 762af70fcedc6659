#pragma once
// The jobs that a decode worker has under way at one prefill peer: prompts that are computed there,
// and the transfer of their KV to this worker. One thread waits for all of them, off the decode
// loop (CM §4.3.3).
//
// Invariant: each job ends once, with on_arrived or on_lost. Until then the link may write its KV
// blocks; from then on the link and the intake leave them alone. Bound: the caller's jobs; a job
// ends with its deadline at the latest.
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "pdc/kv/kv_handoff.h"
#include "pdc/prefill/prefill_peer.h"

namespace ems::pdc {

// Called on the intake's thread, without a lock. They do not block.
struct IntakeEvents {
  // The first token, while the KV still comes. False: no KV is needed any more; on_lost(kCancelled)
  // follows.
  std::function<bool(const PrefillOutcome&)> on_first;
  // The KV is whole: the sequence has the prompt's tokens.
  std::function<void()> on_arrived;
  // kCancelled  as asked    kDeadlineExceeded    kInvalidArgument    kResourceExhausted  the peer's
  // queue is full    others: something broke; another peer may do it
  std::function<void(Status)> on_lost;
};

// Threading: thread-safe.
class KvIntake final {
 public:
  // `peer` must outlive this.
  explicit KvIntake(PrefillPeer* peer);
  ~KvIntake();  // Stop
  KvIntake(const KvIntake&) = delete;
  KvIntake& operator=(const KvIntake&) = delete;

  PrefillPeer& peer() { return *peer_; }
  // What was sent there and has no first token yet, in tokens; fresher than the peer's own word.
  uint64_t outstanding_tokens() const { return outstanding_.load(std::memory_order_relaxed); }

  // Begins a job: `task.id` is unique among those of this. `kv` is empty, with room for the prompt.
  // What goes wrong is told by on_lost.
  void Begin(PrefillTask task, KvSequence* kv, IntakeEvents events);
  // Ends a job as soon as possible. Unknown ids are ignored. Does not block.
  void Cancel(uint64_t id);
  // Ends all jobs: on_lost(kCancelled). None may begin any more. Idempotent; one thread (the
  // owner).
  void Stop();

 private:
  struct Job {
    uint64_t id = 0;
    uint32_t tokens = 0;
    Deadline deadline;
    IntakeEvents events;
    std::shared_ptr<fabric::RingReceiver> ring;
    std::unique_ptr<KvArrival> arrival;  // goes before the ring
    bool has_first = false;
  };
  // A message to the thread; `id` names the job.
  struct Note {
    uint64_t id = 0;
    std::unique_ptr<Job> begun{};
    std::optional<Result<PrefillOutcome>> done{};
    std::optional<Status> sent{};
    bool cancel = false;
    bool started = false;  // the peer has taken it
  };
  // Outlives this for a peer's late events.
  struct Inbox {
    struct State {
      std::vector<Note> notes;
      bool closed = false;
    };
    void Push(Note note);
    Guarded<State> state;
    std::condition_variable came;
  };
  void Run();
  // False: the intake closes.
  bool TakeNotes(std::vector<Note>* notes);
  void Handle(Note note);
  void OnDone(Job* job, const Result<PrefillOutcome>& outcome);
  void TakeIn();
  void Await();
  void Sweep();
  // The job's end: it is forgotten, and the peer is told to stop when `cancel`.
  void Lose(uint64_t id, Status why, bool cancel);
  IntakeEvents Forget(uint64_t id);

  PrefillPeer* const peer_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::atomic<uint64_t> outstanding_{0};
  // Of the thread alone.
  std::map<uint64_t, std::unique_ptr<Job>> jobs_;
  uint32_t arriving_ = 0;  // jobs that have their first token
  TimePoint swept_{};
  Thread thread_;
};

// The one whose peer has the least to do of those that are well, `last` only if there is no other.
// Errors: kUnavailable  none is well; says how one of them is
Result<KvIntake*> ChooseIntake(std::span<const std::unique_ptr<KvIntake>> intakes,
                               const KvIntake* last);

}  // namespace ems::pdc
