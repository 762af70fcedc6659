#include "mp_server/index/sample_rings.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "proto/shm_layout.h"

namespace ems::server {

void SampleRings::Add(uint64_t session, Page page) {
  EMS_CHECK(page != nullptr && page->size_bytes() >= sizeof(shm::SessionPage),
            "session {} without a whole page", session);
  auto sessions = sessions_.Lock();
  sessions->push_back({session, std::move(page), 0});
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

void SampleRings::Remove(uint64_t session) {
  auto sessions = sessions_.Lock();
  std::erase_if(*sessions, [&](const Session& one) { return one.id == session; });
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

SampleRings::Taken SampleRings::Take(std::span<Hash128> into) {
  Taken taken;
  auto sessions = sessions_.Lock();
  for (Session& session : *sessions) TakeFrom(&session, into.subspan(taken.hashes), &taken);
  return taken;
}

void SampleRings::TakeFrom(Session* session, std::span<Hash128> into, Taken* taken) {
  const auto& page = *reinterpret_cast<const shm::SessionPage*>(session->page->bytes().data());
  const uint64_t end = page.sample_count.load(std::memory_order_acquire);
  const uint64_t waiting = end - session->seen;
  if (waiting > shm::kSamplesMax) {
    session->seen = end;
    taken->lost += shm::kSamplesMax;
    return;
  }
  const uint64_t count = std::min<uint64_t>(waiting, into.size());
  for (uint64_t i = 0; i < count; ++i) {
    const shm::Touch& sample = page.samples[session->seen++ % shm::kSamplesMax];
    into[i] = {sample.hash_lo.load(std::memory_order_relaxed),
               sample.hash_hi.load(std::memory_order_relaxed)};
  }
  taken->hashes += count;
}

}  // namespace ems::server
