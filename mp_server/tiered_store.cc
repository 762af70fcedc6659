#include "mp_server/tiered_store.h"

#include <algorithm>
#include <utility>

#include "common/fail_point.h"
#include "common/object_key.h"

namespace ems::server {
namespace {

ssd::ObjectName NameOf(NamespaceRef ns, std::string_view key) { return {ns, KeyHash(key)}; }

// An object in DRAM, pinned until it has been written.
class PinnedObject final : public ssd::DirtyObject {
 public:
  explicit PinnedObject(ObjectPin pin) : pin_(std::move(pin)) {}
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

std::string TieredStore::SsdState() const {
  if (ssd_ == nullptr) return "there is none";
  const std::string reason = ssd_->reason();
  std::string text(ssd::TierStateName(ssd_->state()));
  return reason.empty() ? text : text + ": " + reason;
}

bool TieredStore::FitsSsd(uint64_t value_bytes) const {
  return ssd_ != nullptr && value_bytes <= ssd_->value_bytes_max();
}

std::optional<ObjectInfo> TieredStore::Find(NamespaceRef ns, std::string_view key, bool touch) {
  if (auto info = dram_->Find(ns, key, touch); info || ssd_ == nullptr) return info;
  const auto stored = ssd_->Find(NameOf(ns, key), touch);
  if (!stored || !dram_->Knows(ns)) return std::nullopt;
  return ObjectInfo{stored->value_bytes(), stored->checksum()};
}

bool TieredStore::OnSsd(NamespaceRef ns, std::string_view key) {
  return ssd_ != nullptr && ssd_->Find(NameOf(ns, key), false).has_value();
}

TieredStore::Started TieredStore::StartFetch(NamespaceRef ns, std::string_view key,
                                             const Wake& wake) {
  const ssd::ObjectName name = NameOf(ns, key);
  FetchPtr fetch;
  {
    auto flights = flights_.Lock();
    const auto it = flights->find(name);
    if (it != flights->end()) {
      it->second.waiting.push_back(wake);
      return {it->second.fetch, false};
    }
    if (flights->size() >= ssd_->reads_max()) return {nullptr, true};
    fetch = std::make_shared<Fetch>();
    flights->emplace(name, Flight{fetch, {wake}});
  }
  const Begun begun = Begin(fetch, name, key);
  if (begun == Begun::kComing) return {fetch, false};
  const bool busy = begun == Begun::kBusy;
  End(fetch, name, busy ? Fetch::State::kAgain : Fetch::State::kMiss, 1);
  return {nullptr, busy};
}

// From here on a Remove finds the fetch. What the SSD has is looked up only now, so that none slips
// in between.
TieredStore::Begun TieredStore::Begin(const FetchPtr& fetch, const ssd::ObjectName& name,
                                      std::string_view key) {
  const auto stored = ssd_->Find(name, true);
  if (!stored) return Begun::kMiss;
  Result<Reservation> room =
      dram_->Reserve(name.ns, SlotId(stored->row.slot), key, stored->value_bytes());
  if (!room.ok())
    return room.status().code() == StatusCode::kResourceExhausted ? Begun::kBusy : Begun::kMiss;
  fetch->reservation_ = *std::move(room);
  const ssd::ReadTarget target{fetch->reservation_.value(), fetch->reservation_.piece_sums()};
  const bool begun =
      ssd_->Read(name, std::string(key), *stored, target,
                 [this, fetch, name, checksum = stored->checksum()](ssd::ReadOutcome outcome) {
                   Land(fetch, name, checksum, outcome);
                 });
  return begun ? Begun::kComing : Begun::kMiss;
}

void TieredStore::Land(const FetchPtr& fetch, const ssd::ObjectName& name, uint64_t checksum,
                       ssd::ReadOutcome outcome) {
  EMS_FAIL_POINT("fetch.before_publish");
  if (outcome != ssd::ReadOutcome::kOk) return End(fetch, name, Fetch::State::kMiss, 0);
  bool stored = false;
  const Status published = ObjectStore::Publish(
      std::move(fetch->reservation_), checksum,
      {.overwrite = false, .cancelled = &fetch->cancelled_, .pin = &fetch->pin_}, &stored);
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

Status TieredStore::Publish(Reservation reservation, uint64_t checksum, bool overwrite,
                            bool durable, const Wake& wake, bool* stored, ssd::TicketPtr* ticket) {
  if (ssd_ == nullptr)
    return ObjectStore::Publish(std::move(reservation), checksum, {.overwrite = overwrite}, stored);
  const ssd::ObjectName name{reservation.ns(), reservation.hash()};
  const std::string key(reservation.key());
  ObjectPin pin;
  EMS_RETURN_IF_ERROR(ObjectStore::Publish(std::move(reservation), checksum,
                                           {.overwrite = overwrite, .pin = &pin}, stored));
  if (!*stored) {
    if (Confirm(name.ns, key, durable, wake, ticket)) return OkStatus();
    return Error(StatusCode::kFailedPrecondition, "the key was removed meanwhile");
  }
  EMS_FAIL_POINT("put.after_publish");
  const auto there = ssd_->Find(name, false);
  const bool same =
      there && there->checksum() == checksum && there->value_bytes() == pin.value().size();
  if (same) {  // it had gone from DRAM alone
    if (durable) *ticket = ssd_->MakeDurable(name, wake);
    return OkStatus();
  }
  if (there && !overwrite) {  // it came to the SSD, and went from DRAM, while this one arrived
    if (pin.linked()) (void)dram_->Remove(name.ns, key);
    return Error(StatusCode::kAlreadyExists, "the key holds another value");
  }
  const ObjectPin until_cancelled = pin.Share();  // an old value that is on its way finds this one
  *ticket = ssd_->Put(name, std::make_unique<PinnedObject>(std::move(pin)), durable, wake);
  Cancel(name);
  return OkStatus();
}

bool TieredStore::Confirm(NamespaceRef ns, std::string_view key, bool durable, const Wake& wake,
                          ssd::TicketPtr* ticket) {
  if (ssd_ == nullptr) return true;
  const ssd::ObjectName name = NameOf(ns, key);
  if (!durable) {
    // An earlier Put of it may have replaced a value whose row is still there.
    *ticket = ssd_->MakeForgotten(name, wake);
    return true;
  }
  if (ssd_->Find(name, false) || ssd_->Pending(name)) {
    *ticket = ssd_->MakeDurable(name, wake);
    return true;
  }
  ObjectPin pin = dram_->Get(ns, key, false);  // it was put when the SSD had no room for it
  if (!pin) return false;
  *ticket = ssd_->Put(name, std::make_unique<PinnedObject>(std::move(pin)), true, wake);
  return true;
}

// The SSD first: once it has nothing under the name, no new fetch begins; then those under way are
// told; then DRAM. A value that had landed before it was told is in DRAM by then, and goes with it.
TieredStore::Removed TieredStore::Remove(NamespaceRef ns, std::string_view key, const Wake& wake) {
  Removed removed;
  if (ssd_ != nullptr && dram_->Knows(ns)) {
    const ssd::ObjectName name = NameOf(ns, key);
    removed.ticket = ssd_->Remove(name, wake);
    EMS_FAIL_POINT("remove.after_ssd");
    Cancel(name);
  }
  removed.found = dram_->Remove(ns, key) || removed.ticket != nullptr;
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

void TieredStore::SetOwnedSlots(const ssd::SlotGrant& grant) {
  // The SSD first: what is fetched from now on is owned, and what was fetched before is refused or
  // dropped with the rest of DRAM.
  if (ssd_ != nullptr) {
    ssd_->SetOwnedSlots(grant);
    CancelAll();  // what was stored in lost slots must not land
  }
  // Slots that come, or come back, begin empty, whatever was on its way to them.
  const std::bitset<kSlotCount> kept = grant.Kept(granted_);
  if (kept != grant.owned) dram_->SetOwnedSlots(kept);
  dram_->SetOwnedSlots(grant.owned);
  granted_ = grant.Record(0);  // of DRAM, which no later life of this server has
}

}  // namespace ems::server
