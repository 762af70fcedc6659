#pragma once
// The blocks of one load by state, and their assignment to the readers.
//
//   unknown ─Learn─▶ ready ─Take─▶ busy ─Done─▶ done
//      │                ▲           │ Missed
//      │                └── later ◀─┘
//      └──── GoDirect ─▶ direct ─Take─▶ busy      (so do `later` blocks of the pool)
//                           ▲           │ SourceFailed
//                           └── later ◀─┘
//
// Invariant: a block is with one reader at a time and done once. Bound: some bytes a block.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "model_files/format/manifest.h"

namespace ems {
class StopFlag;
}

namespace ems::model::internal {

// Threading: thread-safe.
class BlockQueue final {
 public:
  static constexpr Duration kRetryFirst = std::chrono::milliseconds(5);
  static constexpr Duration kRetryMost = std::chrono::milliseconds(100);
  static constexpr Duration kSourceRetryFirst = std::chrono::milliseconds(200);
  static constexpr Duration kSourceRetryMost = std::chrono::seconds(5);
  static constexpr size_t kBatchBlocksMax = 1024;

  // The next read of a reader: blocks from the pool, or one from the source.
  struct Task {
    std::vector<uint32_t> blocks;  // empty: the load is over
    bool direct = false;
    bool known = true;  // whether its digest is
    bool ask = false;   // direct, but others may have brought it into the pool since
  };
  struct State {
    size_t left = 0;        // blocks that are not done
    size_t unknown = 0;     // that wait for their digest
    size_t missing = 0;     // that the pool did not have
    size_t refused = 0;     // of them, those that it could not be asked for
    size_t direct = 0;      // that wait to be read from the source
    uint64_t arrivals = 0;  // blocks that came from the pool
    Status error;
    Status trouble;         // the pool's, since a block came from it
    Status source_trouble;  // the source's, since a block came from either
    bool over() const { return left == 0 || !error.ok(); }
    size_t waiting() const { return unknown + missing; }
  };

  // `wanted`: indexes of blocks, in the order in which they are best read. `shares`: no task takes
  // more than this part of what is ready, so that readers end together: with whole batches, one of
  // them may have a core to itself while others share one. `failed` is set by Fail; may be null.
  BlockQueue(const Manifest& manifest, std::span<const uint32_t> wanted, uint32_t shares = 1,
             std::shared_ptr<StopFlag> failed = nullptr);

  // The digest of a block has become known. One that was to be read from the source is given out
  // before others: the pool may have it by now.
  void Learn(std::span<const uint32_t> blocks);
  // Waits for something to read: blocks of up to `bytes_max` together, or one that is larger.
  Task Take(uint64_t bytes_max);
  void Done(uint32_t block, bool from_pool);
  // The pool did not have it, or not just now (`why`): it is asked again after 5 to 100 ms.
  void Missed(uint32_t block, const Status& why);
  // Blocks that the pool did not have are asked for again at once; AskedAgain is true when it has
  // been asked for each of them since.
  void AskAgain();
  bool AskedAgain();
  // The pool will not have it, or something else in its name.
  void MakeDirect(uint32_t block);
  // The source does not answer, which may pass: it is asked again after 200 ms to 5 s, for this
  // block last. After `patience` without a block from anywhere the load fails.
  void SourceFailed(uint32_t block, const Status& why, Duration patience);
  // Blocks that wait are to be read from the source.
  void GoDirect();
  // Ends the load; the first error counts.
  void Fail(const Status& error);

  State state();
  // Some of the blocks that wait, `most` at most.
  std::vector<uint32_t> Waiting(size_t most);
  // The state when it is over, when a block has missed, or after `timeout`.
  State WaitForNews(Duration timeout);
  // How long nobody was reading.
  Duration idle();

 private:
  enum class Phase : uint8_t { kUnwanted, kUnknown, kReady, kBusy, kMissing, kDirect, kDone };
  struct Block {
    Phase phase = Phase::kUnwanted;
    bool known = false;
    bool refused = false;     // missing, but not because its server said so
    bool distrusted = false;  // what the pool has in its name is something else
    uint8_t misses = 0;
    uint32_t round = 0;  // in which it was last asked for
  };
  struct Queues {
    std::vector<Block> blocks;
    std::deque<uint32_t> ready;
    std::deque<uint32_t> direct;  // some twice: those in another phase are done with
    uint64_t ready_bytes = 0;
    std::multimap<TimePoint, uint32_t> missing;  // by when to ask again
    State state;
    TimePoint direct_at{};    // the source is not read before
    TimePoint source_well{};  // until when a block had come from somewhere, if it is in trouble
    Duration source_pause{0};
    uint32_t round = 0;   // grows with each AskAgain
    bool missed = false;  // since the last WaitForNews
    size_t readers = 0;   // that are reading
    TimePoint idle_since = Clock::System().Now();
    Duration idle{0};
  };
  Task TakeFrom(Queues* queues, uint64_t bytes_max) const;
  static void SetRefused(Queues* queues, uint32_t index, bool refused);
  static bool HasWork(const Queues& queues);
  static Duration UntilWork(const Queues& queues);
  static void PutDirect(Queues* queues, uint32_t index);
  static void Rest(Queues* queues);  // a reader is done with a block

  const Manifest& manifest_;
  const uint32_t shares_;
  const std::shared_ptr<StopFlag> failed_;  // may be null
  Guarded<Queues> queues_;
  std::condition_variable work_;  // for readers
  std::condition_variable news_;  // for who waits for the end
};

}  // namespace ems::model::internal
