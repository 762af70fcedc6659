#include "mp_server/object_store.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "common/guarded.h"
#include "mp_server/namespace_store.h"

namespace ems::server {
namespace {

using StorePtr = std::shared_ptr<NamespaceStore>;

// How long a namespace that was promised another's segment has the first call on it.
constexpr Duration kPromise = std::chrono::seconds(2);
constexpr Duration kTakeEvery = std::chrono::milliseconds(5);
constexpr int kSurrendersMax = 64;
constexpr uint64_t kEvictStep = 64;
constexpr int kEvictRoundsMax = 1 << 16;

uint64_t ShareOf(uint64_t bytes, double share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

// 0 means no limit, so the share of a real quota is never 0.
uint64_t QuotaShare(uint64_t quota_bytes, double share) {
  return quota_bytes == 0 ? 0 : std::max<uint64_t>(1, ShareOf(quota_bytes, share));
}

// Bytes of segments above the reservation, without those being given up; below it: negative.
int64_t ExcessOf(NamespaceStore& store) {
  return static_cast<int64_t>(store.kept_bytes()) - static_cast<int64_t>(store.reserved_bytes());
}

}  // namespace

ObjectPin::ObjectPin(std::shared_ptr<NamespaceStore> store, ObjectEntry* entry)
    : store_(std::move(store)), entry_(entry) {}
ObjectPin::ObjectPin(ObjectPin&& other) noexcept
    : store_(std::move(other.store_)), entry_(std::exchange(other.entry_, nullptr)) {}
ObjectPin& ObjectPin::operator=(ObjectPin&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  store_ = std::move(other.store_);
  entry_ = std::exchange(other.entry_, nullptr);
  return *this;
}
ObjectPin::~ObjectPin() { Reset(); }
void ObjectPin::Reset() {
  if (entry_ != nullptr) store_->Unpin(std::exchange(entry_, nullptr));
  store_.reset();
}
ConstBytes ObjectPin::value() const { return entry_->value(); }
uint64_t ObjectPin::checksum() const { return entry_->checksum; }
std::span<const uint64_t> ObjectPin::piece_sums() const { return entry_->piece_sums; }
std::string_view ObjectPin::key() const { return entry_->key(); }
uint16_t ObjectPin::slot() const { return entry_->slot; }
ObjectPin ObjectPin::Share() const {
  entry_->holds.fetch_add(1, std::memory_order_relaxed);  // pinned already, so nobody frees it
  return ObjectPin(store_, entry_);
}
bool ObjectPin::linked() const {
  return (entry_->holds.load(std::memory_order_acquire) & kLinked) != 0;
}
bool ObjectPin::Intact() const {
  return CombinePieces(piece_sums()) == checksum() && Checksum(value()) == checksum();
}
void ObjectPin::DropDamaged() const { store_->DropDamaged(entry_); }

Reservation::Reservation(std::shared_ptr<NamespaceStore> store, ObjectEntry* entry)
    : store_(std::move(store)), entry_(entry) {}
Reservation::Reservation(Reservation&& other) noexcept
    : store_(std::move(other.store_)), entry_(std::exchange(other.entry_, nullptr)) {}
Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  store_ = std::move(other.store_);
  entry_ = std::exchange(other.entry_, nullptr);
  return *this;
}
Reservation::~Reservation() { Reset(); }
void Reservation::Reset() {
  if (entry_ != nullptr) store_->Abort(std::exchange(entry_, nullptr));
  store_.reset();
}
MutableBytes Reservation::value() const { return {entry_->payload, entry_->value_bytes}; }
std::span<uint64_t> Reservation::piece_sums() const { return entry_->piece_sums; }
NamespaceRef Reservation::ns() const { return store_->ref(); }
Hash128 Reservation::hash() const { return entry_->hash; }
std::string_view Reservation::key() const { return entry_->key(); }

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

  Result<std::unique_ptr<Segment>> Acquire(NamespaceStore* asker, uint64_t bytes_min) override;
  bool IsPromisedTo(const NamespaceStore* asker);
  bool IsPromisedToOther(const NamespaceStore* asker);
  bool MayTakeNow(NamespaceStore* asker);
  bool TakeFromOthers(NamespaceStore* asker, uint64_t bytes);
  void EvictPhysical(const std::vector<StorePtr>& all);

  struct Promise {  // a segment that another namespace gave up for `asker`
    const NamespaceStore* asker = nullptr;
    TimePoint until{};
  };

