#include "mp_sdk/internal/router.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/check.h"
#include "common/thread_pool.h"

namespace ems::internal {
namespace {

using wire::WireStatus;

constexpr int kHopsMax = 3;
constexpr Duration kNoProgressPause = std::chrono::milliseconds(10);
// With less time than this a try is more likely to end unknown than done: not begun.
constexpr Duration kLeastTry = std::chrono::milliseconds(1);
constexpr Duration kViewPatience = std::chrono::milliseconds(500);

int64_t CountOpen(const Batch& batch) {
  return std::ranges::count_if(batch.items, [](const BatchItem& item) { return item.open; });
}

void FinishOpen(Batch* batch, const Status& fallback) {
  for (BatchItem& item : batch->items) {
    if (item.open) batch->Finish(&item, item.status.ok() ? fallback : item.status);
  }
}

void Sleep(Duration time) {
  StopFlag never;
  never.WaitFor(time);
}

// Keeps the body of an answer without values.
class TextSink final : public fabric::AnswerSink {
 public:
  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes table) override {
    text_ = AsText(table);
    return OkStatus();
  }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}
  std::string& text() { return text_; }

 private:
  std::string text_;
};

}  // namespace

Router::Router(const ClientOptions& options, ViewCache* views, Refresh refresh)
    : options_(options), views_(views), refresh_(std::move(refresh)), pool_(options) {}

void Router::AddTo(ClientStats* stats) const {
  const auto value = [](const std::atomic<uint64_t>& one) {
    return one.load(std::memory_order_relaxed);
  };
  stats->retries = value(stats_.retries);
  stats->wrong_owner = value(stats_.wrong_owner);
  stats->copies_asked = value(stats_.copies_asked);
  stats->breaker_opened = value(stats_.breaker_opened);
  stats->checksum_mismatches = value(stats_.checksum_mismatches);
  stats->hot_hits = value(hot_stats().hits);
  stats->hot_misses = value(hot_stats().misses);
  stats->hedges = value(stats_.hedges);
  stats->hedges_won = value(stats_.hedges_won);
}

void Router::Run(Batch* batch) {
  budget_.OnRequest();
  int hops = 0;
  bool fresh = false;
  ViewVersion asked;
  while (const int64_t open = CountOpen(*batch)) {
    const ViewCache::View view = views_->view();
    if (view == nullptr || batch->deadline.Passed()) {
      FinishOpen(batch, view == nullptr
                            ? Error(StatusCode::kUnavailable, "no view of the cluster yet")
                            : Error(StatusCode::kDeadlineExceeded, "the call's time is over"));
      return;
    }
    if (locals_ != nullptr) locals_->Follow(view);
    if (retained_view_.exchange(view->version().packed(), std::memory_order_relaxed) !=
        view->version().packed()) {
      pool_.Retain(*view);
    }
    if (std::exchange(asked, view->version()) != view->version() && batch->copies > 0)
      for (BatchItem& item : batch->items) item.copy = 0;  // there may be another owner
    const RoundResult round = RunRound(batch, *view, fresh);
    batch->last = round.last;
    fresh = round.broken;
    if (round.unsettled == WireStatus::kWrongOwner ||
        round.unsettled == WireStatus::kStaleNamespace) {
      stats_.wrong_owner.fetch_add(1, std::memory_order_relaxed);
      if (++hops == kHopsMax) {
        FinishOpen(batch, Error(StatusCode::kFailedPrecondition,
                                "the view did not settle in {} hops", hops));
        return;
      }
      WaitForView(view->version(), round.newest, batch->deadline);
      if (round.unsettled == WireStatus::kStaleNamespace && !KnowsNamespace(batch->ns)) {
        FinishOpen(batch, Error(StatusCode::kFailedPrecondition, "the namespace has been deleted"));
        return;
      }
    } else if (round.unsettled == WireStatus::kRetryLater) {
      const Duration pause = std::chrono::milliseconds(std::max<uint32_t>(1, round.retry_ms));
      stats_.retries.fetch_add(1, std::memory_order_relaxed);
      const Duration left = batch->deadline.Remaining();
      Sleep(pause + kLeastTry < left ? pause : left);
    } else if (round.unsettled == WireStatus::kBatchFull && CountOpen(*batch) == open) {
      // Each answer should have brought one value at least: no tight loop with a server that errs.
      Sleep(std::min(kNoProgressPause, batch->deadline.Remaining()));
    }
  }
}

