#include "mp_sdk/internal/put_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ems::internal {
namespace {

bool IsCandidate(const BatchItem& item) {
  return !item.staged_offset && item.value.size_bytes() >= PutStager::kValueBytesMin;
}

void CopyInto(const ConstBuffers& value, MutableBytes into) {
  for (const ConstBytes part : value.parts()) {
    if (part.empty()) continue;
    std::memcpy(into.data(), part.data(), part.size());
    into = into.subspan(part.size());
  }
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
  for (BatchItem& item : batch->items) {
    if (!IsCandidate(item) || !locals->StagedFor(view.OwnerId(item.slot))) continue;
    chosen.push_back(&item);
    bytes += RoundUp(item.value.size_bytes(), StagingMemory::kUnit);
    // Half a batch would cost a round more than it saves.
    if (bytes > kCallBytesMax) return {};
  }
  if (chosen.empty()) return {};
  StagingBuffer buffer = TakeSpare(bytes, memory);
  const auto base = memory->OffsetOf(buffer.bytes());
  if (!base) return {};
  uint64_t at = 0;
  for (BatchItem* item : chosen) {
    CopyInto(item->value, buffer.bytes().subspan(at));
    item->staged_offset = *base + at;
    at += RoundUp(item->value.size_bytes(), StagingMemory::kUnit);
  }
  return buffer;
}

// The buffer used last is the one that is still in the cache.
StagingBuffer PutStager::TakeSpare(uint64_t bytes, StagingMemory* memory) {
  {
    auto spares = spares_.Lock();
    for (size_t i = spares->size(); i-- > 0;) {
      if ((*spares)[i].bytes().size() < bytes) continue;
      StagingBuffer found = std::move((*spares)[i]);
      spares->erase(spares->begin() + static_cast<ptrdiff_t>(i));
      return found;
    }
  }
  auto made = memory->Allocate(bytes);
  return made.ok() ? *std::move(made) : StagingBuffer();
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
