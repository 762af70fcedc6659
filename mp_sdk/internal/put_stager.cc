#include "mp_sdk/internal/put_stager.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "common/check.h"

namespace ems::internal {
namespace {

bool IsCandidate(const BatchItem& item) {
  return !item.staged_offset && item.value.size_bytes() >= PutStager::kValueBytesMin;
}

void Copy(const ConstBuffers& value, MutableBytes into) {
  uint64_t done = 0;
  for (const ConstBytes part : value.parts()) {
    if (!part.empty()) std::memcpy(into.data() + done, part.data(), part.size());
    done += part.size();
  }
}

// Copies a value and says after each step how much of it is there. False: the time was over before
// all of it was; the caller's connection, which ends then, tells the server.
bool CopyFollowed(const ConstBuffers& value, MutableBytes into, Deadline deadline,
                  std::atomic<uint64_t>* progress) {
  uint64_t done = 0;
  uint64_t unlooked = 0;  // bytes since the last look at the time
  for (ConstBytes part : value.parts()) {
    while (!part.empty()) {
      const size_t step = std::min<size_t>(part.size(), PutStager::kFollowStep);
      std::memcpy(into.data() + done, part.data(), step);
      done += step;
      part = part.subspan(step);
      progress->store(done, std::memory_order_release);
      if ((unlooked += step) < PutStager::kLookEvery) continue;
      unlooked = 0;
      if (deadline.Passed()) return false;
    }
  }
  return true;
}

}  // namespace

bool PutStager::Wants(const Batch& batch, LocalServers* locals) {
  const ReaderGate::Pass pass = locals->gate().Enter();
  const LocalRoutes* const routes = locals->routes();
  return routes != nullptr && std::ranges::any_of(batch.items, [&](const BatchItem& item) {
           return IsCandidate(item) && routes->Of(item.slot) != nullptr;
         });
}

StagingBuffer PutStager::Stage(Batch* batch, const DhtView& view, LocalServers* locals,
                               StagingMemory* memory) {
  std::vector<BatchItem*> chosen;
  uint64_t bytes = 0;
  uint64_t below = UINT64_MAX;  // all of these servers can read what lies there
  for (BatchItem& item : batch->items) {
    if (!IsCandidate(item)) continue;
    const auto server = locals->StagedFor(view.OwnerId(item.slot));
    if (!server) continue;
    below = std::min(below, server->bytes);
    chosen.push_back(&item);
    bytes += RoundUp(item.value.size_bytes(), StagingMemory::kUnit);
    // Half a batch would cost a round more than it saves.
    if (bytes > kCallBytesMax) return {};
  }
  if (chosen.empty()) return {};
  using Word = std::atomic<uint64_t>;
  const bool followed = bytes >= kFollowBytesMin;
  const uint64_t needed = bytes + (followed ? chosen.size() * sizeof(Word) : 0);
  StagingBuffer buffer = TakeSpare(needed, below, memory);
  const auto base = memory->OffsetOf(buffer.bytes());
  if (!base) {
    // More is of no use to servers that do not take what there is.
    if (below >= memory->made_bytes()) memory->Want(needed);
    locals->OnStagingChanged();
    return {};
  }
  EMS_CHECK(buffer.bytes().size() >= bytes, "{} B of staging memory for {} B",
            buffer.bytes().size(), bytes);
  std::byte* const start = buffer.bytes().data();
  uint64_t at = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    BatchItem* const item = chosen[i];
    item->staged_offset = *base + at;
    if (followed) {
      item->staged_progress = *base + bytes + i * sizeof(Word);
      std::construct_at(reinterpret_cast<Word*>(start + bytes) + i, 0);
    } else {
      Copy(item->value, buffer.bytes().subspan(at));
    }
    at += RoundUp(item->value.size_bytes(), StagingMemory::kUnit);
  }
  EMS_CHECK(at == bytes, "values end at {} of {} B", at, bytes);
  if (followed) {
    batch->meanwhile = [chosen = std::move(chosen), start, words = start + bytes,
                        deadline = batch->deadline] {
      std::byte* into = start;
      Word* progress = reinterpret_cast<Word*>(words);
      for (BatchItem* item : chosen) {
        const uint64_t size = item->value.size_bytes();
        if (!CopyFollowed(item->value, {into, size}, deadline, progress++)) return;
        into += RoundUp(size, StagingMemory::kUnit);
      }
    };
  }
  return buffer;
}

// The buffer used last is the one that is still in the cache.
StagingBuffer PutStager::TakeSpare(uint64_t bytes, uint64_t below, StagingMemory* memory) {
  {
    auto spares = spares_.Lock();
    for (size_t i = spares->size(); i-- > 0;) {
      const ConstBytes spare = (*spares)[i].bytes();
      if (spare.size() < bytes || *memory->OffsetOf(spare) + spare.size() > below) continue;
      StagingBuffer found = std::move((*spares)[i]);
      spares->erase(spares->begin() + static_cast<ptrdiff_t>(i));
      return found;
    }
  }
  return memory->AllocateBelow(below, bytes);
}

void PutStager::GiveBack(StagingBuffer buffer) {
  if (buffer.bytes().empty() || buffer.bytes().size() > kSpareBytesMax) return;
  StagingBuffer oldest;  // freed outside the lock
  auto spares = spares_.Lock();
  if (spares->size() == kSparesMax) {
    oldest = std::move(spares->front());
    spares->erase(spares->begin());
  }
  spares->push_back(std::move(buffer));
  spares.Unlock();
}

}  // namespace ems::internal