Router::RoundResult Router::RunRound(Batch* batch, const DhtView& view, bool fresh) {
  RoundResult round;
  hot_.Choose(batch, view);
  const std::vector<std::unique_ptr<Frame>> frames = PlanFrames(batch, view, locals_);
  std::vector<Flight> flights = TakeChannels(batch, view, fresh, frames);
  if (flights.empty()) return round;
  std::vector<fabric::RpcChannel*> channels;
  channels.reserve(flights.size());
  for (Flight& flight : flights) channels.push_back(flight.channel.get());
  std::vector<Status> results(flights.size());
  std::optional<TimePoint> since;  // names are waited for
  const auto meanwhile = [&] {
    if (const auto work = std::exchange(batch->meanwhile, std::function<void()>())) work();
    if (std::ranges::none_of(flights, IsNameless)) return false;
    if (!since) since = Clock::System().Now();
    return TakeNamed(batch, fresh, view.version(), *since, flights, channels);
  };
  // What has been answered goes back at once: others wait for it, and not for the slowest server.
  const auto on_done = [&](size_t i) {
    if (IsGreeting(flights[i])) OnGreeting(&flights[i], batch, OkStatus(), view.version());
    if (!channels[i]->done()) return;
    Receive(&flights[i], batch, OkStatus(), &round);
    channels[i] = nullptr;
  };
  const std::optional<Hedge> hedge = PlanHedge(*batch, view, flights);
  const Deadline first(hedge ? std::min(batch->deadline.at(), hedge->at) : batch->deadline.at());
  // By reference, which allocates nothing.
  fabric::RunAll(channels, first, results, std::ref(meanwhile), std::ref(on_done));
  const auto is_late = [&] {
    return channels[0] != nullptr && results[0].code() == StatusCode::kDeadlineExceeded &&
           channels[0]->until() > Clock::System().Now() && !batch->deadline.Passed();
  };
  if (hedge && is_late()) {
    if (!channels[0]->answer_begun() && RunHedged(hedge->other, &flights[0], batch, view, &round))
      return round;
    results[0] = OkStatus();
    fabric::RunAll(channels, batch->deadline, results, std::ref(meanwhile), std::ref(on_done));
  }
  for (size_t i = 0; i < flights.size(); ++i)
    if (channels[i] != nullptr) Receive(&flights[i], batch, results[i], &round);
  return round;
}

std::vector<Router::Flight> Router::TakeChannels(Batch* batch, const DhtView& view, bool fresh,
                                                 std::span<const std::unique_ptr<Frame>> frames) {
  std::vector<Flight> flights;
  flights.reserve(frames.size());
  std::optional<Flight> busy;
  for (const auto& frame : frames) {
    const NodeInfo* const node = view.Find(frame->node());
    EMS_CHECK(node != nullptr, "a frame for node {}, which the view does not know",
              frame->node().value());
    Flight flight{.frame = frame.get(), .node = node, .peer = nullptr, .channel = nullptr};
    auto peer = pool_.PeerOf(*node, view.cluster());
    if (!peer.ok()) {
      Fail(batch, frame.get(), peer.status());
      continue;
    }
    flight.peer = *std::move(peer);
    TakeFree(&flight, batch, fresh, view.version());
    if (flight.stage == Flight::Stage::kWaiting) {
      busy = std::move(flight);
    } else if (flight.stage != Flight::Stage::kNoServer) {
      flights.push_back(std::move(flight));
    }
  }
  if (!flights.empty() || !busy) return flights;
  bool connect_failed = false;
  const Deadline patience(std::min(batch->deadline.at(), busy->frame->GiveUpAt()));
  auto channel = busy->peer->Take(fresh, patience, &connect_failed, !batch->MayRepeat());
  if (!channel.ok()) {
    FailToTake(&*busy, batch, channel.status(), connect_failed);
    return flights;
  }
  busy->channel = *std::move(channel);
  Start(&*busy, view.version());
  flights.push_back(*std::move(busy));
  return flights;
}

void Router::TakeFree(Flight* flight, Batch* batch, bool fresh, ViewVersion view) {
  using Stage = Flight::Stage;
  bool connect_failed = false;
  flight->attempt = flight->peer->attempt();
  auto channel =
      flight->peer->TryTake(fresh, batch->deadline, &connect_failed, !batch->MayRepeat());
  if (!channel.ok()) return FailToTake(flight, batch, channel.status(), connect_failed);
  if (*channel == nullptr) {
    flight->stage = flight->peer->awaits_name() ? Stage::kNameless : Stage::kWaiting;
    return;
  }
  flight->channel = *std::move(channel);
  flight->stage = Stage::kGreeting;
  if (flight->channel->done()) Start(flight, view);
}

