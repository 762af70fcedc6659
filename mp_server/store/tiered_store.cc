#include "mp_server/store/tiered_store.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/check.h"
#include "common/fail_point.h"
#include "mp_server/index/object_index.h"
#include "mp_server/store/namespace_store.h"

namespace ems::server {
namespace {

// An object in DRAM, which keeps its bytes and its name until it has been written.
class PinnedObject final : public ssd::DirtyObject {
 public:
  explicit PinnedObject(ObjectPin pin) : pin_(std::move(pin)) { pin_.BeginWrite(); }
  ~PinnedObject() override { pin_.EndWrite(); }
  bool current() const override { return pin_.linked(); }
  std::string_view key() const override { return pin_.key(); }
  ConstBytes value() const override { return pin_.value(); }
  uint64_t checksum() const override { return pin_.checksum(); }
  std::span<const uint64_t> piece_sums() const override { return pin_.piece_sums(); }
  uint16_t slot() const override { return pin_.slot(); }

 private:
  ObjectPin pin_;
};

}  // namespace

static_assert(TieredNamespace::kFindMax <= ObjectIndex::kFindMax);

TieredStore::TieredStore(ObjectStore* dram, ssd::SsdTier* ssd) : dram_(dram), ssd_(ssd) {
  if (ssd != nullptr) dram->SetHurry([ssd] { ssd->HurryHeldBack(); });
}

std::string TieredStore::SsdState() const {
  if (ssd_ == nullptr) return "there is none";
  const std::string reason = ssd_->reason();
  std::string text(ssd::TierStateName(ssd_->state()));
  return reason.empty() ? text : text + ": " + reason;
}

bool TieredStore::ssd_offline() const {
  return ssd_ != nullptr && ssd_->state() == ssd::TierState::kOffline;
}

bool TieredStore::FitsSsd(uint64_t value_bytes) const {
  return ssd_ != nullptr && value_bytes <= ssd_->value_bytes_max();
}

bool TieredStore::Open(NamespaceRef ns, TieredNamespace* objects) {
  if (objects->ns_ != ns || objects->store_ != this) *objects = TieredNamespace();
  objects->dram_ = objects->last_.lock();
  if (objects->dram_ == nullptr || objects->dram_->closed()) objects->dram_ = dram_->Open(ns);
  if (objects->dram_ == nullptr) return false;
  EMS_CHECK(objects->dram_->ref() == ns, "another namespace was opened");
  objects->store_ = this;
  objects->ns_ = ns;
  objects->last_ = objects->dram_;
  objects->opened_ = objects->dram_->clock().Now();
  return true;
}

bool TieredNamespace::open() const { return dram_ != nullptr && !dram_->closed(); }

bool TieredNamespace::immutable() const { return dram_->immutable(); }
const std::string& TieredNamespace::name() const { return dram_->name(); }
uint32_t TieredNamespace::replicas() const { return dram_->objects().copies().replicas(); }
bool TieredNamespace::HoldsCopies(SlotId slot) const {
  return dram_->objects().copies().Holds(slot);
}

bool TieredNamespace::IsWorthCopy(std::string_view key, uint64_t value_bytes, Duration idle) const {
  return idle == Duration::zero() || idle < store_->dram_->IdleMost(ns_, key, value_bytes);
}

void TieredNamespace::Rest() {
  if (looked_up_ > 0 && dram_ != nullptr) dram_->objects().sampler().Count(looked_up_, in_dram_);
  looked_up_ = in_dram_ = 0;
  dram_.reset();
}

ssd::ObjectName TieredNamespace::NameOf(std::string_view key) const {
  return {ns_, dram_->HashOf(key)};
}

std::optional<TieredNamespace::Found> TieredNamespace::Find(std::string_view key,
                                                            bool touch) const {
  if (dram_ == nullptr) return std::nullopt;
  const auto info = dram_->Find(key, touch, opened_);
  if (touch) CountLookups(1, info ? 1 : 0);
  if (info) return Found{*info, true};
  return FindOnSsd(key, touch);
}

std::optional<TieredNamespace::Found> TieredNamespace::FindForPut(std::string_view key) const {
  if (dram_ == nullptr) return std::nullopt;
  if (const auto info = dram_->FindForPut(key, opened_)) return Found{*info, true};
  return FindOnSsd(key, true);
}

void TieredNamespace::FindMany(std::span<const std::string_view> keys, bool touch,
                               std::span<std::optional<Found>> found) const {
  EMS_CHECK(keys.size() <= kFindMax && found.size() == keys.size(), "{} keys, {} places",
            keys.size(), found.size());
  std::ranges::fill(found, std::nullopt);
  if (dram_ == nullptr) return;
  std::array<ObjectIndex::Found, kFindMax> in_dram;
  dram_->FindMany(keys, touch, opened_, std::span(in_dram).first(keys.size()));
  uint64_t there = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (in_dram[i].entry != nullptr) {
      ++there;
      found[i] = Found{{in_dram[i].value_bytes, in_dram[i].checksum}, true};
    } else {
      found[i] = FindOnSsd(keys[i], touch);
    }
  }
  if (touch) CountLookups(keys.size(), there);
}

