#pragma once
// What the controller knows of blocks' digests, taken over into the pulls: those that are certain,
// and, while files are not compared with their sum yet, those that any server has read.
#include <atomic>
#include <cstdint>

#include "common/clock.h"
#include "mp_server/models/pull_table.h"

namespace ems::server {

// Threading: thread-safe; blocks on the controller.
class DigestFollower final {
 public:
  // Must outlive it.
  explicit DigestFollower(PullTable* table) : table_(*table) {}

  // All digests of a version that are certain; false: the controller did not answer.
  bool Learn(uint32_t id) { return LearnSince(id, 0, 0); }
  // Those that are new since the last look; the controller keeps them in their order, over
  // restarts, too.
  bool LearnNews(uint32_t id);
  // What has changed of those that are not certain: all there is, or, with a `wait`, one answer,
  // after that time at the latest. False: the controller did not answer.
  bool Follow(uint32_t id, Duration wait);
  // What the controller was asked for, and has told, of digests that are certain.
  struct Asked {
    uint64_t calls = 0, digests = 0;
  };
  Asked asked() const { return {calls_.load(), digests_.load()}; }
  // Follows all versions that have files to be compared, until the table is stopped.
  void Run();

 private:
  // Those after the first `since` that the controller of `log` knows.
  bool LearnSince(uint32_t id, uint64_t log, uint32_t since);

  PullTable& table_;
  std::atomic<uint64_t> calls_{0}, digests_{0};
};

}  // namespace ems::server