  const Options options;
  std::shared_ptr<OwnedSlots> owned = std::make_shared<OwnedSlots>();
  Guarded<Promise> promise;
  std::atomic<int64_t> next_take_ns{0};
  Guarded<std::map<NamespaceId, StorePtr>> stores;
  uint64_t puts_seen = 0;  // ems-evict's
  struct Current {
    ViewVersion view;
    TimePoint readable_until{};
  };
  Guarded<Current> current;
};

bool ObjectStore::Impl::IsPromisedTo(const NamespaceStore* asker) {
  auto locked = promise.Lock();
  return locked->asker == asker && options.clock->Now() < locked->until;
}

bool ObjectStore::Impl::IsPromisedToOther(const NamespaceStore* asker) {
  auto locked = promise.Lock();
  return locked->asker != nullptr && locked->asker != asker && options.clock->Now() < locked->until;
}

// Comparing namespaces costs more than evicting one object, so a full pool does it every 5 ms, not
// at every Put; one that has nothing at all need not wait.
bool ObjectStore::Impl::MayTakeNow(NamespaceStore* asker) {
  const int64_t now = Clock::System().Now().time_since_epoch().count();
  int64_t next = next_take_ns.load(std::memory_order_relaxed);
  if (now < next) return asker->segment_bytes() == 0;
  return next_take_ns.compare_exchange_strong(next, now + kTakeEvery.count(),
                                              std::memory_order_relaxed);
}

Result<std::unique_ptr<Segment>> ObjectStore::Impl::Acquire(NamespaceStore* asker,
                                                            uint64_t bytes_min) {
  if (IsPromisedToOther(asker))
    return Error(StatusCode::kResourceExhausted, "promised to another namespace");
  Result<std::unique_ptr<Segment>> segment = options.pool->Acquire(bytes_min);
  if (segment.ok()) {
    auto locked = promise.Lock();
    if (locked->asker == asker) locked->asker = nullptr;
    return segment;
  }
  if (options.pool->growing())
    return Error(StatusCode::kUnavailable, "{}", Message(segment.status()));
  const uint64_t standard = options.pool->segment_bytes();
  const uint64_t bytes = RoundUp(bytes_min, fabric::kHugePageBytes);
  if (std::max(bytes, standard) + options.pool->stats().bytes_kept > options.pool->bytes_max())
    return segment;  // clients keep too much: giving up others' memory would not help
  if (bytes_min <= standard) {
    // What is free is being made and will be there shortly; until then the asker evicts its own.
    if (options.pool->free_bytes() < standard && MayTakeNow(asker)) TakeFromOthers(asker, standard);
    return segment;
  }
  // A large segment: room for it comes from empty segments, from others above their share, and from
  // the asker itself.
  if (options.pool->free_bytes() < bytes && asker->HasSegmentOf(bytes_min))
    return segment;  // empty one of those
  asker->ReleaseEmpty(0);
  for (int i = 0; i < kSurrendersMax && options.pool->free_bytes() < bytes; ++i) {
    if (!TakeFromOthers(asker, bytes) && !asker->SurrenderSegment(true)) break;
  }
  if (options.pool->free_bytes() < bytes) return segment;
  segment = options.pool->Acquire(bytes_min);
  return segment.ok() ? std::move(segment)
                      : Error(StatusCode::kUnavailable, "{}", Message(segment.status()));
}

// Makes the namespace furthest above its reservation give up a segment, if that brings the two
// closer together: nobody is taken from below its reservation, and two equals do not rob each other
// in turn. One that has gone quiet is taken from first, and down to its reservation.
bool ObjectStore::Impl::TakeFromOthers(NamespaceStore* asker, uint64_t bytes) {
  const TimePoint now = options.clock->Now();
  StorePtr victim;
  int64_t victim_excess = 0;
  bool victim_quiet = false;
  uint64_t released = 0, leaving = 0;
  for (const StorePtr& store : All()) {
    const bool quiet = store->QuietFor(now) >= options.quiet_after;
    if (store.get() == asker) continue;
    released += store->ReleaseEmpty(0);
    const int64_t excess = ExcessOf(*store);
    if (const uint64_t on_its_way = store->leaving_bytes(); on_its_way > 0) {
      leaving += on_its_way;
      store->EvictDoomed(kEvictStep);
    }
    if (excess <= 0 || (victim_quiet && !quiet)) continue;
    if (excess > victim_excess || (quiet && !victim_quiet)) {
      victim = store;
      victim_excess = excess;
      victim_quiet = quiet;
    }
  }
  if (released == 0 && leaving >= bytes && IsPromisedTo(asker)) return true;  // it is on its way
  const auto step = static_cast<int64_t>(bytes);
  if (released == 0) {
    const int64_t asker_excess = ExcessOf(*asker);
    const bool entitled = asker_excess < 0 || victim_quiet
                              ? victim_excess > 0
                              : asker_excess + step <= victim_excess - step;
    if (victim == nullptr || !entitled ||
        !victim->SurrenderSegment(bytes > options.pool->segment_bytes()))
      return false;
  }
  auto locked = promise.Lock();
  *locked = {asker, now + kPromise};
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

void ObjectStore::SetNamespaces(const NamespaceTable& table, double share) {
  std::vector<StorePtr> gone, limited;
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
      if (store == nullptr) {
        NamespaceStore::Options options;
        options.ref = info.ref;
        options.name = info.name;
        options.pool = impl_->options.pool;
        options.source = impl_.get();
        options.owned = impl_->owned;
        options.clock = impl_->options.clock;
        options.another_tier = impl_->options.another_tier;
        if (info.name == impl_->options.events_of) options.events = impl_->options.events;
        store = std::make_shared<NamespaceStore>(std::move(options));
      }
      store->SetLimits(QuotaShare(info.dram_quota_bytes, share),
                       ShareOf(info.dram_reserved_bytes, share), info.dram_quota_bytes);
      limited.push_back(store);
    }
  }
  for (const StorePtr& store : gone) store->Close();
  for (const StorePtr& store : limited) store->TrimToQuota();
}