bool Router::TakeNamed(Batch* batch, bool fresh, ViewVersion view, TimePoint since,
                       std::span<Flight> flights, std::span<fabric::RpcChannel*> channels) {
  const Deadline until(std::min(batch->deadline.at(), since + options_.connect_timeout));
  bool others = false;
  for (size_t i = 0; i < flights.size(); ++i) {
    Flight& flight = flights[i];
    if (flight.stage != Flight::Stage::kNameless) continue;
    bool connect_failed = false;
    const Status named = flight.peer->LookUp(since, Duration::zero(), &connect_failed);
    if (named.ok()) {
      TakeFree(&flight, batch, fresh, view);
      others = others || IsNameless(flight);  // it has been forgotten again
      channels[i] = flight.channel.get();
    } else if (named.code() != StatusCode::kUnavailable && !until.Passed()) {
      others = true;
    } else {
      FailToTake(&flight, batch, Error(StatusCode::kUnavailable, Message(named)), connect_failed);
    }
  }
  return others && !until.Passed();
}

// Where copies are, any holder of one may be asked in its place: of what cannot change each has the
// same. How many there are may have changed since this client connected.
void Router::Fail(Batch* batch, Frame* frame, const Status& status) {
  if (batch->MayAskCopies() && batch->copies == 0) batch->copies = CountCopies(*batch);
  if (batch->copies > 0) stats_.copies_asked.fetch_add(1, std::memory_order_relaxed);
  frame->Fail(status);
  hot_.Note(*batch, frame->items(), false);
}

uint32_t Router::CountCopies(const Batch& batch) {
  const ViewCache::View view = views_->view();
  if (view == nullptr || view->copies().empty()) return 0;
  const ViewCache::Namespaces table = views_->namespaces();
  const auto found = table->by_id.find(batch.ns.id);
  if (found == table->by_id.end() || found->second.ref != batch.ns) return 0;
  return std::max<uint32_t>(found->second.replicas, 1) - 1;
}

void Router::FailToTake(Flight* flight, Batch* batch, const Status& status, bool connect_failed) {
  flight->stage = Flight::Stage::kNoServer;
  if (flight->peer->misled()) return;
  if (connect_failed && flight->peer->breaker().OnFailure(Clock::System().Now()))
    stats_.breaker_opened.fetch_add(1, std::memory_order_relaxed);
  Fail(batch, flight->frame, Prefixed(status, flight->node->name));
}

void Router::OnGreeting(Flight* flight, Batch* batch, const Status& result, ViewVersion view) {
  const Status opened = flight->peer->CheckOpened(*flight->channel, result, flight->attempt);
  if (opened.ok()) return Start(flight, view);
  flight->stage = Flight::Stage::kNoServer;
  // Nothing has been sent: the next round asks at the other address.
  if (!flight->peer->NextAddress(flight->attempt)) FailToTake(flight, batch, opened, true);
}

void Router::Start(Flight* flight, ViewVersion view) {
  flight->stage = Flight::Stage::kIdle;
  if (!flight->frame->DropLarger(flight->peer->value_bytes_max())) return;
  flight->stage = Flight::Stage::kSent;
  flight->frame->Encode(view, &flight->channel->NewRequest());
  flight->channel->Start(flight->frame);
  flight->channel->set_until(flight->frame->GiveUpAt());
}

