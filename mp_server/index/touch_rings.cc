#include "mp_server/index/touch_rings.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "proto/shm_layout.h"

namespace ems::server {

void TouchRings::Add(uint64_t session, Page page) {
  EMS_CHECK(page != nullptr && page->size_bytes() >= sizeof(shm::SessionPage),
            "session {} without a whole page", session);
  auto sessions = sessions_.Lock();
  sessions->push_back({session, std::move(page), 0});
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

void TouchRings::Remove(uint64_t session) {
  auto sessions = sessions_.Lock();
  std::erase_if(*sessions, [&](const Session& one) { return one.id == session; });
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

TouchRings::Taken TouchRings::Take(std::span<Hash128> into, size_t sample) {
  Taken taken;
  auto sessions = sessions_.Lock();
  if (sessions->empty()) return taken;
  const size_t share = std::max<size_t>(1, into.size() / sessions->size());
  const size_t sample_share = std::max<size_t>(1, sample / sessions->size());
  for (Session& session : *sessions) {
    const auto rest = into.subspan(taken.hashes);
    if (rest.empty()) break;
    taken.hashes +=
        TakeFrom(&session, rest.first(std::min(share, rest.size())), sample_share, &taken.written);
  }
  // Where there are more sessions than places, others have their turn.
  if (sessions->size() > into.size())
    std::rotate(sessions->begin(), sessions->begin() + static_cast<ptrdiff_t>(into.size()),
                sessions->end());
  total_.fetch_add(taken.written, std::memory_order_relaxed);
  return taken;
}

size_t TouchRings::TakeFrom(Session* session, std::span<Hash128> into, size_t sample,
                            uint64_t* written) {
  const auto& page = *reinterpret_cast<const shm::SessionPage*>(session->page->bytes().data());
  const uint64_t end = page.touch_count.load(std::memory_order_acquire);
  const uint64_t waiting = std::min<uint64_t>(end - session->seen, shm::kTouchesMax);
  // As long as there is room in the ring the rest waits for the next call. Of a storm of reads a
  // sample is enough to tell hot from cold.
  const bool room = waiting <= shm::kTouchesMax / 2;
  const uint64_t count = room ? std::min<uint64_t>(waiting, into.size()) : waiting;
  const uint64_t most = room ? into.size() : std::min(sample, into.size());
  const uint64_t first = end - waiting;
  session->seen = first + count;
  *written += count;
  EMS_CHECK(most > 0, "no place for touches");
  const uint64_t step = (count + most - 1) / most;
  size_t taken = 0;
  for (uint64_t i = 0; i < count; i += step) {
    const shm::Touch& touch = page.touches[(first + i) % shm::kTouchesMax];
    into[taken++] = {touch.hash_lo.load(std::memory_order_relaxed),
                     touch.hash_hi.load(std::memory_order_relaxed)};
  }
  return taken;
}

}  // namespace ems::server
