#include "mp_server/forward/replicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "mp_server/store/namespace_store.h"
#include "proto/key_page.h"

namespace ems::server {
namespace {

using std::chrono::seconds;

constexpr Duration kIdle = std::chrono::milliseconds(250);
constexpr Duration kBurst = std::chrono::milliseconds(50);  // of the rate, after a pause
constexpr uint64_t kKeyBytesMin = 4 * kKiB;                 // a key counts as so much
constexpr size_t kFoundMax = 8192;                          // keys of a repair that wait
constexpr int kTriesMax = 8;                                // of a remove
constexpr Duration kAgainMost = seconds(60);

// What it had no room for, or has otherwise, is not sent again.
bool IsFinal(wire::WireStatus status) {
  return status == wire::WireStatus::kQuotaExceeded || status == wire::WireStatus::kTooLarge ||
         status == wire::WireStatus::kAlreadyExists || status == wire::WireStatus::kInvalid;
}

}  // namespace

Replicator::Replicator(const Options& options)
    : options_(options),
      calls_(options.ownership, options.timeout),
      again_(std::max<Duration>(options.repair_after, seconds(1))) {
  EMS_CHECK(options.store != nullptr && options.ownership != nullptr && options.bytes_per_s > 0,
            "a replicator without its parts");
}

Replicator::~Replicator() { Stop(); }

void Replicator::Stop() {
  {
    auto state = state_.Lock();
    state->stop = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

void Replicator::Start() {
  thread_ = Thread("ems-replicate", [this] { Loop(); });
}

void Replicator::Loop() {
  while (true) {
    const Duration pause = Step();
    auto state = state_.Lock();
    if (pause > Duration::zero())
      state.WaitFor(wakeup_, pause, [](const State& now) { return now.stop || now.poked; });
    if (state->stop) return;
    state->poked = false;
  }
}

void Replicator::SetView(ViewCache::View view) {
  calls_.peers().SetNodes(*view);
  const TimePoint now = options_.clock->Now();
  {
    auto state = state_.Lock();
    std::erase_if(state->queues, [&](const auto& one) {
      if (view->Find(one.first) != nullptr) return false;
      state->queued -= one.second.size();
      return true;
    });
    std::erase_if(state->missed, [&](NodeId node) { return view->Find(node) == nullptr; });
    const bool none =
        view->copies().empty() && (state->view == nullptr || state->view->copies().empty());
    const bool had_none = state->view == nullptr || state->view->copies().empty();
    if (had_none && !view->copies().empty()) state->first = view;
    state->view = std::move(view);
    if (none) return;
    state->changed = true;
    state->repair_at = now + options_.repair_after;
  }
}

void Replicator::SetNamespaces(const NamespaceTable& table) {
  const TimePoint now = options_.clock->Now();
  auto state = state_.Lock();
  std::map<NamespaceId, uint32_t> before = std::exchange(state->replicas, {});
  for (const auto& [id, info] : table.by_id) {
    if (info.replicas <= 1) continue;
    state->replicas[id] = info.replicas;
    if (before[id] >= info.replicas || state->view == nullptr) continue;
    for (const NodeInfo& node : state->view->nodes()) state->missed.insert(node.id);
    state->repair_at = now + options_.repair_after;
  }
}

void Replicator::OnStored(NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key,
                          bool fresh) {
  Queue(fresh ? Kind::kPush : Kind::kOffer, ns, replicas, slot, key);
}

void Replicator::OnRemoved(NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key) {
  Queue(Kind::kRemove, ns, replicas, slot, key);
}

void Replicator::Queue(Kind kind, NamespaceRef ns, uint32_t replicas, SlotId slot,
                       std::string_view key) {
  size_t lost = 0;
  {
    auto state = state_.Lock();
    if (state->view == nullptr) return;
    const std::span<const NodeId> holders = state->view->Copies(slot);
    for (size_t i = 0; i + 1 < replicas && i < holders.size(); ++i) {
      if (holders[i] == options_.ownership->self()) continue;
      if (state->queued >= options_.queue_max) {
        ++lost;
        state->missed.insert(holders[i]);
        if (!state->repair_at) state->repair_at = options_.clock->Now() + options_.repair_after;
        continue;
      }
      state->queues[holders[i]].push_back(
          {.kind = kind, .ns = ns, .slot = slot, .key = std::string(key)});
      ++state->queued;
      state->poked = true;
    }
  }
  if (lost > 0) options_.metrics.overflows.Add(static_cast<double>(lost));
  if (lost > 0 && kind == Kind::kRemove)
    options_.metrics.lost_removes.Add(static_cast<double>(lost));
  wakeup_.notify_one();
}

Duration Replicator::Step() {
  const TimePoint now = options_.clock->Now();
  if (now < ready_at_) return ready_at_ - now;
  NodeId node;
  std::vector<Task> batch;
  if (TakeBatch(&node, &batch)) {
    SendBatch(node, std::move(batch));
    return Duration::zero();
  }
  return StepRepair(now) ? Duration::zero() : kIdle;
}

bool Replicator::TakeBatch(NodeId* node, std::vector<Task>* batch) {
  std::vector<NodeId> waiting;  // from the one whose turn it is
  {
    auto state = state_.Lock();
    options_.metrics.queued.Set(static_cast<double>(state->queued));
    for (const auto& [id, queue] : state->queues) waiting.push_back(id);
  }
  std::rotate(waiting.begin(), std::ranges::upper_bound(waiting, last_), waiting.end());
  const auto next = std::ranges::find_if(waiting, [this](NodeId id) { return MayCall(id); });
  if (next == waiting.end()) return false;
  *node = last_ = *next;
  auto state = state_.Lock();
  const auto it = state->queues.find(*node);
  if (it == state->queues.end()) return false;  // it has left
  std::deque<Task>& queue = it->second;
  while (!queue.empty() && batch->size() < kBatchKeys &&
         (batch->empty() ||
          (queue.front().kind == batch->front().kind && queue.front().ns == batch->front().ns))) {
    batch->push_back(std::move(queue.front()));
    queue.pop_front();
    --state->queued;
  }
  if (queue.empty()) state->queues.erase(it);
  return true;
}

void Replicator::SendBatch(NodeId node, std::vector<Task> batch) {
  if (batch.front().kind == Kind::kRemove) return SendRemoves(node, std::move(batch));
  const NamespaceRef ns = batch.front().ns;
  const bool offered = batch.front().kind == Kind::kOffer;
  std::vector<CopyItem> items;
  items.reserve(batch.size());
  for (Task& task : batch) items.push_back({.slot = task.slot, .key = std::move(task.key)});
  const bool done = offered ? Offer(node, ns, std::move(items)) : Push(node, ns, items);
  if (!done) Miss(node, options_.repair_after);
}

void Replicator::SendRemoves(NodeId node, std::vector<Task> batch) {
  const NamespaceRef ns = batch.front().ns;
  std::vector<CopyItem> items;
  items.reserve(batch.size());
  for (const Task& task : batch) items.push_back({.slot = task.slot, .key = task.key});
  const auto statuses = calls_.Remove(node, ns, items);
  std::vector<Task> again;
  for (size_t i = 0; i < batch.size(); ++i) {
    const wire::WireStatus status =
        statuses.ok() ? (*statuses)[i].status : wire::WireStatus::kRetryLater;
    if (status == wire::WireStatus::kOk) options_.metrics.removes.Add();
    const bool retries = status == wire::WireStatus::kRetryLater;
    if (!retries) continue;
    if (++batch[i].tries < kTriesMax) {
      again.push_back(std::move(batch[i]));
    } else {
      options_.metrics.lost_removes.Add();
    }
  }
  if (again.empty()) return;
  auto state = state_.Lock();
  if (state->view == nullptr || state->view->Find(node) == nullptr) return;
  std::deque<Task>& queue = state->queues[node];
  state->queued += again.size();  // they had room before
  queue.insert(queue.begin(), std::make_move_iterator(again.begin()),
               std::make_move_iterator(again.end()));
}

bool Replicator::Offer(NodeId node, NamespaceRef ns, std::vector<CopyItem> items) {
  if (items.empty()) return true;
  const auto there = calls_.Exist(node, ns, items);
  if (!there.ok()) {
    options_.metrics.failed.Add(static_cast<double>(items.size()));
    return false;
  }
  bool whole = true;
  std::vector<CopyItem> lacking;
  for (size_t i = 0; i < items.size(); ++i) {
    const wire::WireStatus status = (*there)[i].status;
    if (status == wire::WireStatus::kMiss || status == wire::WireStatus::kCopyMiss) {
      lacking.push_back(std::move(items[i]));
    } else if (status != wire::WireStatus::kOk) {
      whole = false;
    }
  }
  return Push(node, ns, lacking) && whole;
}

bool Replicator::Push(NodeId node, NamespaceRef ns, std::span<const CopyItem> items) {
  const TieredNamespace objects = options_.store->Open(ns);
  if (!objects) return true;  // deleted
  bool whole = true;
  std::vector<CopyItem> sent;
  std::vector<ObjectPin> values;
  uint64_t bytes = 0;
  for (size_t i = 0; i <= items.size(); ++i) {
    const bool ends = i == items.size();
    if (!sent.empty() && (ends || bytes >= kBatchBytes)) {
      const auto statuses = calls_.Put(node, ns, sent, values);
      if (!statuses.ok()) {
        options_.metrics.failed.Add(static_cast<double>(sent.size()));
        return false;
      }
      for (size_t n = 0; n < sent.size(); ++n) {
        const wire::WireStatus status = (*statuses)[n].status;
        if (status == wire::WireStatus::kOk) {
          options_.metrics.copies.Add();
          options_.metrics.bytes.Add(static_cast<double>(values[n].value().size()));
          continue;
        }
        options_.metrics.refused.Add();
        whole = whole && IsFinal(status);
      }
      Spend(std::max(bytes, kKeyBytesMin * sent.size()));
      sent.clear();
      values.clear();
      bytes = 0;
    }
    if (ends) break;
    ObjectPin pin = objects.Get(items[i].key, {.touch = false, .check = true}).pin;
    if (!pin) continue;  // it has gone again
    bytes += pin.value().size();
    values.push_back(std::move(pin));
    sent.push_back(items[i]);
  }
  return whole;
}

void Replicator::Miss(NodeId node, Duration after) {
  auto state = state_.Lock();
  state->missed.insert(node);
  if (!state->repair_at) state->repair_at = options_.clock->Now() + after;
}

bool Replicator::MayCall(NodeId node) {
  const std::shared_ptr<CircuitBreaker> breaker = calls_.peers().BreakerOf(node);
  return breaker != nullptr && breaker->Allow(Clock::System().Now());
}

bool Replicator::StepRepair(TimePoint now) {
  {
    auto state = state_.Lock();
    if (std::exchange(state->changed, false) && repair_) {
      state->missed.merge(repair_->missed);
      repair_.reset();
    }
  }
  if (!repair_) BeginRepair(now);
  if (!repair_) return false;
  if (OfferSome()) return true;
  if (repair_->store == repair_->stores.size()) {
    EndRepair(now);
    return false;
  }
  LookAtSome();
  return true;
}

// A batch of one server: a full one, or any where nothing more comes to them.
bool Replicator::OfferSome() {
  const bool any = repair_->walked || repair_->found_keys >= kFoundMax;
  const auto most = std::ranges::max_element(repair_->found, {},
                                             [](const auto& one) { return one.second.size(); });
  if (most != repair_->found.end() && !most->second.empty() &&
      (any || most->second.size() >= kBatchKeys)) {
    std::vector<CopyItem>& found = most->second;
    const size_t count = std::min(found.size(), kBatchKeys);
    std::vector<CopyItem> items(
        std::make_move_iterator(found.end() - static_cast<ptrdiff_t>(count)),
        std::make_move_iterator(found.end()));
    found.resize(found.size() - count);
    repair_->found_keys -= count;
    const NamespaceRef ns = repair_->stores[repair_->store]->ref();
    const double before = options_.metrics.copies.value();
    if (!MayCall(most->first) || !Offer(most->first, ns, std::move(items))) repair_->whole = false;
    options_.metrics.repaired.Add(options_.metrics.copies.value() - before);
    return true;
  }
  if (std::exchange(repair_->walked, false)) {
    ++repair_->store;
    repair_->cursor = {};
    return true;
  }
  return false;
}

void Replicator::LookAtSome() {
  NamespaceStore& store = *repair_->stores[repair_->store];
  const size_t column =
      std::clamp<size_t>(store.objects().copies().replicas(), 2, SlotCopies::kMost + 1) - 2;
  std::vector<ObjectIndex::Listed> page;
  repair_->walked = !store.objects().index().SomeKeys({}, kBatchKeys, &repair_->cursor, &page);
  const int64_t now_ns = store.clock().Now().time_since_epoch().count();
  for (const ObjectIndex::Listed& one : page) {
    const auto idle_ms = static_cast<uint32_t>(
        std::clamp<int64_t>((now_ns - one.used_ns) / 1'000'000, 1, wire::kUnknownMs - 1));
    for (const auto& [node, slots] : repair_->targets) {
      if (!slots[column][one.slot]) continue;
      repair_->found[node].push_back({SlotId(one.slot), one.key, idle_ms});
      ++repair_->found_keys;
    }
  }
}

void Replicator::BeginRepair(TimePoint now) {
  ViewCache::View view, first;
  std::set<NodeId> missed;
  {
    auto state = state_.Lock();
    if (!state->repair_at || *state->repair_at > now || state->view == nullptr) return;
    // What the others are told of is what this server goes by.
    if (options_.ownership->settled_version() < state->view->version()) return;
    state->repair_at.reset();
    view = state->view;
    missed = std::exchange(state->missed, {});
    first = std::exchange(state->first, nullptr);
  }
  if (first != nullptr) plan_.Settle(*first);
  CopyPlan::Targets targets = plan_.Due(*view, options_.ownership->self(), missed);
  if (targets.empty()) return plan_.Settle(*view);
  Repair repair{.view = view, .targets = std::move(targets), .missed = std::move(missed)};
  for (auto& store : options_.store->dram().Stores())
    if (store->objects().copies().replicas() > 1) repair.stores.push_back(std::move(store));
  EMS_LOG(kInfo, "mp_server", "repair of copies begins epoch={} servers={}",
          view->version().epoch(), repair.targets.size());
  repair_ = std::move(repair);
}

void Replicator::EndRepair(TimePoint now) {
  Repair ended = *std::exchange(repair_, std::nullopt);
  EMS_LOG(kInfo, "mp_server", "repair of copies ends epoch={} whole={}",
          ended.view->version().epoch(), ended.whole);
  if (ended.whole) {
    options_.metrics.repairs.Add();
    again_ = std::max<Duration>(options_.repair_after, seconds(1));
    return plan_.Settle(*ended.view);
  }
  auto state = state_.Lock();
  state->missed.merge(ended.missed);
  if (!state->repair_at) state->repair_at = now + again_;
  again_ = std::min<Duration>(again_ * 2, kAgainMost);
}

void Replicator::Spend(uint64_t bytes) {
  const double time_s = static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_s);
  ready_at_ = std::max(ready_at_, options_.clock->Now() - kBurst) +
              std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_s));
}

}  // namespace ems::server
