#include "mp_server/store/object_store.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/guarded.h"
#include "mp_server/store/namespace_store.h"

namespace ems::server {
namespace {

using StorePtr = std::shared_ptr<NamespaceStore>;

// How long another namespace's segment stays earmarked for the one that it was taken for.
constexpr Duration kEarmarkFor = std::chrono::seconds(2);
constexpr Duration kTakeEvery = std::chrono::milliseconds(5);
constexpr Duration kHurryEvery = std::chrono::milliseconds(100);
constexpr int kSurrendersMax = 64;
constexpr int kGiveBackMax = 4096;  // segments of one round
constexpr uint64_t kEvictStep = 64;
constexpr int kEvictRoundsMax = 1 << 16;

uint64_t ShareOf(uint64_t bytes, double share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

// 0 means no limit, so the share of a real quota is never 0.
uint64_t QuotaShare(uint64_t quota_bytes, double share) {
  return quota_bytes == 0 ? 0 : std::max<uint64_t>(1, ShareOf(quota_bytes, share));
}

uint64_t ChunkBytesOf(const std::vector<StorePtr>& all) {
  uint64_t bytes = 0;
  for (const StorePtr& store : all) bytes += store->objects().slabs().stats().chunk_bytes;
  return bytes;
}

// What cannot change is true for ever.
TimePoint ReadableUntil(const NamespaceStore& store, TimePoint lease_until) {
  return store.immutable() ? TimePoint::max() : lease_until;
}

}  // namespace

// Knows all namespaces and decides between them when memory is short.
struct ObjectStore::Impl final : SegmentSource {
  explicit Impl(const Options& given) : options(given) {}

  StorePtr Of(NamespaceRef ns) {
    auto locked = stores.Lock();
    const auto it = locked->find(ns.id);
    return it == locked->end() || it->second->ref() != ns ? nullptr : it->second;
  }

  std::vector<StorePtr> All() {
    std::vector<StorePtr> all;
    auto locked = stores.Lock();
    for (const auto& [id, store] : *locked) all.push_back(store);
    return all;
  }

  Result<std::unique_ptr<Segment>> Acquire(RoomMaker* asker, uint64_t bytes_min) override;
  void HurryWrites() override;
  bool IsEarmarkedFor(const RoomMaker* asker);
  bool IsEarmarkedForOther(const RoomMaker* asker);
  bool MayTakeNow(RoomMaker* asker);
  bool TakeFromOthers(RoomMaker* asker, uint64_t bytes);
  bool GiveBack(const std::vector<StorePtr>& all);
  StorePtr ToGiveBack(const std::vector<StorePtr>& all);
  void EvictPhysical(const std::vector<StorePtr>& all);
  void ShowCurrent(const std::vector<StorePtr>& all);

  struct Earmark {  // a segment that another namespace released for `asker`
    const RoomMaker* asker = nullptr;
    TimePoint until{};
  };

