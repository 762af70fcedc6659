#pragma once
// The hazard pointers of one namespace's sessions: the objects that clients are reading.
//
// An object that is unlinked and no longer pinned may be freed once no session names it. The thread
// that unlinked it calls IsNamed, which puts a full fence between the unlinking and the look at the
// hazards; a client stores its hazard, a full fence, and looks whether the object is still linked:
// one of the two sees the other. Session pages are written by clients: each word is read once and
// trusted for nothing but a generation to compare with.
//
// A look at all hazards costs about a nanosecond a word. Where sessions use more than kCheapWords
// of them (costly), it is to be shared by many objects: Naming.
//
// Bound: kHazardsMax words a session.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/guarded.h"
#include "fabric/shm/shm_segment.h"
#include "proto/shm_layout.h"

namespace ems::server {

// Threading: thread-safe.
class HazardBoard final {
 public:
  using Page = std::shared_ptr<const fabric::ShmSegment>;

  void Add(uint64_t session, Page page);
  void Remove(uint64_t session);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  static constexpr uint32_t kCheapWords = shm::kHazardsMax;  // one session never makes it costly
  // What is named stays named: sessions that end are remembered, until the process does.
  void Freeze() { frozen_.store(true, std::memory_order_release); }
  // No session is known any more.
  void Forget();
  // Every generation that a session names, in order. Cost: that of one IsNamed.
  std::vector<uint64_t> Named();

  // At the last look.
  bool costly() const { return words_.load(std::memory_order_relaxed) > kCheapWords; }

  // Whether a session names the use `generation`. Cost: a fence; with sessions, one leaf lock and
  // the hazard pointers that they have ever used.
  bool IsNamed(uint64_t generation);

  struct Hazard {
    uint64_t generation = 0;
    uint64_t session = 0;
    friend bool operator<(const Hazard& a, const Hazard& b) { return a.generation < b.generation; }
  };
  // The hazards that name one of these uses, which are in order; by generation. Cost: that of one
  // IsNamed, and more only for those found.
  std::vector<Hazard> Naming(std::span<const uint64_t> generations);

 private:
  struct Session {
    uint64_t id = 0;
    Page page;
  };
  // visit(word, session) for each word that names something, after a fence, until it returns false.
  template <typename Visit>
  void Look(Visit visit);

  std::atomic<bool> frozen_{false};
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> words_{0};  // hazard pointers ever used by those who are there
  Guarded<std::vector<Session>> sessions_;
};

}  // namespace ems::server