std::optional<TieredNamespace::Found> TieredNamespace::FindOnSsd(std::string_view key,
                                                                 bool touch) const {
  if (store_->ssd_ == nullptr) return std::nullopt;
  const auto stored = store_->ssd_->Find(NameOf(key), touch);
  if (!stored || !open()) return std::nullopt;
  return Found{{stored->value_bytes(), stored->checksum()}, false};
}

TieredNamespace::Got TieredNamespace::Get(std::string_view key, ReadOptions options) const {
  if (dram_ == nullptr) return {};
  ObjectPin pin = dram_->Get(key, options.touch, opened_);
  if (options.touch) CountLookups(1, pin ? 1 : 0);
  if (pin) {
    if (!options.check || pin.Intact()) return {std::move(pin), std::nullopt};
    pin.DropDamaged();
  }
  return {{}, OnSsd(key)};
}

std::optional<ObjectInfo> TieredNamespace::OnSsd(std::string_view key) const {
  if (dram_ == nullptr || store_->ssd_ == nullptr) return std::nullopt;
  const auto stored = store_->ssd_->Find(NameOf(key), false);
  if (!stored) return std::nullopt;
  return ObjectInfo{stored->value_bytes(), stored->checksum()};
}

Result<Hold> TieredNamespace::AdmitPut(uint64_t value_bytes) const {
  if (!open()) return Error(StatusCode::kFailedPrecondition, "the namespace is not known here");
  Allowance& filling = dram_->room().filling();
  Hold hold({dram_, &filling}, std::max<uint64_t>(1, dram_->room().memory_bytes() / 4));
  if (hold.Grow(value_bytes)) return hold;
  return Error(StatusCode::kResourceExhausted,
               "no room for a value of {}: values that are being received have {} of the {} that "
               "namespace {} gives them here; try again shortly",
               FormatBytes(value_bytes), FormatBytes(filling.held_bytes()),
               FormatBytes(hold.limit()), dram_->name());
}

Hold TieredNamespace::HoldForAnswer() const {
  return {{dram_, &dram_->room().sending()},
          std::max<uint64_t>(1, dram_->room().memory_bytes() / 2)};
}

uint64_t TieredNamespace::answer_pins_max() const { return dram_->room().memory_bytes() / 4; }

Result<Reservation> TieredNamespace::Reserve(SlotId slot, std::string_view key,
                                             uint64_t value_bytes) const {
  if (!open()) return Error(StatusCode::kFailedPrecondition, "the namespace is not known here");
  Result<Reservation> room = dram_->Reserve(slot, key, value_bytes);
  const bool full = !room.ok() && room.status().code() == StatusCode::kResourceExhausted;
  if (full && store_->ssd_ != nullptr) store_->ssd_->HurryHeldBack();  // they are pinned
  return room;
}