  const Options options;
  std::function<void()> hurry;  // constant once the store is used
  std::shared_ptr<OwnedSlots> owned = std::make_shared<OwnedSlots>();
  std::shared_ptr<CopySlots> copies = std::make_shared<CopySlots>();
  Guarded<Earmark> earmark;
  std::atomic<int64_t> next_take_ns{0}, next_hurry_ns{0};
  Guarded<std::map<NamespaceId, StorePtr>> stores;
  uint64_t puts_seen = 0;  // ems-evict's
  // The control pages are written under its lock, so that none of a caller that stood still comes
  // after StopReaders.
  struct Current {
    ViewVersion view;
    TimePoint readable_until{};
    bool stopped = false;
  };
  Guarded<Current> current;
};

bool ObjectStore::Impl::IsEarmarkedFor(const RoomMaker* asker) {
  auto locked = earmark.Lock();
  return locked->asker == asker && options.clock->Now() < locked->until;
}

bool ObjectStore::Impl::IsEarmarkedForOther(const RoomMaker* asker) {
  auto locked = earmark.Lock();
  return locked->asker != nullptr && locked->asker != asker && options.clock->Now() < locked->until;
}

// Comparing namespaces costs more than evicting one object, so a full pool does it every 5 ms, not
// at every Put; one that has nothing at all need not wait.
bool ObjectStore::Impl::MayTakeNow(RoomMaker* asker) {
  const int64_t now = Clock::System().Now().time_since_epoch().count();
  int64_t next = next_take_ns.load(std::memory_order_relaxed);
  if (now < next) return asker->objects().slabs().stats().segments == 0;
  return next_take_ns.compare_exchange_strong(next, now + kTakeEvery.count(),
                                              std::memory_order_relaxed);
}

// What waits may wait for a disk that has much to do, and to hurry writes what might be overwritten
// again: not at every look.
void ObjectStore::Impl::HurryWrites() {
  if (!hurry) return;
  const int64_t now = Clock::System().Now().time_since_epoch().count();
  int64_t next = next_hurry_ns.load(std::memory_order_relaxed);
  if (now >= next && next_hurry_ns.compare_exchange_strong(next, now + kHurryEvery.count(),
                                                           std::memory_order_relaxed))
    hurry();
}

Result<std::unique_ptr<Segment>> ObjectStore::Impl::Acquire(RoomMaker* asker, uint64_t bytes_min) {
  if (IsEarmarkedForOther(asker))
    return Error(StatusCode::kResourceExhausted, "earmarked for another namespace");
  Result<std::unique_ptr<Segment>> segment = options.pool->Acquire(bytes_min);
  if (segment.ok()) {
    auto locked = earmark.Lock();
    if (locked->asker == asker) locked->asker = nullptr;
    return segment;
  }
  if (options.pool->growing())
    return Error(StatusCode::kUnavailable, "{}", Message(segment.status()));
  const uint64_t standard = options.pool->segment_bytes();
  const uint64_t bytes = RoundUp(bytes_min, fabric::kHugePageBytes);
  if (std::max(bytes, standard) + options.pool->stats().bytes_kept > options.pool->bytes_max())
    return segment;  // clients keep too much: taking others' memory would not help
  if (bytes_min <= standard) {
    // What is free is being made and will be there shortly; until then the asker evicts its own.
    if (options.pool->free_bytes() < standard && MayTakeNow(asker)) TakeFromOthers(asker, standard);
    return segment;
  }
  // A large segment: room for it comes from empty segments, from others above their share, and from
  // the asker itself.
  if (options.pool->free_bytes() < bytes && asker->objects().slabs().HasSegmentOf(bytes_min))
    return segment;  // empty one of those
  asker->objects().ReleaseEmpty(0);
  for (int i = 0; i < kSurrendersMax && options.pool->free_bytes() < bytes; ++i) {
    if (!TakeFromOthers(asker, bytes) && !asker->SurrenderSegment(true)) break;
  }
  if (options.pool->free_bytes() < bytes) return segment;
  segment = options.pool->Acquire(bytes_min);
  return segment.ok() ? std::move(segment)
                      : Error(StatusCode::kUnavailable, "{}", Message(segment.status()));
}

// Makes the namespace furthest above its reservation release a segment, if that brings the two
// closer together: nobody is taken from below its reservation, and two equals do not rob each other
// in turn. One that has gone quiet is taken from first, and down to its reservation.
bool ObjectStore::Impl::TakeFromOthers(RoomMaker* asker, uint64_t bytes) {
  const TimePoint now = options.clock->Now();
  StorePtr victim;
  int64_t victim_excess = 0;
  bool victim_quiet = false;
  uint64_t released = 0, leaving = 0;
  for (const StorePtr& store : All()) {
    const bool quiet = store->QuietFor(now) >= options.quiet_after;
    if (&store->room() == asker) continue;
    released += store->objects().ReleaseEmpty(0);
    const int64_t excess = store->room().excess_bytes();
    if (const uint64_t on_its_way = store->objects().slabs().stats().leaving_bytes();
        on_its_way > 0) {
      leaving += on_its_way;
      store->room().EvictMarked(kEvictStep);
    }
    if (excess <= 0 || (victim_quiet && !quiet)) continue;
    if (excess > victim_excess || (quiet && !victim_quiet)) {
      victim = store;
      victim_excess = excess;
      victim_quiet = quiet;
    }
  }
  if (released == 0 && leaving >= bytes && IsEarmarkedFor(asker)) return true;  // it is on its way
  const auto step = static_cast<int64_t>(bytes);
  if (released == 0) {
    const int64_t asker_excess = asker->excess_bytes();
    const bool entitled = asker_excess < 0 || victim_quiet
                              ? victim_excess > 0
                              : asker_excess + step <= victim_excess - step;
    if (victim == nullptr || !entitled ||
        !victim->room().SurrenderSegment(bytes > options.pool->segment_bytes()))
      return false;
  }
  auto locked = earmark.Lock();
  *locked = {asker, now + kEarmarkFor};
  return true;
}

ObjectStore::ObjectStore(const Options& options) : impl_(std::make_unique<Impl>(options)) {
  EMS_CHECK(options.pool != nullptr && options.low_watermark <= options.high_watermark,
            "watermarks {} and {}", options.low_watermark, options.high_watermark);
}

ObjectStore::~ObjectStore() {
  for (StorePtr& store : impl_->All()) {
    {
      auto locked = impl_->stores.Lock();
      locked->erase(store->ref().id);
    }
    EMS_CHECK(store.use_count() == 1, "namespace {}: a pin or reservation outlives the store",
              store->name());
  }
}

void ObjectStore::SetHurry(std::function<void()> hurry) { impl_->hurry = std::move(hurry); }

StorePtr ObjectStore::Prepare(const NamespaceInfo& info) const {
  NamespaceStore::Options options;
  options.ref = info.ref;
  options.name = info.name;
  options.pool = impl_->options.pool;
  options.source = impl_.get();
  options.owned = impl_->owned;
  options.copies = impl_->copies;
  options.moved = impl_->options.moved;
  options.clock = impl_->options.clock;
  options.another_tier = impl_->options.another_tier;
  options.immutable = info.immutable;
  options.hash = impl_->options.hash;
  if (info.name == impl_->options.events_of) options.events = impl_->options.events;
  return std::make_shared<NamespaceStore>(std::move(options));
}

void ObjectStore::Enter(StorePtr store) {
  auto locked = impl_->stores.Lock();
  locked->try_emplace(store->ref().id, store);
}

std::vector<StorePtr> ObjectStore::Stores() const { return impl_->All(); }

void ObjectStore::SetNamespaces(const NamespaceTable& table, double share) {
  EMS_CHECK(share >= 0 && share <= 1, "{} of all slots", share);
  std::vector<StorePtr> gone, limited, fewer;
  {
    auto locked = impl_->stores.Lock();
    for (auto it = locked->begin(); it != locked->end();) {
      const auto known = table.by_id.find(it->first);
      const bool keep = known != table.by_id.end() && known->second.ref == it->second->ref();
      if (!keep) gone.push_back(it->second);
      it = keep ? std::next(it) : locked->erase(it);
    }
    for (const auto& [id, info] : table.by_id) {
      StorePtr& store = (*locked)[id];
      if (store == nullptr) store = Prepare(info);
      store->SetLimits(QuotaShare(info.dram_quota_bytes, share),
                       ShareOf(info.dram_reserved_bytes, share), info.dram_quota_bytes);
      if (info.replicas < store->objects().copies().replicas()) fewer.push_back(store);
      store->objects().copies().SetReplicas(info.replicas);
      limited.push_back(store);
    }
  }
  for (const StorePtr& store : gone) store->Close();
  for (const StorePtr& store : fewer) store->DropLostSlots({});
  for (const StorePtr& store : limited) store->room().TrimToQuota();
}

void ObjectStore::SetQuotaParts(std::span<const QuotaPart> parts) {
  auto locked = impl_->stores.Lock();
  for (const QuotaPart& part : parts) {
    const auto it = locked->find(part.ref.id);
    if (it != locked->end()) it->second->SetPart(part);
  }
}

MovedSlots* ObjectStore::moved() const { return impl_->options.moved; }

void ObjectStore::DropKept(const std::bitset<kSlotCount>& slots) {
  if (slots.none()) return;
  for (const StorePtr& store : impl_->All()) ems::server::DropKept(&store->objects(), slots);
}

void ObjectStore::SetOwnedSlots(const std::bitset<kSlotCount>& owned,
                                const std::bitset<kSlotCount>& keep) {
  // The bits first: a Publish after a shard was swept sees them under that shard's lock.
  impl_->owned->Set(owned);
  for (const StorePtr& store : impl_->All()) store->DropLostSlots(keep);
}

CopySlots& ObjectStore::copies() { return *impl_->copies; }

// The bits first, as in SetOwnedSlots.
void ObjectStore::SetCopySlots(const CopySlots::Columns& columns) {
  if (columns == impl_->copies->now()) return;
  impl_->copies->Set(columns);
  for (const StorePtr& store : impl_->All())
    if (store->objects().copies().replicas() > 1) store->DropLostSlots({});
}

StorePtr ObjectStore::Open(NamespaceRef ns) const { return impl_->Of(ns); }

Duration ObjectStore::IdleMost(NamespaceRef ns, std::string_view key, uint64_t value_bytes) const {
  const StorePtr store = impl_->Of(ns);
  if (store == nullptr) return Duration::zero();
  const double high = impl_->options.high_watermark;
  const bool spare = high >= 1 || static_cast<double>(ChunkBytesOf(impl_->All()) + value_bytes) <=
                                      high * static_cast<double>(impl_->options.pool->bytes_max());
  return store->room().IdleMost(value_bytes, SizeClasses::Get().For(value_bytes, key.size()),
                                spare);
}

std::string ObjectStore::NameOf(NamespaceRef ns) const {
  const StorePtr store = impl_->Of(ns);
  return store == nullptr ? std::string() : store->name();
}

ObjectPin ObjectStore::Get(NamespaceRef ns, std::string_view key, bool touch) {
  const StorePtr store = impl_->Of(ns);
  return store == nullptr ? ObjectPin() : store->Get(key, touch);
}

std::optional<ObjectInfo> ObjectStore::Find(NamespaceRef ns, std::string_view key, bool touch) {
  const StorePtr store = impl_->Of(ns);
  return store == nullptr ? std::nullopt : store->Find(key, touch);
}

Result<Reservation> ObjectStore::Reserve(NamespaceRef ns, SlotId slot, std::string_view key,
                                         uint64_t value_bytes) {
  const StorePtr store = impl_->Of(ns);
  if (store == nullptr) {
    return Error(StatusCode::kFailedPrecondition, "namespace {} generation {} is not known here",
                 ns.id.value(), ns.generation);
  }
  return store->Reserve(slot, key, value_bytes);
}

Status ObjectStore::Publish(Reservation reservation, uint64_t checksum,
                            const PublishOptions& options, bool* stored) {
  return NamespaceStore::Publish(std::move(reservation), checksum, options, stored);
}

bool ObjectStore::Remove(NamespaceRef ns, std::string_view key) {
  const StorePtr store = impl_->Of(ns);
  return store != nullptr && store->Remove(key);
}

// Without an index a store has no readers yet; Share looks here when it has one.
void ObjectStore::Impl::ShowCurrent(const std::vector<StorePtr>& all) {
  auto now = current.Lock();
  const TimePoint until = now->stopped ? TimePoint{} : now->readable_until;
  for (const StorePtr& store : all) {
    if (SharedIndex* shared = store->sharing().index(); shared != nullptr)
      shared->SetCurrent(now->view, ReadableUntil(*store, until));
  }
}

void ObjectStore::SetCurrent(ViewVersion view, TimePoint readable_until) {
  {
    auto current = impl_->current.Lock();
    current->view = view;
    current->readable_until = readable_until;
  }
  impl_->ShowCurrent(impl_->All());
}

// The mark first: whoever shares a namespace that is not in All() yet sees it.
void ObjectStore::StopReaders() {
  {
    auto current = impl_->current.Lock();
    current->stopped = true;
  }
  impl_->ShowCurrent(impl_->All());
}

// The start of sharing and a new current view may overlap: what is written last is the newest.
Result<std::shared_ptr<NamespaceStore>> ObjectStore::Share(NamespaceRef ns) {
  StorePtr store = impl_->Of(ns);
  if (store == nullptr) {
    return Error(StatusCode::kFailedPrecondition, "namespace {} generation {} is not known here",
                 ns.id.value(), ns.generation);
  }
  if (store->sharing().index() != nullptr) return store;
  EMS_RETURN_IF_ERROR(store->Share());
  impl_->ShowCurrent({store});
  return store;
}

bool ObjectStore::EvictToWatermark() {
  const std::vector<StorePtr> all = impl_->All();
  if (impl_->options.moved != nullptr) DropKept(impl_->options.moved->Expire());
  uint64_t puts = 0;
  for (const StorePtr& store : all) {
    puts += store->newest_generation();
    store->MaintainShared();
    store->objects().FreeRetired();
    store->room().TrimToQuota();
    store->room().FinishDraining();
    store->QuietFor(impl_->options.clock->Now());
    store->objects().ReleaseEmpty(1);
  }
  const bool shrinking = impl_->GiveBack(all);
  impl_->EvictPhysical(all);
  return (std::exchange(impl_->puts_seen, puts) != puts) || shrinking;
}

// The pool has become smaller than what is handed out: segments come back, one after the other,
// until enough are empty or on their way. True: there is more to wait for, as objects in them are
// in use or not written yet.
bool ObjectStore::Impl::GiveBack(const std::vector<StorePtr>& all) {
  uint64_t excess = options.pool->excess_bytes();
  if (excess == 0) return false;
  for (const StorePtr& store : all) store->objects().ReleaseEmpty(0);
  for (int i = 0; i < kGiveBackMax; ++i) {
    excess = options.pool->excess_bytes();
    uint64_t leaving = 0;
    for (const StorePtr& store : all) leaving += store->objects().slabs().stats().leaving_bytes();
    if (leaving >= excess) break;
    const StorePtr store = ToGiveBack(all);
    if (store == nullptr || !store->room().SurrenderSegment(true)) break;
  }
  return options.pool->excess_bytes() > 0;
}

// Of the namespaces above their reservation the one with the coldest object; when there is none,
// the one that is least below its own: memory that the machine needs is given up all the same.
StorePtr ObjectStore::Impl::ToGiveBack(const std::vector<StorePtr>& all) {
  StorePtr best;
  std::pair<int64_t, int64_t> best_rank;
  for (const StorePtr& store : all) {
    if (store->objects().slabs().stats().kept_bytes == 0) continue;
    const int64_t excess = store->room().excess_bytes();
    const std::pair rank = excess > 0
                               ? std::pair(int64_t{1}, -store->objects().index().ColdestTouch())
                               : std::pair(int64_t{0}, excess);
    if (best != nullptr && rank <= best_rank) continue;
    best = store;
    best_rank = rank;
  }
  return best;
}

void ObjectStore::Impl::EvictPhysical(const std::vector<StorePtr>& all) {
  const auto pool_bytes = static_cast<double>(options.pool->bytes_max());
  uint64_t used = ChunkBytesOf(all);
  if (static_cast<double>(used) <= options.high_watermark * pool_bytes) return;
  const auto target = static_cast<uint64_t>(options.low_watermark * pool_bytes);
  for (int i = 0; i < kEvictRoundsMax && used > target; ++i) {
    const auto it =
        std::max_element(all.begin(), all.end(), [](const StorePtr& a, const StorePtr& b) {
          return a->room().excess_bytes() < b->room().excess_bytes();
        });
    if (it == all.end() || (*it)->room().EvictColdest(kEvictStep, used - target) == 0) return;
    used = ChunkBytesOf(all);
  }
}

bool ObjectStore::SomeHashes(NamespaceRef ns, uint64_t* shard, uint64_t* bucket,
                             std::vector<Hash128>* hashes) {
  const StorePtr store = impl_->Of(ns);
  if (store == nullptr) return false;
  ObjectIndex::SweepCursor cursor{*shard, *bucket};
  const bool more = store->objects().index().SomeHashes(&cursor, hashes);
  *shard = cursor.shard;
  *bucket = cursor.bucket;
  return more;
}

std::vector<NamespaceUsage> ObjectStore::Usage() const {
  std::vector<NamespaceUsage> usage;
  for (const StorePtr& store : impl_->All()) usage.push_back(store->Usage());
  return usage;
}

}  // namespace ems::server
