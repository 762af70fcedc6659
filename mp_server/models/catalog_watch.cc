#include "mp_server/models/catalog_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cluster/slot_table.h"
#include "common/check.h"
#include "common/logging.h"
#include "common/retry.h"
#include "mp_server/store/namespace_store.h"
#include "proto/model.pb.h"

namespace ems::server {
namespace {

// How long a look at the list may wait: also how soon a new view is noticed.
constexpr Duration kListWait = std::chrono::seconds(10);
constexpr Duration kListWaitPinned = std::chrono::seconds(1);
constexpr Duration kListWaitWorking = std::chrono::milliseconds(100);
constexpr Duration kCallPatience = std::chrono::seconds(2);

bool IsWanted(const v1::ModelStatus& status) {
  return status.pinned() || status.job().state() == v1::PULL_RUNNING;
}

}  // namespace

void CatalogWatch::Run() {
  Backoff backoff(table_.options.boot_id);
  while (!table_.stop.IsSet()) {
    if (Look(ListWait())) {
      backoff.Reset();
    } else if (table_.stop.WaitFor(backoff.Next())) {
      return;
    }
    FollowView();
    table_.orphans.DropOld();
  }
}

Duration CatalogWatch::ListWait() {
  auto locked = table_.state.Lock();
  if (locked->pulls.empty()) return kListWait;
  const bool working =
      std::ranges::any_of(locked->pulls, [](const auto& one) { return one.second->running(); });
  return working ? kListWaitWorking : kListWaitPinned;
}

bool CatalogWatch::Look(Duration wait) {
  if (!due_.empty()) wait = Duration(0);
  v1::ListModelsReply reply;
  const Status status = table_.models.List(list_.number(), wait, /*by_change=*/true, &reply,
                                           Deadline::After(wait + kCallPatience));
  if (!status.ok()) {
    if (!std::exchange(reported_silence_, true) && !table_.stop.IsSet())
      EMS_LOG(kWarn, "mp_server",
              "the controller does not list its models; changes are not followed until it does: {}",
              Message(status));
    return false;
  }
  reported_silence_ = false;
  std::vector<uint32_t> changed, removed;
  const Status applied = list_.Apply(reply, &changed, &removed);
  due_.insert(changed.begin(), changed.end());
  Forget(removed);
  if (!applied.ok()) {
    EMS_LOG(kWarn, "mp_server",
            "the controller's change to the list of models does not fit, so the whole list is "
            "asked for: {}",
            Message(applied));
    return false;
  }
  if (due_.empty() && removed.empty()) return true;
  for (auto id = due_.begin(); id != due_.end();) {
    const v1::ModelStatus* const one = list_.Find(*id);
    id = one == nullptr || Take(*one) ? due_.erase(id) : std::next(id);
  }
  End(TakeUnwanted());
  table_.work.notify_all();
  return due_.empty();
}

// What was removed is not used again: its blocks make room first.
void CatalogWatch::Forget(const std::vector<uint32_t>& removed) {
  if (removed.empty() || table_.options.store == nullptr) return;
  const ViewCache::Namespaces namespaces = table_.options.views->namespaces();
  for (const auto& [id, info] : namespaces->by_id) {
    const std::shared_ptr<NamespaceStore> weights = table_.options.store->dram().Open(info.ref);
    if (weights == nullptr) continue;
    for (const uint32_t version : removed) weights->objects().ForgetVersion(version);
  }
}

std::vector<std::unique_ptr<ModelPull>> CatalogWatch::TakeUnwanted() {
  std::vector<std::unique_ptr<ModelPull>> gone;
  auto locked = table_.state.Lock();
  for (auto it = locked->pulls.begin(); it != locked->pulls.end();) {
    const v1::ModelStatus* const one = list_.Find(it->first);
    if (one != nullptr && IsWanted(*one)) {
      ++it;
      continue;
    }
    gone.push_back(std::move(it->second));
    it = locked->pulls.erase(it);
  }
  return gone;
}

bool CatalogWatch::Take(const v1::ModelStatus& status) {
  const uint32_t id = status.ref().id();
  bool begins = false;
  const bool known = table_.With(id, [&](ModelPull& pull) {
    begins = IsWanted(status) && pull.job() != status.job().number();
  });
  if (!known) return !IsWanted(status) || Begin(status);
  // What other servers have read since it was looked at.
  const bool learned = !begins || digests_->LearnNews(id);
  std::vector<ObjectPin> lost;
  table_.With(id, [&](ModelPull& pull) { lost = pull.Follow(status); });
  return learned;
}

// A version that is to be worked at from now on: what it is made of, and what is known of it.
bool CatalogWatch::Begin(const v1::ModelStatus& status) {
  v1::ModelManifest proto;
  v1::ModelRef ref;
  ref.set_id(status.ref().id());
  const Status got = table_.models.GetManifest(ref, &proto, Deadline::After(5 * kCallPatience));
  if (got.code() == StatusCode::kNotFound) return true;  // removed meanwhile
  auto manifest = got.ok() ? model::FromProto(proto) : Result<model::Manifest>(got);
  if (!manifest.ok()) {
    EMS_LOG(kWarn, "mp_server", "manifest of {} {}: {}", status.ref().model(),
            status.ref().version(), Message(manifest.status()));
    return false;
  }
  auto pull = std::make_unique<ModelPull>(
      ref.id(), std::make_shared<const model::Manifest>(*std::move(manifest)));
  const bool unverified = pull->unverified();
  (void)pull->Follow(status);  // it holds no pins yet
  {
    auto locked = table_.state.Lock();
    const bool begun = locked->pulls.try_emplace(ref.id(), std::move(pull)).second;
    EMS_CHECK(begun, "version {} is at work already", ref.id());
  }
  if (digests_->Learn(ref.id()) && (!unverified || digests_->Follow(ref.id(), Duration(0)))) {
    table_.unverified.notify_all();
    return true;
  }
  auto locked = table_.state.Lock();
  locked->pulls.erase(ref.id());
  return false;
}

void CatalogWatch::End(const std::vector<std::unique_ptr<ModelPull>>& gone) {
  if (gone.empty()) return;
  // Reads of versions that are not wanted any more end now.
  std::vector<model::ManifestSource> of_gone, wanted;
  for (const auto& pull : gone) of_gone.push_back(pull->manifest()->source);
  {
    auto locked = table_.state.Lock();
    for (const auto& [id, pull] : locked->pulls) wanted.push_back(pull->manifest()->source);
  }
  table_.sources.Drop(of_gone, wanted);
  (void)table_.orphans.Clear();  // they may be theirs
  // What was read for a job that has ended is not to be read again for the next one.
  for (const auto& pull : gone) reporter_->ReportLast(pull.get());
}

// Blocks that come from another server are read as they were there. What is known already is not
// asked for again: digests do not depend on the view.
void CatalogWatch::LearnOfGained(const std::bitset<kSlotCount>& owned,
                                 const ViewCache::Namespaces& namespaces, ViewVersion installed) {
  std::vector<uint32_t> lacking;
  {
    auto locked = table_.state.Lock();
    for (const auto& [id, pull] : locked->pulls) {
      if (pull->view() == installed || pull->view() == ViewVersion()) continue;
      const NamespaceInfo* ns = namespaces->Find(pull->manifest()->name_space);
      if (ns != nullptr && pull->LacksDigests(ns->ref, owned)) lacking.push_back(id);
    }
  }
  for (const uint32_t id : lacking) {
    if (!digests_->LearnNews(id)) break;  // no controller: it compares them later
  }
}

void CatalogWatch::FollowView() {
  const ViewCache::View view = table_.options.views->view();
  const ViewVersion installed = table_.options.ownership->version();
  if (view == nullptr || view->version() != installed) return;  // soon
  std::bitset<kSlotCount> owned;
  const NodeId self = table_.options.ownership->self();
  for (uint16_t slot = 0; slot < kSlotCount; ++slot)
    owned[slot] = view->OwnerId(SlotId(slot)) == self;
  const ViewCache::Namespaces namespaces = table_.options.views->namespaces();
  LearnOfGained(owned, namespaces, installed);
  const TimePoint now = Clock::System().Now();
  std::vector<ObjectPin> dropped;
  {
    auto locked = table_.state.Lock();
    for (const auto& [id, pull] : locked->pulls) {
      pull->Retry(now);
      const NamespaceInfo* ns = namespaces->Find(pull->manifest()->name_space);
      if (ns != nullptr && pull->view() == installed && pull->name_space() == ns->ref) continue;
      // One that was deleted and made again is another one, and empty.
      std::vector<ObjectPin> lost =
          ns != nullptr ? pull->SetOwned(installed, ns->ref, owned) : pull->WithoutNamespace(now);
      std::ranges::move(lost, std::back_inserter(dropped));
    }
  }
  table_.Wake();
}

}  // namespace ems::server
