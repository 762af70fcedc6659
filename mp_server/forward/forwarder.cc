#include "mp_server/forward/forwarder.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "common/fail_point.h"
#include "mp_server/forward/copy_calls.h"
#include "mp_server/forward/copy_fetch.h"
#include "mp_server/forward/results_sink.h"

namespace ems::server {

using wire::KeptHead;
using wire::KeptState;

namespace {

constexpr int kHopsMax = 2;  // who had the slot before, and who had it before that one

}  // namespace

// What an origin has said of a key.
struct Forwarder::Asked {
  KeptState state = KeptState::kGone;
  bool refused = false;       // it did not say
  Origin before{};            // kUntouched
  Hold filling{};             // kValue, as the next
  Reservation reservation{};  // empty: there was no room
  uint64_t checksum = 0;
  ObjectPin own{};  // what it was copied from, where it was here
};

namespace {

// The answer to one GetKept: its value goes where the key will be.
class KeptSink final : public fabric::AnswerSink {
 public:
  // `request` is what is asked; it is sealed before an answer comes.
  KeptSink(const wire::FrameHeader* request, const TieredNamespace* objects, SlotId slot,
           std::string_view key)
      : request_(*request), objects_(*objects), slot_(slot), key_(key) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override {
    body_bytes_ = header.body_bytes;
    return std::min<uint64_t>(body_bytes_, sizeof(KeptHead));
  }
  Status OnTable(ConstBytes table) override {
    if (table.size() != sizeof(KeptHead))
      return Error(StatusCode::kDataLoss, "an answer to GetKept of {} bytes", table.size());
    head_ = wire::ReadRaw<KeptHead>(table);
    return OkStatus();
  }
  bool NextValue(Value* value) override {
    if (head_.state != KeptState::kValue || std::exchange(given_, true)) return false;
    value->bytes = body_bytes_ - sizeof(KeptHead);
    auto filling = objects_.AdmitPut(value->bytes);
    if (!filling.ok()) return true;
    auto room = objects_.Reserve(slot_, key_, value->bytes);
    if (!room.ok()) return true;
    filling_ = *std::move(filling);
    reservation_ = *std::move(room);
    into_ = reservation_.value();
    value->into = std::span(&into_, 1);
    return true;
  }
  void OnValue(uint64_t checksum) override {
    whole_ = checksum == wire::FoldChecksum(head_.checksum, request_);
    checksum_ = checksum;
  }

  const KeptHead& head() const { return head_; }
  bool whole() const { return whole_; }
  uint64_t checksum() const { return checksum_; }
  Hold& filling() { return filling_; }
  Reservation& reservation() { return reservation_; }

 private:
  const wire::FrameHeader& request_;
  const TieredNamespace& objects_;
  const SlotId slot_;
  const std::string_view key_;
  KeptHead head_;
  uint64_t body_bytes_ = 0, checksum_ = 0;
  bool given_ = false, whole_ = false;
  Hold filling_;
  Reservation reservation_;
  MutableBytes into_;
};

}  // namespace

Forwarder::Forwarder(const Options& options) : options_(options) {
  EMS_CHECK(options.store != nullptr && options.ownership != nullptr && options.moved != nullptr,
            "a forwarder without its parts");
  for (size_t i = 0; i < options.threads; ++i)
    threads_.emplace_back("ems-forward-" + std::to_string(i), [this] { Run(); });
}

Forwarder::~Forwarder() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  threads_.clear();
  std::vector<TaskPtr> left;
  {
    auto state = state_.Lock();
    for (const auto& [name, task] : state->flights) left.push_back(task);
  }
  for (const TaskPtr& task : left) End(task, Fetch::State::kMiss);
}