TieredNamespace::Started TieredNamespace::StartFetch(std::string_view key, const Wake& wake) const {
  EMS_CHECK(dram_ != nullptr && store_->ssd_ != nullptr, "nothing was found to be fetched");
  const ssd::ObjectName name = NameOf(key);
  FetchPtr fetch;
  {
    auto flights = store_->flights_.Lock();
    const auto it = flights->find(name);
    if (it != flights->end()) {
      if (it->second.fetch->key_ != key) return {nullptr, false};
      it->second.waiting.push_back(wake);
      return {it->second.fetch, false};
    }
    if (flights->size() >= store_->ssd_->reads_max()) return {nullptr, true};
    fetch = std::make_shared<Fetch>(key);
    flights->emplace(name, TieredStore::Flight{fetch, {wake}});
  }
  const Begun begun = Begin(fetch, name, key);
  if (begun == Begun::kComing) return {fetch, false};
  const bool busy = begun == Begun::kBusy;
  store_->End(fetch, name, busy ? Fetch::State::kAgain : Fetch::State::kMiss, 1);
  return {nullptr, busy};
}

// From here on a Remove finds the fetch. What the SSD has is looked up only now, so that none slips
// in between.
TieredNamespace::Begun TieredNamespace::Begin(const FetchPtr& fetch, const ssd::ObjectName& name,
                                              std::string_view key) const {
  const auto stored = store_->ssd_->Find(name, true);
  if (!stored) return Begun::kMiss;
  Result<Reservation> room = Reserve(SlotId(stored->row.slot), key, stored->value_bytes());
  if (!room.ok())
    return room.status().code() == StatusCode::kResourceExhausted ? Begun::kBusy : Begun::kMiss;
  fetch->reservation_ = *std::move(room);
  const ssd::ReadTarget target{fetch->reservation_.value(), fetch->reservation_.piece_sums()};
  const bool begun = store_->ssd_->Read(
      name, std::string(key), *stored, target,
      [store = store_, fetch, name, checksum = stored->checksum()](ssd::ReadOutcome outcome) {
        store->Land(fetch, name, checksum, outcome);
      });
  return begun ? Begun::kComing : Begun::kMiss;
}

void TieredStore::Land(const FetchPtr& fetch, const ssd::ObjectName& name, uint64_t checksum,
                       ssd::ReadOutcome outcome) {
  EMS_FAIL_POINT("fetch.before_publish");
  EMS_CHECK(static_cast<bool>(fetch->reservation_), "a fetch lands twice");
  if (outcome != ssd::ReadOutcome::kOk) return End(fetch, name, Fetch::State::kMiss, 0);
  bool stored = false;
  const Status published = ObjectStore::Publish(
      std::move(fetch->reservation_), checksum,
      {.overwrite = false, .cancelled = &fetch->cancelled_, .pin = &fetch->pin_, .elsewhere = true},
      &stored);
  if (stored) return End(fetch, name, Fetch::State::kHere, 0);
  // The same or another value is there by now, or nothing may be any more.
  const bool there = published.ok() || published.code() == StatusCode::kAlreadyExists;
  End(fetch, name, there ? Fetch::State::kAgain : Fetch::State::kMiss, 0);
}

void TieredStore::End(const FetchPtr& fetch, const ssd::ObjectName& name, Fetch::State state,
                      size_t skip) {
  if (state != Fetch::State::kHere) fetch->reservation_ = Reservation();
  std::vector<Wake> waiting;
  {
    auto flights = flights_.Lock();
    const auto it = flights->find(name);
    EMS_CHECK(it != flights->end() && it->second.fetch == fetch, "a fetch ends twice");
    waiting.swap(it->second.waiting);
    flights->erase(it);
  }
  fetch->state_.store(state, std::memory_order_release);
  for (size_t i = skip; i < waiting.size(); ++i) waiting[i]();
}

// A value that is being fetched must not become visible any more.
void TieredStore::Cancel(const ssd::ObjectName& name) {
  auto flights = flights_.Lock();
  const auto it = flights->find(name);
  if (it != flights->end()) it->second.fetch->cancelled_.store(true, std::memory_order_release);
}

void TieredStore::CancelAll() {
  auto flights = flights_.Lock();
  for (const auto& [name, flight] : *flights)
    flight.fetch->cancelled_.store(true, std::memory_order_release);
}

ObjectPin TieredNamespace::GetKept(SlotId slot, std::string_view key, Era era) const {
  return dram_->GetKept(slot, key, era);
}

