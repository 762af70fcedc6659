#pragma once
// The rings of one kind in the session pages of the clients on this host, and how far each of them
// has been read.
//
// Pages are written by clients: each word is read once, and a hash may be that of no object.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "mp_server/index/reclaim.h"
#include "proto/shm_layout.h"

namespace ems::server {

// One client's ring. Threading: caller locks.
template <auto kCount, auto kEntries>
class SessionRing final {
 public:
  SessionRing(uint64_t session, HazardBoard::Page page)
      : session_(session), page_(std::move(page)) {
    EMS_CHECK(page_ != nullptr && page_->size_bytes() >= sizeof(shm::SessionPage),
              "session {} without a whole page", session);
  }
  uint64_t session() const { return session_; }
  // How many hashes the client has ever written, as it says.
  uint64_t written() const { return (page().*kCount).load(std::memory_order_acquire); }
  // The i-th of them, unless a later one is in its place.
  Hash128 At(uint64_t i) const {
    const auto& entries = page().*kEntries;
    const shm::Touch& entry = entries[i % entries.size()];
    return {entry.hash_lo.load(std::memory_order_relaxed),
            entry.hash_hi.load(std::memory_order_relaxed)};
  }

  uint64_t seen = 0;  // of those written

 private:
  const shm::SessionPage& page() const {
    return *reinterpret_cast<const shm::SessionPage*>(page_->bytes().data());
  }
  uint64_t session_;
  HazardBoard::Page page_;
};

// `kCount`, `kEntries`: where a shm::SessionPage has the ring. Threading: thread-safe.
template <auto kCount, auto kEntries>
class SessionRings final {
 public:
  using Ring = SessionRing<kCount, kEntries>;

  void Add(uint64_t session, HazardBoard::Page page) {
    auto rings = rings_.Lock();
    rings->emplace_back(session, std::move(page));
    count_.store(rings->size(), std::memory_order_release);
  }
  void Remove(uint64_t session) {
    auto rings = rings_.Lock();
    std::erase_if(*rings, [&](const Ring& ring) { return ring.session() == session; });
    count_.store(rings->size(), std::memory_order_release);
  }
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  auto Lock() { return rings_.Lock(); }

 private:
  std::atomic<size_t> count_{0};
  Guarded<std::vector<Ring>> rings_;
};

}  // namespace ems::server