FetchPtr Forwarder::Start(NamespaceRef ns, SlotId slot, std::string_view key, Hash128 hash,
                          const Wake& wake, uint32_t replicas) {
  std::optional<Origin> origin = options_.moved->OriginOf(slot);
  if (origin && options_.moved->IsMarked(slot, ns, hash, origin->era.since)) return nullptr;
  std::vector<NodeId> copies = SourcesOf(slot, replicas);
  if (origin && !copies.empty() && peers_.BreakerOf(origin->node) == nullptr) origin.reset();
  const bool kept = origin.has_value();
  if (!kept && copies.empty()) return nullptr;
  if (!kept) origin = Origin{{}, copies.front()};
  const std::pair<NamespaceRef, std::string> name{ns, std::string(key)};
  const std::shared_ptr<CircuitBreaker> breaker = peers_.BreakerOf(origin->node);
  if (breaker == nullptr) return nullptr;
  const bool allowed = breaker->Allow(Clock::System().Now());
  {
    auto state = state_.Lock();
    const auto flight = state->flights.find(name);
    if (flight != state->flights.end()) {
      flight->second->waiting.push_back(wake);
      return flight->second->fetch;
    }
    size_t& pending = state->pending[origin->node];
    if (allowed && !state->stopping && pending < options_.pending_max) {
      ++pending;
      auto task = std::make_shared<Task>(Task{.ns = ns,
                                              .slot = slot,
                                              .key = name.second,
                                              .origin = *origin,
                                              .kept = kept,
                                              .copies = std::move(copies),
                                              .fetch = std::make_shared<Fetch>(key),
                                              .deadline = Deadline::After(options_.timeout),
                                              .waiting = {wake}});
      state->flights.emplace(name, task);
      state->queue.push_back(task);
      wakeup_.notify_one();
      return task->fetch;
    }
  }
  options_.metrics.refused.Add();
  return nullptr;
}

void Forwarder::Run() {
  PeerCalls::Channels channels;
  while (true) {
    TaskPtr task;
    LookupPtr lookup;
    {
      auto state = state_.Lock();
      state.Wait(wakeup_, [](const State& s) {
        return s.stopping || !s.queue.empty() || !s.lookups.empty();
      });
      if (state->stopping) return;
      if (!state->lookups.empty()) {
        lookup = std::move(state->lookups.front());
        state->lookups.pop_front();
      } else {
        task = std::move(state->queue.front());
        state->queue.pop_front();
      }
    }
    if (task != nullptr) {
      End(task, Serve(*task, &channels));
    } else {
      Serve(lookup.get(), &channels);
    }
  }
}

LookupPtr Forwarder::Look(NamespaceRef ns, std::vector<Lookup::Item> items, const Wake& wake,
                          uint32_t replicas) {
  const TieredNamespace objects = options_.store->Open(ns);
  if (!objects) return nullptr;
  std::erase_if(items, [&](Lookup::Item& item) {
    item.next = options_.moved->OriginOf(item.slot);
    if (item.next &&
        options_.moved->IsMarked(item.slot, ns, objects.HashOf(item.key), item.next->era.since)) {
      return true;
    }
    if (item.next && peers_.BreakerOf(item.next->node) == nullptr) item.next.reset();
    item.copies = SourcesOf(item.slot, replicas);
    return !item.next && item.copies.empty();
  });
  if (items.empty()) return nullptr;
  auto lookup = std::make_shared<Lookup>();
  lookup->ns_ = ns;
  lookup->items_ = std::move(items);
  lookup->wake_ = wake;
  lookup->deadline_ = Deadline::After(options_.timeout);
  bool taken = false;
  {
    auto state = state_.Lock();
    taken = !state->stopping && state->lookups.size() < options_.pending_max;
    if (taken) state->lookups.push_back(lookup);
  }
  if (!taken) {
    options_.metrics.refused.Add(static_cast<double>(lookup->items_.size()));
    return nullptr;
  }
  wakeup_.notify_one();
  return lookup;
}

void Forwarder::Serve(Lookup* lookup, PeerCalls::Channels* channels) {
  const TieredNamespace objects = options_.store->Open(lookup->ns_);
  for (int hops = 0; hops < kHopsMax && objects; ++hops) {
    std::map<NodeId, std::vector<Lookup::Item*>> by_node;
    for (Lookup::Item& item : lookup->items_)
      if (item.next) by_node[item.next->node].push_back(&item);
    for (const auto& [node, items] : by_node) {
      if (node == options_.ownership->self()) {
        TakeOwn(objects, items);
      } else {
        AskMany(*lookup, node, items, channels);
      }
    }
  }
  if (objects) AskForCopies(lookup, channels);
  lookup->done_.store(true, std::memory_order_release);
  lookup->wake_();
}