std::optional<Origin> TieredNamespace::Untouched(SlotId slot, std::string_view key, Era era) const {
  MovedSlots* const moved = store_->dram_->moved();
  return moved == nullptr ? std::nullopt : moved->Untouched(slot, era, ns_, dram_->HashOf(key));
}

Hash128 TieredNamespace::HashOf(std::string_view key) const { return dram_->HashOf(key); }

// A change of the key that comes after it was linked finds it, as it would find any Put.
Status TieredNamespace::PublishKept(Reservation reservation, uint64_t checksum, uint64_t era_since,
                                    bool* stored, ObjectPin* pin) const {
  const ssd::ObjectName name{reservation.ns(), reservation.hash()};
  ssd::SsdTier* const ssd = store_->ssd_;
  EMS_RETURN_IF_ERROR(ObjectStore::Publish(
      std::move(reservation), checksum,
      {.pin = pin, .settling = ssd != nullptr, .kept_for = era_since, .elsewhere = true}, stored));
  if (!*stored || ssd == nullptr) return OkStatus();
  ssd::TicketPtr ticket;
  const Status told = store_->TellSsd(
      name, *pin, false, false, [] {}, &ticket);
  pin->Settle();
  return told;
}

Status TieredStore::Publish(Reservation reservation, uint64_t checksum, bool overwrite,
                            bool durable, const Wake& wake, bool* stored, ssd::TicketPtr* ticket) {
  if (ssd_ == nullptr)
    return ObjectStore::Publish(std::move(reservation), checksum, {.overwrite = overwrite}, stored);
  const ssd::ObjectName name{reservation.ns(), reservation.hash()};
  const std::string key(reservation.key());
  ObjectPin pin;
  EMS_RETURN_IF_ERROR(ObjectStore::Publish(std::move(reservation), checksum,
                                           {.overwrite = overwrite, .pin = &pin, .settling = true},
                                           stored));
  if (!*stored) {
    if (Open(name.ns).Confirm(key, durable, wake, ticket)) return OkStatus();
    return Error(StatusCode::kFailedPrecondition, "the key was removed meanwhile");
  }
  EMS_FAIL_POINT("put.after_publish");
  const Status told = TellSsd(name, pin, overwrite, durable, wake, ticket);
  pin.Settle();
  // What has replaced it may not have told the SSD yet, where an even older value is in force.
  const bool replaced = told.ok() && !durable && *ticket == nullptr && !pin.linked();
  if (replaced) (void)Open(name.ns).Confirm(key, false, wake, ticket);
  return told;
}

// It stays settling all the while: if it went before the SSD has begun with it, the older value
// there would count again, and one that is on its way to DRAM would find nothing in its place.
Status TieredStore::TellSsd(const ssd::ObjectName& name, const ObjectPin& pin, bool overwrite,
                            bool durable, const Wake& wake, ssd::TicketPtr* ticket) {
  const auto there = ssd_->Find(name, false);
  const bool same =
      there && there->checksum() == pin.checksum() && there->value_bytes() == pin.value().size();
  if (same) {  // it had gone from DRAM alone
    if (durable) *ticket = ssd_->MakeDurable(name, wake);
    return OkStatus();
  }
  if (there && !overwrite) {  // it came to the SSD, and went from DRAM, while this one arrived
    pin.Withdraw();
    return Error(StatusCode::kAlreadyExists, "the key holds another value");
  }
  *ticket = ssd_->Put(name, std::make_unique<PinnedObject>(pin.Share()), durable, wake);
  Cancel(name);
  return OkStatus();
}

bool TieredNamespace::Confirm(std::string_view key, bool durable, const Wake& wake,
                              ssd::TicketPtr* ticket) const {
  if (dram_ == nullptr) return false;
  ssd::SsdTier* const ssd = store_->ssd_;
  if (ssd == nullptr) return true;
  const ssd::ObjectName name = NameOf(key);
  ObjectPin pin = dram_->Get(key, false);
  // Its Put is between DRAM and SSD: what the SSD has may be older, and this caller may be answered
  // first.
  const bool settling = pin && pin.settling();
  if (!settling && !durable) {
    // An earlier Put of it may have replaced a value whose row is still there.
    *ticket = ssd->MakeForgotten(name, wake);
    return true;
  }
  if (!settling && (ssd->Find(name, false) || ssd->Pending(name))) {
    *ticket = ssd->MakeDurable(name, wake);
    return true;
  }
  if (!pin) return false;
  // Or it was put when the SSD had no room for it.
  *ticket = ssd->Put(name, std::make_unique<PinnedObject>(std::move(pin)), durable, wake);
  return true;
}

