#pragma once
// The pool as the drop-in SDK sees it: batches of named blocks that are gathered from, and
// scattered to, an engine's memory, with one answer each: how many succeeded from the front.
//
// No Python in here. A call that cannot reach the pool is a batch of misses, at once: after two
// batches in a row failed as a whole, on all servers or four of them, calls are misses for a
// second, then one is let through to see. Bound: 4 batches run at a time, 4096 wait; each is over
// at its deadline.
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/submitted_call.h"
#include "common/thread_pool.h"
#include "ems_context/block_hash.h"
#include "ems_context/context_cache.h"
#include "ems_context/kv_layout.h"
#include "integrations/batches/caller_first.h"
#include "integrations/batches/pool_breaker.h"
#include "mp_sdk/client.h"

namespace ems::batches {

// The result of a batch. Errors: kInvalidArgument, kDeadlineExceeded (nothing of it arrived in
// time), kInternal (memory that this process cannot reach). Every other failure is a miss.
struct DropInOutcome {
  size_t success = 0;  // from the front; the first block that failed ends it
  size_t total = 0;
  Status status;
};

// A block's name as an engine has hashed it: 64 bits, of a negative or signed int, or of one that
// is 2^63 or more. Bits that are equal are not the same name in both.
struct DropInHash {
  uint64_t bits = 0;
  bool is_large = false;
};

// A batch to load or save. Memory that it names must live until it is done; nothing else is
// borrowed.
struct DropInBatch {
  bool is_load = false;
  bool local_only = false;  // load: only blocks whose server is on this machine
  Duration timeout{0};
  // [blocks] of either, within the pool's domain.
  std::vector<std::string> names;
  std::vector<DropInHash> hashes;
  std::vector<std::string> routes;  // [blocks], or empty: which server, by the name itself
  // Either memory, block by block: the first part_ends[0] parts are block 0, and so on; a block
  // that was saved from parts of other lengths is a miss,
  std::vector<MutableBytes> parts;
  std::vector<size_t> part_ends;  // [blocks]
  // or slots of `layout`: runs of block b in group g end at run_ends[g × blocks + b].
  std::shared_ptr<const context::KvLayout> layout;
  std::vector<context::SlotRun> runs;
  std::vector<size_t> run_ends;  // [groups × blocks]
  // save: the DropInPool::kSealBytes behind a block that is one piece of memory may be written.
  bool seal_room = false;

  size_t blocks() const { return names.size() + hashes.size(); }
};

// A batch that was submitted. Threading: thread-safe.
class DropInOperation final {
 public:
  using Call = CallState<DropInOutcome>;
  DropInOperation(size_t total, std::shared_ptr<Call> call);
  // One that is over, without a hit.
  static std::shared_ptr<DropInOperation> Missed(size_t total);
  // Never blocks. A batch that still waits for a thread at its deadline is over then; in a child of
  // fork() it is over at once.
  bool Ready() const;
  // Blocks until the batch is done, at most until shortly after its deadline. Errors: as
  // DropInOutcome    kUnavailable  in a child of fork(), at once
  DropInOutcome Wait() const;

 private:
  bool InChild() const;

  const size_t total_;
  const pid_t owner_;
  const SubmittedCall<DropInOutcome> call_;
};

struct DropInPoolOptions {
  std::string controller;
  std::string name_space;
  context::KeyDomain domain;
  Duration start_timeout = std::chrono::seconds(3);
  uint64_t staging_bytes = 256 * kMiB;  // as ClientOptions'
};

// Threading: thread-safe.
class DropInPool final {
 public:
  static constexpr uint64_t kSealBytes = 16;  // that a block's value ends with, behind its bytes

  // Errors: kInvalidArgument  the domain; and those of Client::Connect
  static Result<std::unique_ptr<DropInPool>> Open(const DropInPoolOptions& options);
  ~DropInPool();  // closes
  DropInPool(const DropInPool&) = delete;
  DropInPool& operator=(const DropInPool&) = delete;

  // Ends the work, also while others hold the pool: later batches are misses, batches that wait are
  // over as misses, and those that run are waited for, their deadlines at most. After it no batch
  // touches memory any more.
  void Close();

  // On the caller's thread.
  DropInOutcome Run(const DropInBatch& batch);
  // On a thread of the pool. Never blocks. Cost: a queue's lock and an allocation.
  std::shared_ptr<DropInOperation> Submit(DropInBatch batch);
  // As Client::AllocateBuffer: of a block that is saved from here, in one piece and with seal_room,
  // a server of this machine makes the only copy.
  Result<StagingBuffer> AllocateBuffer(uint64_t bytes) { return client_->AllocateBuffer(bytes); }
  // How many leading blocks are there. Never fails: what cannot be asked is absent.
  DropInOutcome Exists(const DropInBatch& batch);

  // Whether most servers of the view answer. Cost: a round trip to some of them, 250 ms at most for
  // each of 8.
  bool Healthy();
  // The same for a pool that is not open.
  static bool Probe(const DropInPoolOptions& options);

 private:
  DropInPool(std::unique_ptr<Client> client, context::BlockHasher hasher);
  DropInOutcome RunUntil(const DropInBatch& batch, Deadline deadline);
  // Keys of the blocks, up to the first that must not be asked for.
  Result<std::vector<std::string>> KeysOf(const DropInBatch& batch) const;
  bool IsLocal(const std::string& route) const;
  DropInOutcome Load(const DropInBatch& batch, Deadline deadline);
  DropInOutcome Save(const DropInBatch& batch, Deadline deadline);
  // Keys under which a load found a block of another layout: the next save replaces it, as nobody
  // with this layout could ever use it.
  void RememberForeign(std::vector<std::string> keys);
  std::vector<std::string> TakeForeign(const std::vector<std::string>& keys);
  // Counts how a batch ended for the breaker, and says what the caller is to see.
  DropInOutcome Judge(const std::vector<Status>& blocks, const std::vector<std::string>& routes,
                      size_t success, size_t total);

  Guarded<std::unordered_set<std::string>> foreign_;
  const std::unique_ptr<Client> client_;
  const context::BlockHasher hasher_;
  const std::string host_id_;
  PoolBreaker breaker_;
  Callers callers_;  // in Submit
  CallGate gate_;
  ThreadPool threads_;  // last: its end waits for what runs
};

}  // namespace ems::batches
