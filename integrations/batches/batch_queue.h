#pragma once
// Batches of named blocks that an engine submits and hears of later: by an eventfd and a list of
// what is done, with an answer for each block.
//
// No Python in here. Invariant: each batch that was submitted is over exactly once, within its
// time, whatever the servers do; after that, and after Close, nothing touches its memory. Bound:
// `waiting_max` batches wait; one more is over at once, as misses. Why no watcher is needed: the
// time of all batches is the same and counts from their submission, so that a thread is free
// before the first one that waits is late.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/submitted_call.h"
#include "common/thread_pool.h"
#include "ems_context/block_hash.h"
#include "ems_context/context_cache.h"
#include "integrations/batches/caller_first.h"
#include "integrations/batches/done_signal.h"
#include "integrations/batches/pool_breaker.h"
#include "mp_sdk/client.h"

namespace ems::batches {

enum class BatchKind : uint8_t { kSet, kGet, kExists, kRemove };

// Memory that it names must live until it is over; nothing else is borrowed.
struct BatchRequest {
  BatchKind kind = BatchKind::kExists;
  bool hashed = false;             // `names` are keys of the pool, not names in the queue's domain
  std::vector<std::string> names;  // 1 to 512 bytes each
  // Of set and get: the first part_ends[0] parts are block 0, and so on. Shape: part_ends [names].
  std::vector<MutableBytes> parts;
  std::vector<size_t> part_ends;
};

struct BatchOutcome {
  uint64_t id = 0;
  // For each name. kSet: the pool has it now. kGet: it arrived, and is as long as its memory.
  // kExists: it is there. kRemove: it was there and is gone.
  std::vector<bool> done;
  // Of set and get, ok when all blocks are done: there are callers who look at nothing else. Of
  // others, when any was answered. If not, what went wrong first; NotFound: blocks were missing.
  Status status;
};

struct BatchQueueOptions {
  size_t threads = 3;
  // Shards of a large batch at most: so many threads carry it at once. Two may share a core.
  size_t lanes = 3;
  size_t waiting_max = 1024;
  Duration timeout = std::chrono::seconds(2);  // of each batch
  Durability durability = Durability::kDefault;
};

// Threading: thread-safe.
class BatchQueue final {
 public:
  // Batches are misses until there is a client. Errors: kResourceExhausted  no descriptor
  static Result<std::unique_ptr<BatchQueue>> Open(context::BlockHasher hasher,
                                                  const BatchQueueOptions& options);
  ~BatchQueue();  // closes
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // The part of a batch that one thread carries: names [begin, end). A large batch has up to
  // BatchQueueOptions::lanes of them.
  struct Shard {
    size_t begin = 0, end = 0;
  };

  // From now on batches go to the pool. Once.
  void Attach(std::shared_ptr<Client> client);
  // Readable while there is something to drain.
  int event_fd() const { return ready_.fd(); }
  // Returns its id, from 1. Never blocks. Cost: a queue's lock, an allocation and waking a thread.
  uint64_t Submit(BatchRequest request);
  // One that is over at once, without a success, because of `why`.
  uint64_t Fail(size_t names, Status why);
  // On the caller's thread; with id 0. Blocks for the queue's timeout at most.
  BatchOutcome Run(const BatchRequest& request);
  // All that is over, in the order in which it came. Never blocks.
  std::vector<BatchOutcome> Drain();
  // Ends what waits, without a success, and waits for what runs, its time at most. What is over can
  // be drained afterwards; what is submitted then is over at once. Again: does nothing.
  void Close();

 private:
  struct State {
    uint64_t ids = 0;
    std::vector<BatchOutcome> over;
  };
  // The parts that exist once there is a client. Threading: thread-safe.
  struct Pool {
    Pool(std::shared_ptr<Client> used, Durability durability)
        : client(std::move(used)),
          store(client.get()),
          cache(&store, {.durability = durability}),
          breaker(&client->views(), [of = client.get()] { return of->name_space().ref.id; }) {}
    const std::shared_ptr<Client> client;
    context::ClientBlockStore store;
    context::ContextCache cache;
    PoolBreaker breaker;
  };
  BatchQueue(context::BlockHasher hasher, const BatchQueueOptions& options, DoneSignal ready);
  uint64_t Post(BatchRequest request);
  uint64_t NextId();
  void Publish(BatchOutcome outcome);
  using Call = CallState<BatchOutcome>;
  struct Batch {
    uint64_t id = 0;
    BatchRequest request;
    std::shared_ptr<Call> call;          // the thread that ends the last shard finishes it
    std::vector<Status> results;         // each shard writes its own
    size_t shards = 1;                   // constant once others see the batch
    std::atomic<size_t> next_shard{0};   // the next one that no thread carries (relaxed)
    std::atomic<size_t> shards_left{1};  // not done
  };
  // On a thread: cuts the batch into shards and begins to carry them; idle threads help.
  void Begin(const std::shared_ptr<Batch>& batch);
  // Carries shards until each has a thread.
  void RunShards(Batch* batch);
  // Shape: `results` is [names]; it writes those of the shard.
  void RunUntil(const BatchRequest& request, Shard shard, Deadline deadline,
                std::span<Status> results);
  Result<std::vector<std::string>> KeysOf(const BatchRequest& request, Shard shard) const;
  static std::vector<Status> Carry(Pool* pool, const BatchRequest& request, Shard shard,
                                   const std::vector<std::string>& keys, Duration timeout);

  const context::BlockHasher hasher_;
  const BatchQueueOptions options_;
  const DoneSignal ready_;
  Callers callers_;  // in Submit
  std::unique_ptr<Pool> owned_pool_;
  std::atomic<Pool*> pool_{nullptr};  // owned_pool_, once it is complete (release, acquire)
  Guarded<State> state_;
  CallGate gate_;
  ThreadPool threads_;  // last: its end waits for what runs
};

}  // namespace ems::batches