bool TieredNamespace::TooSmallForSsd(std::string_view key, uint64_t value_bytes,
                                     bool overwrite) const {
  ssd::SsdTier* const ssd = store_->ssd_;
  if (ssd == nullptr) return false;
  const ssd::ObjectName name = NameOf(key);
  if (!overwrite && (ssd->Find(name, false) || ssd->Pending(name))) return false;
  return ssd->RefusesSmall(ns_, value_bytes);
}

// The SSD first: once it has nothing under the name, no new fetch begins; then those under way are
// told; then DRAM. A value that had landed before it was told is in DRAM by then, and goes with it.
TieredNamespace::Removed TieredNamespace::Remove(std::string_view key, const Wake& wake,
                                                 std::optional<SlotId> slot) const {
  if (!open()) return {};
  Removed removed;
  if (store_->ssd_ != nullptr) {
    const ssd::ObjectName name = NameOf(key);
    removed.ticket = store_->ssd_->Remove(name, wake);
    EMS_FAIL_POINT("remove.after_ssd");
    store_->Cancel(name);
  }
  removed.found = dram_->Remove(key, slot) || removed.ticket != nullptr;
  return removed;
}

void TieredStore::SetNamespaces(const NamespaceTable& table, double share) {
  dram_->SetNamespaces(table, share);
  if (ssd_ == nullptr) return;
  const auto part = [share](uint64_t bytes) {
    return bytes == 0
               ? 0
               : std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(bytes) * share));
  };
  std::vector<ssd::NamespaceLimits> limits;
  limits.reserve(table.by_id.size());
  for (const auto& [id, info] : table.by_id) {
    limits.push_back(
        {info.ref, part(info.ssd_quota_bytes), part(info.ssd_reserved_bytes), info.relaxed_sync});
  }
  ssd_->SetNamespaces(limits);
}

void TieredStore::GainSlots(const ssd::SlotGrant& grant,
                            const std::map<uint16_t, Origin>& origins) {
  if (MovedSlots* const moved = dram_->moved(); moved != nullptr)
    moved->Gain(grant.history, grant.since, grant.owned, origins);
}

std::bitset<kSlotCount> TieredStore::LostTo(const ssd::SlotGrant& grant) const {
  std::bitset<kSlotCount> lost;
  if (dram_->moved() != nullptr) lost = owned_ & ~grant.owned;
  for (size_t i = lost._Find_first(); i < kSlotCount; i = lost._Find_next(i))
    lost[i] = grant.Follows(granted_, static_cast<uint16_t>(i));
  return lost;
}

void TieredStore::SetOwnedSlots(const ssd::SlotGrant& grant) {
  // The SSD first: what is fetched from now on is owned, and what was fetched before is refused or
  // dropped with the rest of DRAM.
  if (ssd_ != nullptr) {
    ssd_->SetOwnedSlots(grant);
    CancelAll();  // what was stored in lost slots must not land
  }
  const std::bitset<kSlotCount> lost = LostTo(grant);
  dram_->DropKept(owned_ & ~grant.owned);  // of an earlier time in which they were lost
  // Slots that come, or come back, begin empty, whatever was on its way to them.
  const std::bitset<kSlotCount> kept = grant.Kept(granted_);
  EMS_CHECK((kept & ~grant.owned).none(), "slots are kept that are not owned");
  if (kept != grant.owned) dram_->SetOwnedSlots(kept, lost);
  dram_->SetOwnedSlots(grant.owned, lost);
  if (MovedSlots* const moved = dram_->moved(); moved != nullptr)
    moved->Lose(grant.history, grant.since, grant.owned, lost);
  granted_ = grant.Record(0);  // of DRAM, which a life of this server after a crash does not have
  owned_ = grant.owned;
}

}  // namespace ems::server
