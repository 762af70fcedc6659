#pragma once
// What one client has read without the server, as it says itself in its session page
// (shm::ReadCell).
//
// The page is hostile input: each word is read once, a count that goes back counts nothing, and one
// that grows faster than reads can be made counts as much as can. So a client can misstate its own
// reads, and do no more. Bound: shm::kReadCells cells.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "mp_server/store/lookup_counters.h"
#include "proto/shm_layout.h"

namespace ems::server {

// Threading: caller locks.
class ReadCells final {
 public:
  // Most of a cell that is believed for each millisecond: twice what a thread can look up, and
  // copy.
  static constexpr uint64_t kReadsMax = uint64_t{1} << 16;
  static constexpr uint64_t kBytesMax = uint64_t{1} << 26;
  // A look that comes later believes no more.
  static constexpr std::chrono::milliseconds kLookMax{10'000};

  // What was counted since the last call, `elapsed` ago. Cost: a cache line, often another core's,
  // for each thread that the client has ever read with.
  LookupCounts Take(const shm::SessionPage& page, Duration elapsed);

 private:
  // Each as last read.
  std::array<LookupCounts, shm::kReadCells> seen_{};
};

}  // namespace ems::server
