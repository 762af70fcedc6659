#pragma once
// A BlockStore that passes everything on, and knows what is under way: tests see how reads went,
// hold them back for a moment, and wait until all that was submitted has been done.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "ems_context/block_store.h"

namespace ems::testing {

struct SpiedReads {
  uint64_t hits = 0, misses = 0;
  uint64_t failures = 0;  // neither: the server was gone, the bytes were damaged, the time was over
  uint64_t stored = 0;    // puts that succeeded
};

// Threading: thread-safe. `store` must outlive this.
class SpiedStore final : public context::BlockStore {
 public:
  explicit SpiedStore(context::BlockStore* store) : store_(store) {}

  // Reads that begin from now on wait until Release.
  void Hold() { SetClosed(true); }
  void Release() { SetClosed(false); }
  // False: so many did not come in time.
  bool WaitForHeld(uint32_t reads, Duration patience) {
    auto held = held_.Lock();
    return held.WaitFor(changed_, patience, [reads](const Held& h) { return h.waiting >= reads; });
  }
  uint64_t reads_under_way() const { return under_way_.load(); }
  SpiedReads seen() {
    auto seen = seen_.Lock();
    return *seen;
  }

  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options) override {
    return store_->MultiExists(items, options);
  }
  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options) override {
    WaitForRelease();
    under_way_.fetch_add(1);
    auto results = store_->MultiGet(items, options);
    under_way_.fetch_sub(1);
    auto seen = seen_.Lock();
    for (const Result<uint64_t>& result : results) {
      ++(result.ok()                                       ? seen->hits
         : result.status().code() == StatusCode::kNotFound ? seen->misses
                                                           : seen->failures);
    }
    return results;
  }
  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options) override {
    return store_->MultiGetRange(items, options);
  }
  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options) override {
    auto results = store_->MultiPut(items, options);
    auto seen = seen_.Lock();
    for (const Status& result : results) seen->stored += result.ok() ? 1 : 0;
    return results;
  }
  bool Submit(std::function<void()>&& work) override { return store_->Submit(std::move(work)); }

 private:
  struct Held {
    bool closed = false;
    uint32_t waiting = 0;
  };
  void SetClosed(bool closed) {
    auto held = held_.Lock();
    held->closed = closed;
    changed_.notify_all();
  }
  void WaitForRelease() {
    auto held = held_.Lock();
    ++held->waiting;
    changed_.notify_all();
    held.Wait(changed_, [](const Held& h) { return !h.closed; });
    --held->waiting;
  }

  context::BlockStore* const store_;
  Guarded<Held> held_;
  std::condition_variable changed_;
  std::atomic<uint64_t> under_way_{0};
  Guarded<SpiedReads> seen_;
};

}  // namespace ems::testing