void Router::Receive(Flight* flight, Batch* batch, const Status& result, RoundResult* round) {
  using Stage = Flight::Stage;
  EMS_CHECK(flight->channel != nullptr && flight->peer != nullptr);
  if (IsGreeting(*flight)) OnGreeting(flight, batch, result, ViewVersion());
  if (flight->stage == Stage::kNoServer) return flight->peer->Return(nullptr);
  if (flight->stage == Stage::kIdle) return flight->peer->Return(std::move(flight->channel));
  fabric::RpcChannel& channel = *flight->channel;
  round->last = {.node = flight->node->id, .id = channel.request_id()};
  if (!result.ok()) {
    HandleBroken(flight, batch, result, round);
    flight->peer->Return(nullptr);
    return;
  }
  flight->peer->breaker().OnSuccess();
  if (channel.answer().status != WireStatus::kOk) {
    // The transport on the other side closes after refusing a frame; such a channel is of no more
    // use.
    flight->frame->SetWholeStatus(channel.answer().status, channel.text());
  }
  if (flight->frame->staging_refused() && locals_ != nullptr) {
    locals_->StopStaging(flight->frame->node());
  }
  if (flight->frame->items().size() == 1 && batch->MayAskCopies())
    flight->peer->latencies().Add(channel.answer_took());
  hot_.Note(*batch, flight->frame->items(), !flight->peer->address().is_unix());
  const WireStatus unsettled = flight->frame->unsettled();
  if (unsettled != WireStatus::kOk && round->unsettled != WireStatus::kWrongOwner) {
    round->unsettled = unsettled;
  }
  round->newest = std::max(round->newest, channel.answer().view_version());
  round->retry_ms = std::max(round->retry_ms, channel.answer().retry_ms);
  stats_.checksum_mismatches.fetch_add(flight->frame->checksum_mismatches(),
                                       std::memory_order_relaxed);
  const bool refused = channel.answer().status == WireStatus::kInvalid ||
                       channel.answer().status == WireStatus::kTooLarge;
  flight->peer->Return(refused ? nullptr : std::move(flight->channel));
}

void Router::HandleBroken(Flight* flight, Batch* batch, const Status& result, RoundResult* round) {
  const bool timed_out = result.code() == StatusCode::kDeadlineExceeded;
  flight->frame->FinishUnknown(flight->channel->sent_bytes(), result);
  std::vector<BatchItem*> open;  // not carried out, or no harm if once more
  std::ranges::copy_if(flight->frame->items(), std::back_inserter(open), &BatchItem::open);
  if (open.empty() && !timed_out) return;
  const bool again = !timed_out && !flight->channel->answer_begun() &&
                     std::ranges::none_of(open, &BatchItem::retried) && budget_.TryRetry();
  if (!again) {
    if (flight->peer->breaker().OnFailure(Clock::System().Now())) {
      stats_.breaker_opened.fetch_add(1, std::memory_order_relaxed);
    }
    Fail(batch, flight->frame, result);
    return;
  }
  stats_.retries.fetch_add(1, std::memory_order_relaxed);
  round->broken = true;
  for (BatchItem* item : open) item->retried = true;
}

std::optional<Router::Hedge> Router::PlanHedge(const Batch& batch, const DhtView& view,
                                               std::span<const Flight> flights) {
  if (!batch.MayAskCopies() || batch.op == wire::Op::kExists || batch.asks_tier ||
      flights.size() != 1 || flights[0].frame->items().size() != 1)
    return std::nullopt;
  const BatchItem& item = *flights[0].frame->items()[0];
  std::optional<NodeId> other = hot_.OtherFor(batch, item, view);
  if (!other && item.copy == 0 && !view.copies().empty()) {
    const auto holders = view.Copies(item.slot);
    if (!holders.empty() && CountCopies(batch) > 0) other = holders[0];
  }
  if (!other) return std::nullopt;
  hedges_.OnRequest();
  const std::optional<Duration> p95 = flights[0].peer->latencies().P95();
  if (!p95) return std::nullopt;
  return Hedge{.other = *other, .at = Clock::System().Now() + *p95};
}