// Of what is not found yet: the first holder of each slot, then the second.
void Forwarder::AskForCopies(Lookup* lookup, PeerCalls::Channels* channels) {
  for (size_t turn = 0; turn < SlotCopies::kMost; ++turn) {
    std::map<NodeId, std::vector<Lookup::Item*>> by_node;
    for (Lookup::Item& item : lookup->items_)
      if (!item.found && turn < item.copies.size()) by_node[item.copies[turn]].push_back(&item);
    for (const auto& [node, items] : by_node) {
      const std::shared_ptr<CircuitBreaker> breaker = peers_.BreakerOf(node);
      if (breaker == nullptr || !breaker->Allow(Clock::System().Now())) continue;
      std::vector<CopyItem> wanted;
      wanted.reserve(items.size());
      for (const Lookup::Item* item : items) wanted.push_back({item->slot, item->key});
      const auto found = CallForCopies(&peers_, channels,
                                       {.node = node,
                                        .ns = lookup->ns_,
                                        .view = options_.ownership->version(),
                                        .deadline = lookup->deadline_},
                                       wanted);
      for (size_t i = 0; i < items.size() && found.ok(); ++i) {
        items[i]->found = (*found)[i].status == wire::WireStatus::kOk;
        items[i]->value_bytes = (*found)[i].value_bytes;
      }
    }
  }
}

void Forwarder::TakeOwn(const TieredNamespace& objects, std::span<Lookup::Item* const> items) {
  for (Lookup::Item* item : items) {
    const ObjectPin pin = objects.GetKept(item->slot, item->key, item->next->era);
    item->next.reset();
    item->found = static_cast<bool>(pin);
    if (pin) item->value_bytes = pin.value().size();
  }
}

void Forwarder::AskMany(const Lookup& lookup, NodeId node, std::span<Lookup::Item* const> items,
                        PeerCalls::Channels* channels) {
  std::vector<wire::ItemResult> results;
  const std::shared_ptr<CircuitBreaker> breaker = peers_.BreakerOf(node);
  if (breaker == nullptr) {
    for (Lookup::Item* item : items) item->next.reset();
    return;
  }
  const bool allowed = breaker->Allow(Clock::System().Now());
  const Status done =
      !allowed
          ? Error(StatusCode::kUnavailable, "it does not answer")
          : peers_.Call(node, lookup.deadline_, channels, [&](fabric::RpcChannel* channel) {
              fabric::RpcRequest& request = channel->NewRequest();
              request.header.op = wire::Op::kMultiHasKept;
              request.header.deadline_ms = static_cast<uint32_t>(lookup.deadline_.RemainingMs());
              request.header.namespace_id = lookup.ns_.id.value();
              request.header.namespace_generation = lookup.ns_.generation;
              request.header.view = options_.ownership->version().packed();
              request.header.item_count = static_cast<uint16_t>(items.size());
              const auto append = [&](ConstBytes bytes) {
                request.head.insert(request.head.end(), bytes.begin(), bytes.end());
              };
              for (const Lookup::Item* item : items) {
                append(wire::RawBytes(
                    wire::ItemHead{.slot = item->slot.value(),
                                   .key_bytes = static_cast<uint16_t>(item->key.size())}));
              }
              for (const Lookup::Item* item : items) append(AsBytes(item->key));
              for (const Lookup::Item* item : items)
                append(
                    wire::RawBytes(wire::KeptBody{item->next->era.history, item->next->era.since}));
              ResultsSink sink(&results);
              channel->Start(&sink);
              Status one;
              fabric::RunAll(std::span(&channel, 1), lookup.deadline_, std::span(&one, 1));
              return one;
            });
  if (!done.ok()) options_.metrics.failed.Add(static_cast<double>(items.size()));
  for (size_t i = 0; i < items.size(); ++i) {
    const Origin asked = *std::exchange(items[i]->next, std::nullopt);
    if (!done.ok() || results.size() != items.size()) continue;
    const wire::ItemResult& result = results[i];
    items[i]->found = result.status == wire::WireStatus::kOk;
    items[i]->value_bytes = result.value_bytes;
    if (!items[i]->found && result.whole_bytes != 0)
      items[i]->next = Origin{{asked.era.history, result.checksum}, NodeId(result.whole_bytes)};
  }
}