void ObjectStore::SetOwnedSlots(const std::bitset<kSlotCount>& owned) {
  // The bits first: whoever publishes after a shard was swept sees them under that shard's lock.
  impl_->owned->Set(owned);
  for (const StorePtr& store : impl_->All()) store->DropLostSlots();
}

bool ObjectStore::Knows(NamespaceRef ns) const { return impl_->Of(ns) != nullptr; }
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

void ObjectStore::SetCurrent(ViewVersion view, TimePoint readable_until) {
  {
    auto current = impl_->current.Lock();
    *current = {view, readable_until};
  }
  for (const StorePtr& store : impl_->All()) {
    if (SharedIndex* shared = store->sharing().index(); shared != nullptr)
      shared->SetCurrent(view, readable_until);
  }
}

// Whoever sets what is current and whoever starts to share may overlap; the older of two values, if
// it is written last, only sends readers to the socket until the next one.
Result<std::shared_ptr<NamespaceStore>> ObjectStore::Share(NamespaceRef ns) {
  StorePtr store = impl_->Of(ns);
  if (store == nullptr) {
    return Error(StatusCode::kFailedPrecondition, "namespace {} generation {} is not known here",
                 ns.id.value(), ns.generation);
  }
  if (store->sharing().index() != nullptr) return store;
  EMS_RETURN_IF_ERROR(store->Share());
  Impl::Current now;
  {
    auto current = impl_->current.Lock();
    now = *current;
  }
  store->sharing().index()->SetCurrent(now.view, now.readable_until);
  return store;
}

bool ObjectStore::EvictToWatermark() {
  const std::vector<StorePtr> all = impl_->All();
  uint64_t puts = 0;
  for (const StorePtr& store : all) {
    puts += store->newest_generation();
    store->MaintainShared();
    store->FreeParked();
    store->TrimToQuota();
    store->FinishDraining();
    store->QuietFor(impl_->options.clock->Now());
    store->ReleaseEmpty(1);
  }
  impl_->EvictPhysical(all);
  return std::exchange(impl_->puts_seen, puts) != puts;
}

void ObjectStore::Impl::EvictPhysical(const std::vector<StorePtr>& all) {
  const auto pool_bytes = static_cast<double>(options.pool->bytes_max());
  uint64_t used = 0;
  for (const StorePtr& store : all) used += store->chunk_bytes();
  if (static_cast<double>(used) <= options.high_watermark * pool_bytes) return;
  const auto target = static_cast<uint64_t>(options.low_watermark * pool_bytes);
  for (int i = 0; i < kEvictRoundsMax && used > target; ++i) {
    const auto it = std::max_element(
        all.begin(), all.end(),
        [](const StorePtr& a, const StorePtr& b) { return ExcessOf(*a) < ExcessOf(*b); });
    if (it == all.end() || (*it)->EvictColdest(kEvictStep, used - target) == 0) return;
    used = 0;
    for (const StorePtr& store : all) used += store->chunk_bytes();
  }
}

bool ObjectStore::SomeHashes(NamespaceRef ns, uint64_t* shard, uint64_t* bucket,
                             std::vector<Hash128>* hashes) {
  const StorePtr store = impl_->Of(ns);
  if (store == nullptr) return false;
  ObjectIndex::SweepCursor cursor{*shard, *bucket};
  const bool more = store->SomeHashes(&cursor, hashes);
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
