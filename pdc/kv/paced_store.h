#pragma once
// A BlockStore whose blocks take as long as the plane between a die and the pool would need for
// them.
//
// EMULATED: the real copy, whatever it takes, comes first; then the call waits for what the path
// still demands, counted from the beginning of the call. So a call is never faster than the path,
// and only slower than it when the machine is. The bytes of its items follow each other over the
// path in their order, piece by piece, and arrive the path's latency after they have left; calls
// that run at once share the path's links. What moves no bytes (a look-up, a miss, an item that
// failed) is not paced. A block that is put lies in the pool before its time on the path is over;
// the caller that puts it does not hear of it before.
//
// Invariant: an item is OK only when the store below said so and its last byte has arrived within
// the call's time; results that the store below gave to items that failed stay as they are.
// Bound: a call waits no longer than its time, once the store below has answered.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/sleep.h"
#include "common/status.h"
#include "ems_context/block_store.h"
#include "fabric/emulated/emulated_fabric.h"

namespace ems::pdc {

// Between a die and the pool. Null: not paced. Users of the same paths share their links.
struct PoolPaths {
  const fabric::EmulatedPath* read = nullptr;   // pool → die
  const fabric::EmulatedPath* write = nullptr;  // die → pool
};
// The pool is memory of the machine's first CPU; `die` reads and writes it, over UB by its SDMA
// engine or over the nodes' VPC cards. Errors: kInvalidArgument  another plane, or no such die
Result<PoolPaths> PathsToPool(fabric::EmulatedFabric* fabric, const fabric::Endpoint& die,
                              fabric::Plane plane);

struct PacedStoreOptions {
  // Time of a call that names none: this + its bytes at 100 MB/s, 30 s at most, as ems::Client's.
  Duration op_timeout = std::chrono::seconds(1);
  // Tests give a clock that stands, and a sleep that moves it.
  const Clock* clock = &Clock::System();
  std::function<void(TimePoint)> sleep = SleepUntil;
};

// Threading: thread-safe. Calls sleep on the caller's thread, without a lock.
class PacedStore final : public context::BlockStore {
 public:
  // `store` and the paths must outlive this.
  PacedStore(context::BlockStore* store, const PoolPaths& paths, PacedStoreOptions options = {});

  // Not paced. Errors: those of the store below
  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options) override;
  // Errors by item: those of the store below, and of what it did well: kDeadlineExceeded  its bytes
  // were not through within the call's time. The memory of such an item is undefined; a block that
  // was put so may be in the pool.
  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options) override;
  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options) override;
  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options) override;
  bool Submit(std::function<void()>&& work) override { return store_->Submit(std::move(work)); }

 private:
  struct Call {
    TimePoint begin, deadline;
  };
  Call Begin(uint64_t bytes, Duration timeout) const;
  // Waits until all bytes of the items have arrived, or the call's time is over, and gives those of
  // `results` that are OK and whose bytes did not arrive the reason. Shape: `bytes` and `results`
  // are [items]; bytes of an item that is not OK do not matter.
  template <typename R>
  void Pace(const fabric::EmulatedPath* path, const Call& call, std::span<const uint64_t> bytes,
            std::vector<R>* results) const;
  // Sends bytes behind those of `transfer`, and returns when they have left.
  // Errors: kDeadlineExceeded  they would not arrive by the deadline, which has passed
  Status Send(fabric::EmulatedTransfer* transfer, uint64_t piece_bytes, uint64_t bytes,
              TimePoint deadline) const;
  void SleepTo(TimePoint at) const;

  context::BlockStore* const store_;
  const PoolPaths paths_;
  const PacedStoreOptions options_;
};

}  // namespace ems::pdc