Fetch::State Forwarder::Serve(const Task& task, PeerCalls::Channels* channels) {
  uint64_t bytes = 0;
  Brought how = task.kept ? BringOne(task, channels, &task.fetch->pin_, &bytes) : Brought::kGone;
  const bool gone = how == Brought::kGone || how == Brought::kRefused || how == Brought::kFailed;
  if (gone && !task.copies.empty()) how = BringCopy(task, channels, &task.fetch->pin_, &bytes);
  switch (how) {
    case Brought::kStored:
      options_.metrics.hits.Add();
      options_.metrics.bytes.Add(static_cast<double>(bytes));
      return Fetch::State::kHere;
    case Brought::kThere:
      options_.metrics.misses.Add();
      return Fetch::State::kAgain;
    case Brought::kFailed:
    case Brought::kNoRoom:
      options_.metrics.failed.Add();
      return Fetch::State::kMiss;
    case Brought::kGone:
    case Brought::kChanged:
    case Brought::kRefused:
      options_.metrics.misses.Add();
      return Fetch::State::kMiss;
  }
  return Fetch::State::kMiss;
}

Brought Forwarder::BringCopy(const Task& task, PeerCalls::Channels* channels, ObjectPin* pin,
                             uint64_t* bytes) {
  const TieredNamespace objects = options_.store->Open(task.ns);
  if (!objects) return Brought::kGone;
  const CopyWanted wanted{task.ns, task.slot, task.key, options_.ownership->version()};
  Brought how = Brought::kGone;
  for (const NodeId node : task.copies) {
    FetchedCopy copy;
    if (peers_.BreakerOf(node) == nullptr) continue;
    if (!FetchCopy(&peers_, node, task.deadline, channels, wanted, objects, &copy).ok())
      how = Brought::kFailed;
    if (!copy.found) continue;
    if (!copy.reservation) return Brought::kNoRoom;
    *bytes = copy.reservation.value().size();
    bool stored = false;
    const Status published =
        objects.PublishKept(std::move(copy.reservation), copy.checksum, 0, &stored, pin);
    if (stored && published.ok()) return Brought::kStored;
    const bool there = published.ok() || published.code() == StatusCode::kAlreadyExists;
    return there ? Brought::kThere : Brought::kChanged;
  }
  return how;
}

Brought Forwarder::Bring(const Wanted& wanted, Deadline deadline, PeerCalls::Channels* channels,
                         uint64_t* bytes) {
  const auto origin = options_.moved->OriginOf(wanted.slot);
  if (!origin) return Brought::kChanged;
  const Task task{.ns = wanted.ns,
                  .slot = wanted.slot,
                  .key = std::string(wanted.key),
                  .origin = *origin,
                  .fetch = nullptr,
                  .deadline = deadline,
                  .waiting = {}};
  ObjectPin pin;
  return BringOne(task, channels, &pin, bytes);
}

Brought Forwarder::BringOne(const Task& task, PeerCalls::Channels* channels, ObjectPin* pin,
                            uint64_t* bytes) {
  const TieredNamespace objects = options_.store->Open(task.ns);
  if (!objects) return Brought::kGone;
  Asked asked{.state = KeptState::kUntouched, .before = task.origin};
  for (int hops = 0; hops < kHopsMax && asked.state == KeptState::kUntouched; ++hops) {
    const Origin origin = asked.before;
    asked = Asked();
    if (origin.node == options_.ownership->self()) {
      TakeOwn(task, objects, origin.era, &asked);
    } else if (peers_.BreakerOf(origin.node) == nullptr) {
      return Brought::kRefused;
    } else if (!Ask(task, objects, origin, channels, &asked).ok()) {
      return Brought::kFailed;
    }
    if (asked.refused) return Brought::kRefused;
  }
  if (asked.state != KeptState::kValue) return Brought::kGone;
  if (!asked.reservation) return Brought::kNoRoom;
  EMS_FAIL_POINT("forward.before_publish");
  *bytes = asked.reservation.value().size();
  bool stored = false;
  const Status published = objects.PublishKept(std::move(asked.reservation), asked.checksum,
                                               task.origin.era.since, &stored, pin);
  // Its copy is what the next owner gets.
  if (stored && asked.own) asked.own.ForgetKept();
  if (stored && published.ok()) return Brought::kStored;
  // It, or a newer value, is there by now; or nothing may be any more.
  const bool there = published.ok() || published.code() == StatusCode::kAlreadyExists;
  return there ? Brought::kThere : Brought::kChanged;
}