bool Router::RunHedged(NodeId other, Flight* first, Batch* batch, const DhtView& view,
                       RoundResult* round) {
  BatchItem* const item = first->frame->items()[0];
  const NodeInfo* const node = view.Find(other == kNoNode ? view.OwnerId(item->slot) : other);
  if (node == nullptr) return false;
  auto peer = pool_.PeerOf(*node, view.cluster());
  if (!peer.ok() || !hedges_.TryRetry()) return false;
  // A batch of its own, so that what one says does not end the other.
  Batch twin{.op = batch->op,
             .flags = batch->flags,
             .ns = batch->ns,
             .deadline = batch->deadline,
             .items = {*item},
             .immutable = true};
  twin.items[0].hot_at = other;
  twin.items[0].hot_tried = false;
  Frame frame(&twin, node->id);
  (void)frame.TryAdd(&twin.items[0]);
  Flight second{.frame = &frame, .node = node, .peer = *std::move(peer), .channel = nullptr};
  ReadRace race;
  twin.race = batch->race = &race;
  TakeFree(&second, &twin, false, view.version());
  if (second.channel == nullptr) {
    batch->race = nullptr;
    return false;
  }
  stats_.hedges.fetch_add(1, std::memory_order_relaxed);

  RoundResult ignored;  // of the other one: the round is the first one's
  const std::array<Flight*, 2> flights{first, &second};
  const std::array<Batch*, 2> batches{batch, &twin};
  const std::array<RoundResult*, 2> rounds{round, &ignored};
  std::array<fabric::RpcChannel*, 2> channels{first->channel.get(), second.channel.get()};
  std::array<Status, 2> results;
  const TimePoint begun = Clock::System().Now();
  const auto has_won = [&] { return !twin.items[0].open && twin.items[0].status.ok(); };
  // What it still has to say is never read.
  const auto leave = [&](size_t i) {
    Peer& late = *flights[i]->peer;
    if (!results[i].ok() && late.breaker().OnFailure(begun))
      stats_.breaker_opened.fetch_add(1, std::memory_order_relaxed);
    if (flights[i]->stage == Flight::Stage::kSent)
      late.latencies().Add(Clock::System().Now() - flights[i]->channel->started());
    channels[i] = nullptr;
    flights[i]->channel.reset();
    late.Return(nullptr);
  };
  const auto on_done = [&](size_t i) {
    if (IsGreeting(*flights[i])) OnGreeting(flights[i], batches[i], OkStatus(), view.version());
    if (!channels[i]->done()) return;
    Receive(flights[i], batches[i], OkStatus(), rounds[i]);
    channels[i] = nullptr;
    if ((i == 0 || has_won()) && channels[1 - i] != nullptr) leave(1 - i);
  };
  fabric::RunAll(channels, batch->deadline, results, {}, std::ref(on_done));
  if (has_won()) {
    stats_.hedges_won.fetch_add(1, std::memory_order_relaxed);
    item->value_bytes = twin.items[0].value_bytes;
    item->checksum = twin.items[0].checksum;
    batch->Finish(item, OkStatus());
  }
  for (size_t i = 0; i < channels.size(); ++i)
    if (channels[i] != nullptr) Receive(flights[i], batches[i], results[i], rounds[i]);
  batch->race = nullptr;
  return true;
}

bool Router::KnowsNamespace(NamespaceRef ns) {
  const ViewCache::Namespaces table = views_->namespaces();
  const auto found = table->by_id.find(ns.id);
  return found != table->by_id.end() && found->second.ref == ns;
}

void Router::WaitForView(ViewVersion newer_than, ViewVersion at_least, Deadline deadline) {
  const Deadline patience(std::min(deadline.at(), Deadline::After(kViewPatience).at()));
  // A server that is behind this client has been told so; only a newer view here can change the
  // plan.
  if (at_least > newer_than) {
    if (refresh_) refresh_(patience);
    (void)views_->WaitForView(at_least, patience);
    return;
  }
  if (refresh_) refresh_(patience);
  Sleep(std::min<Duration>(std::chrono::milliseconds(20), patience.Remaining()));
}

Result<std::string> Router::Ask(const NodeInfo& node, const wire::FrameHeader& header,
                                ConstBytes body, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, pool_.PeerOf(node, views_->cluster()));
  auto taken = peer->Take(true, deadline);
  if (peer->misled()) {
    EMS_ASSIGN_OR_RETURN(peer, pool_.PeerOf(node, views_->cluster()));
    taken = peer->Take(true, deadline);
  }
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<fabric::RpcChannel> channel, std::move(taken));
  TextSink sink;
  Status result;
  while (true) {
    fabric::RpcRequest& request = channel->NewRequest();
    request.header = header;
    request.head.assign(body.begin(), body.end());
    channel->Start(&sink);
    fabric::RpcChannel* const one = channel.get();
    fabric::RunAll(std::span(&one, 1), deadline, std::span(&result, 1));
    if (!result.ok() || channel->answer().status != WireStatus::kRetryLater) break;
    const Duration pause =
        std::chrono::milliseconds(std::max<uint32_t>(1, channel->answer().retry_ms));
    if (pause + kLeastTry >= deadline.Remaining()) break;
    Sleep(pause);
  }
  if (result.ok()) result = wire::ToStatus(channel->answer().status, channel->text());
  peer->Return(channel->done() ? std::move(channel) : nullptr);
  EMS_RETURN_IF_ERROR(result);
  return std::move(sink.text());
}

}  // namespace ems::internal
