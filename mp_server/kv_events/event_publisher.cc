#include "mp_server/kv_events/event_publisher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/logging.h"

namespace ems::kv_events {
namespace {

constexpr Duration kStateLasts = std::chrono::seconds(1);  // one listing serves all who ask in it
constexpr Duration kSoon = std::chrono::milliseconds(1);
constexpr size_t kRequestsPerRound = 16;
constexpr int kStatesMax = 3;  // of one answer

uint64_t MicrosecondsSince1970() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

Result<std::unique_ptr<EventPublisher>> EventPublisher::Start(Options options) {
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<EventSockets> sockets, EventSockets::Open(options.sockets));
  return std::unique_ptr<EventPublisher>(
      new EventPublisher(std::move(options), std::move(sockets)));
}

EventPublisher::EventPublisher(Options options, std::unique_ptr<EventSockets> sockets)
    : options_(std::move(options)),
      encoder_(options_.encoder),
      sockets_(std::move(sockets)),
      buffer_(options_.replay_batches, options_.replay_bytes),
      next_sequence_(MicrosecondsSince1970()) {
  thread_ = Thread("ems-kv-events", [this] { Run(); });
}

EventPublisher::~EventPublisher() {
  stopping_.store(true, std::memory_order_release);
  thread_.Join();
}

void EventPublisher::Run() {
  PublishBatch(true, {});
  bool more = false;
  while (!stopping_.load(std::memory_order_acquire)) {
    const Duration until_batch = batch_at_ - Clock::System().Now();
    sockets_->Wait(more ? Duration::zero()
                        : std::min(until_batch, answers_.empty() ? until_batch : kSoon));
    HearRequests();
    if (Clock::System().Now() >= batch_at_) PublishEvents();
    GoOnAnnouncing();
    GoOnListing();
    more = GoOnAnswering() || announcing_ || listing_;
  }
  PublishEvents();  // who is quick enough still gets it
}

void EventPublisher::HearRequests() {
  for (size_t i = 0; i < kRequestsPerRound; ++i) {
    Asker asker;
    uint64_t start = 0;
    const EventSockets::Heard heard = sockets_->Hear(&asker, &start);
    if (heard == EventSockets::Heard::kNothing) return;
    if (heard == EventSockets::Heard::kForeign) {
      options_.metrics.foreign.Add();
      continue;
    }
    BeginAnswer(std::move(asker), start);
  }
}

// A second request of one subscriber replaces its first.
void EventPublisher::BeginAnswer(Asker asker, uint64_t start) {
  std::erase_if(answers_, [&](const Answer& one) { return one.asker.identity == asker.identity; });
  if (answers_.size() >= kAskersMax) {
    options_.metrics.refused.Add();
    (void)sockets_->Tell(asker, kEndOfAnswer, {});
    return;
  }
  PublishEvents();  // what has happened by now is in the answer
  Answer answer;
  answer.asker = std::move(asker);
  answer.wants_state = start < buffer_.first() || start > buffer_.next();
  answer.next = start;
  answer.until = buffer_.next();
  answer.give_up_at = Clock::System().Now() + kPatience;
  (answer.wants_state ? options_.metrics.states : options_.metrics.replays).Add();
  answers_.push_back(std::move(answer));
}

// What is in the ring; a number is left out when the ring did not hold all. An empty batch now and
// then shows a subscriber what it has missed when nothing else happens.
void EventPublisher::PublishEvents() {
  const TimePoint now = Clock::System().Now();
  batch_at_ = now + options_.batch_every;
  const uint64_t lost = options_.events->lost();
  size_t left = options_.events->capacity();  // who pushes all the time must not keep it here
  while (left > 0) {
    pending_.clear();
    const size_t taken = options_.events->Drain(std::min(left, kEventsPerBatch), &pending_);
    if (taken == 0) break;
    left -= taken;
    PublishBatch(false, pending_);
  }
  if (lost != lost_before_) {
    options_.metrics.lost.Add(static_cast<double>(lost - lost_before_));
    options_.metrics.gaps.Add();
    lost_before_ = lost;
    ++next_sequence_;
    PublishBatch(false, {});  // shows the gap now
  } else if (options_.heartbeat_every > Duration::zero() && now >= beat_at_) {
    PublishBatch(false, {});
  }
}

std::string EventPublisher::Encode(bool cleared, std::span<const BlockEvent> events) const {
  return encoder_.Batch(static_cast<double>(MicrosecondsSince1970()) / 1e6, cleared, events);
}

void EventPublisher::PublishBatch(bool cleared, std::span<const BlockEvent> events) {
  auto payload = std::make_shared<const std::string>(Encode(cleared, events));
  sockets_->Publish(options_.topic, next_sequence_, *payload);
  buffer_.Add(next_sequence_, std::move(payload));
  ++next_sequence_;
  beat_at_ = Clock::System().Now() + options_.heartbeat_every;
  options_.metrics.batches.Add();
  options_.metrics.events.Add(static_cast<double>(events.size()));
}

// Listed first, published next, and only then what was pushed meanwhile: so a block that went after
// it was listed goes after it was told.
void EventPublisher::GoOnAnnouncing() {
  if (announce_.exchange(false, std::memory_order_acq_rel)) announcing_.emplace();
  if (!announcing_) return;
  bool more = true;
  for (size_t i = 0; i < kListSteps && more; ++i)
    more = options_.list(&announcing_->cursor, &announcing_->found);
  std::span<const BlockEvent> found = announcing_->found;
  for (; !found.empty(); found = found.subspan(std::min(found.size(), kEventsPerBatch)))
    PublishBatch(false, found.first(std::min(found.size(), kEventsPerBatch)));
  announcing_->found.clear();
  if (!more) announcing_.reset();
}

// The state that an answer may begin with: its later batches are still here.
std::shared_ptr<const EventPublisher::State> EventPublisher::UsableState() const {
  const bool usable = state_ != nullptr && state_->as_of + 1 >= buffer_.first() &&
                      Clock::System().Now() - state_->made_at < kStateLasts;
  return usable ? state_ : nullptr;
}

void EventPublisher::GoOnListing() {
  const bool wanted = std::any_of(answers_.begin(), answers_.end(), [](const Answer& answer) {
    return answer.wants_state && answer.state == nullptr;
  });
  if (!wanted) return listing_.reset();
  if (UsableState() != nullptr) return;
  state_.reset();
  if (!listing_) listing_.emplace().as_of = buffer_.next() - 1;
  bool more = true;
  for (size_t i = 0; i < kListSteps && more; ++i) {
    more = options_.list(&listing_->cursor, &listing_->found);
    while (listing_->found.size() >= kEventsPerBatch || !more) {
      const size_t size = std::min(listing_->found.size(), kEventsPerBatch);
      listing_->payloads.push_back(
          Encode(listing_->payloads.empty(), std::span(listing_->found).first(size)));
      listing_->found.erase(listing_->found.begin(),
                            listing_->found.begin() + static_cast<ptrdiff_t>(size));
      if (listing_->found.empty()) break;
    }
  }
  if (more) return;
  auto state = std::make_shared<State>();
  state->as_of = listing_->as_of;
  state->made_at = Clock::System().Now();
  state->payloads = std::move(listing_->payloads);
  state_ = std::move(state);
  listing_.reset();
}

// True: there is more to be told at once.
bool EventPublisher::GoOnAnswering() {
  size_t tells_left = kTellsMax;
  bool more = false;
  for (auto answer = answers_.begin(); answer != answers_.end();) {
    const Went went = TellSome(&*answer, &tells_left);
    if (went == Went::kOn) more = true;
    answer = went == Went::kOver ? answers_.erase(answer) : std::next(answer);
  }
  return more;
}

// False: not now, or not any more.
bool EventPublisher::Told(Answer* answer, EventSockets::Told told, Went* went) {
  const TimePoint now = Clock::System().Now();
  if (told == EventSockets::Told::kSent) {
    answer->give_up_at = now + kPatience;
    return true;
  }
  *went = Went::kWaits;
  if (told == EventSockets::Told::kGone || now >= answer->give_up_at) {
    options_.metrics.given_up.Add();
    *went = Went::kOver;
  }
  return false;
}

// Batches that come faster than all can be listed must not keep anybody waiting for ever.
EventPublisher::Went EventPublisher::WaitForState(const Answer* answer) {
  if (Clock::System().Now() < answer->give_up_at) return Went::kWaits;
  options_.metrics.given_up.Add();
  (void)sockets_->Tell(answer->asker, kEndOfAnswer, {});
  return Went::kOver;
}

EventPublisher::Went EventPublisher::TellSome(Answer* answer, size_t* tells_left) {
  Went went = Went::kOn;
  while (*tells_left > 0) {
    --*tells_left;
    if (!answer->wants_state && answer->next < buffer_.first() && answer->next < answer->until)
      answer->wants_state = true;  // it fell out on the way
    if (answer->wants_state && answer->state == nullptr) {
      if (answer->states == kStatesMax) {  // batches come faster than they can be told
        answer->wants_state = false;
        answer->next = answer->until;
        continue;
      }
      answer->state = UsableState();
      if (answer->state == nullptr) return WaitForState(answer);
      ++answer->states;
      answer->told = 0;
    }
    if (answer->wants_state && answer->told < answer->state->payloads.size()) {
      const auto told = sockets_->Tell(answer->asker, answer->state->as_of,
                                       answer->state->payloads[answer->told]);
      if (!Told(answer, told, &went)) return went;
      ++answer->told;
      continue;
    }
    if (answer->wants_state) {
      answer->next = answer->state->as_of + 1;
      answer->until = buffer_.next();
      answer->wants_state = false;
      answer->state = nullptr;
      continue;
    }
    const bool end = answer->next >= answer->until;
    const auto told = end ? sockets_->Tell(answer->asker, kEndOfAnswer, {})
                          : sockets_->Tell(answer->asker, answer->next, *buffer_.At(answer->next));
    if (!Told(answer, told, &went)) return went;
    if (end) return Went::kOver;
    ++answer->next;
  }
  return went;
}

}  // namespace ems::kv_events