void Forwarder::TakeOwn(const Task& task, const TieredNamespace& objects, Era era, Asked* asked) {
  ObjectPin pin = objects.GetKept(task.slot, task.key, era);
  if (!pin) return;
  asked->state = KeptState::kValue;
  auto filling = objects.AdmitPut(pin.value().size());
  auto room = objects.Reserve(task.slot, task.key, pin.value().size());
  if (!filling.ok() || !room.ok()) return;
  std::memcpy(room->value().data(), pin.value().data(), pin.value().size());
  HashPieces(room->value(), room->piece_sums());
  if (CombinePieces(room->piece_sums()) != pin.checksum()) {  // damaged where it was kept
    asked->state = KeptState::kGone;
    return;
  }
  asked->filling = *std::move(filling);
  asked->reservation = *std::move(room);
  asked->checksum = pin.checksum();
  asked->own = std::move(pin);
}

Status Forwarder::Ask(const Task& task, const TieredNamespace& objects, Origin origin,
                      PeerCalls::Channels* channels, Asked* asked) {
  return peers_.Call(origin.node, task.deadline, channels, [&](fabric::RpcChannel* channel) {
    return AskOn(task, objects, origin.era, channel, asked);
  });
}

Status Forwarder::AskOn(const Task& task, const TieredNamespace& objects, Era era,
                        fabric::RpcChannel* channel, Asked* asked) {
  fabric::RpcRequest& request = channel->NewRequest();
  request.header.op = wire::Op::kGetKept;
  request.header.deadline_ms = static_cast<uint32_t>(task.deadline.RemainingMs());
  request.header.namespace_id = task.ns.id.value();
  request.header.namespace_generation = task.ns.generation;
  request.header.view = options_.ownership->version().packed();
  request.header.slot = task.slot.value();
  const ConstBytes name = AsBytes(task.key);
  request.head.assign(name.begin(), name.end());
  request.key_bytes = static_cast<uint16_t>(name.size());
  const wire::KeptBody body{era.history, era.since};
  const ConstBytes raw = wire::RawBytes(body);
  request.head.insert(request.head.end(), raw.begin(), raw.end());
  KeptSink sink(&request.header, &objects, task.slot, task.key);
  channel->Start(&sink);
  Status done;
  fabric::RunAll(std::span(&channel, 1), task.deadline, std::span(&done, 1));
  EMS_RETURN_IF_ERROR(done);
  const wire::WireStatus status = channel->answer().status;
  if (status != wire::WireStatus::kOk) {
    // It answers, and has nothing for this server: it does not know the op or the namespace, or
    // cannot say now.
    asked->refused = status != wire::WireStatus::kStaleNamespace;
    return OkStatus();
  }
  asked->state = sink.head().state;
  asked->before = {{era.history, sink.head().since}, NodeId(sink.head().node)};
  if (asked->state != KeptState::kValue) return OkStatus();
  if (!sink.reservation()) return OkStatus();
  HashPieces(sink.reservation().value(), sink.reservation().piece_sums());
  if (!sink.whole() || CombinePieces(sink.reservation().piece_sums()) != sink.checksum())
    return Error(StatusCode::kDataLoss, "a kept value does not match its checksum");
  asked->filling = std::move(sink.filling());
  asked->reservation = std::move(sink.reservation());
  asked->checksum = sink.checksum();
  return OkStatus();
}

void Forwarder::End(const TaskPtr& task, Fetch::State ended) {
  std::vector<Wake> waiting;
  {
    auto state = state_.Lock();
    state->flights.erase({task->ns, task->key});
    waiting.swap(task->waiting);
    const auto pending = state->pending.find(task->origin.node);
    if (--pending->second == 0) state->pending.erase(pending);
  }
  task->fetch->state_.store(ended, std::memory_order_release);
  for (const Wake& wake : waiting) wake();
}

}  // namespace ems::server
