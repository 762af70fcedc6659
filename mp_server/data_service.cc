#include "mp_server/data_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "mp_server/answer_room.h"
#include "mp_server/answer_tally.h"
#include "mp_server/copy_answer.h"
#include "mp_server/kept_answer.h"
#include "mp_server/kept_lookup.h"
#include "mp_server/key_batch.h"
#include "mp_server/key_scan.h"
#include "mp_server/last_wake.h"
#include "mp_server/put_session.h"
#include "mp_server/ticket_outcome.h"
#include "mp_server/value_check.h"

namespace ems::server {

using fabric::Answer;
using fabric::Outcome;
using wire::FrameHeader;
using wire::ItemReader;
using wire::ItemResult;
using wire::ItemTier;
using wire::Op;
using wire::WireStatus;

namespace {

// How long a read waits for the SSD, or for answers that pin too much to be sent; the request's own
// deadline may be sooner.
constexpr Duration kReadPatience = std::chrono::seconds(2);
constexpr Duration kLookForPins = std::chrono::milliseconds(10);
constexpr uint32_t kRetryPinsMs = 20;
// What is looked at before the other connections of the thread have their turn: so many bytes,
// which takes 50 to 100 us, or 512 keys.
constexpr uint64_t kTurnBytes = kMiB;
constexpr uint64_t kTurnBytesPerKey = kTurnBytes / 512;
// A connection does not keep the room of its largest batch for ever.
constexpr size_t kItemsKept = 4096;

template <typename T>
void Empty(std::vector<T>* items) {
  items->clear();
  if (items->capacity() > kItemsKept) std::vector<T>().swap(*items);
}

}  // namespace

// Threading: one thread (the connection's "ems-io").
class DataSession final : public fabric::Session {
 public:
  explicit DataSession(DataService* service)
      : service_(*service),
        puts_(service->store_, &service->check_, service->metrics_, &refusal_,
              service->hot_guests_),
        scan_(&service->check_, service->boot_id_, &refusal_),
        kept_(&service->check_, &refusal_),
        tally_(service->metrics_, &service->slow_requests_) {}

  Outcome Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                 Answer* answer) override;
  Outcome BeginPut(const fabric::PutRequest& put, fabric::PutTarget* target) override {
    return puts_.Begin(put, target);
  }
  WireStatus EndPut(uint64_t checksum, uint64_t expected) override {
    return puts_.End(checksum, expected);
  }
  void AbortPut() override { puts_.Abort(); }
  Outcome AwaitPuts(std::span<WireStatus> statuses) override { return puts_.Await(statuses); }
  void SetWaker(std::function<void()> waker) override {
    waker_ = waker;
    fetched_.SetWaker(waker);
    scan_.SetWaker(waker);
    elsewhere_.SetWaker(waker);
    puts_.SetWaker(std::move(waker));
  }
  Result<fabric::StagedBytes> Staged(const wire::StagedValue& value) override;
  void TakeOver(fabric::Fd socket, NamespaceRef ns) override {
    service_.shm_->Adopt(std::move(socket), ns, std::move(token_));
  }
  std::string_view ErrorText() override { return refusal_.text; }
  uint32_t retry_ms() override { return refusal_.retry_ms; }
  ViewVersion view_version() override { return service_.ownership_->told_version(); }
  void Sent() override;
  void OnServed(const FrameHeader& request, const fabric::Served& served) override {
    tally_.OnServed(request, served);
  }

 private:
  // A key of the request in hand that is not answered yet.
  struct Waiting {
    uint32_t item = 0;
    SlotId slot{};
    bool forwarded = false;   // another server has been asked for it
    FetchPtr fetch{};         // of a read; null: too many are coming, it is tried again
    uint64_t room = 0;        // of the answer, taken for what is fetched
    ssd::TicketPtr ticket{};  // of a Remove
  };
  // A value, or a range of it, that the answer sends.
  struct Part {
    uint32_t item = 0;
    ConstBytes bytes;
    ObjectPin pin;
  };

  // The keys of the request in hand, gone through once: all of them, or those of again_. Takes as
  // many turns as it needs.
  struct Pass {
    ItemReader items;
    uint32_t item = 0;  // the next one
    size_t next = 0;    // of again_
    Outcome waiting{};  // the longest wait
  };

  Outcome Attach(const FrameHeader& request, ConstBytes token);
  // A turn of a pass over those keys that are not answered yet: all of them, or those of waiting_.
  Outcome HandleItems(const FrameHeader& request, std::string_view key, ConstBytes body);
  // The next key of the pass. False: the turn is over, and it is the next one still.
  bool HandleNext(const FrameHeader& request, SlotId slot, std::string_view key, ConstBytes body);
  Outcome HandleItem(const FrameHeader& request, std::string_view key, ConstBytes body,
                     Waiting* one, ItemResult* result);
  Outcome AnswerOne(Op op, const Outcome& waiting, Answer* answer);
  Outcome AnswerItems(Op op, Outcome waiting, Answer* answer);
  void Send(Answer* answer);
  // Counts the answer in hand, once.
  void TallyAnswer();
  // A turn of the keys of a MultiExists, none of which waits.
  Outcome ExistMany(const FrameHeader& request);
  Outcome Read(const FrameHeader& request, std::string_view key,
               std::optional<wire::RangeBody> range, Waiting* one, ItemResult* result);
  // A value that the answer can be made of, wherever it lay, which `tier` says; none: see
  // `outcome`, which says why or how long to wait. What is fetched takes up to `bytes_max` of the
  // answer's room.
  ObjectPin Find(const FrameHeader& request, std::string_view key, uint64_t bytes_max, Waiting* one,
                 ItemTier* tier, Outcome* outcome);
  TieredNamespace::Started Forward(const FrameHeader& request, std::string_view key, Waiting* one);
  // What there is under the key, compared with its checksums if the request asks for that. nullopt:
  // the turn is over.
  std::optional<TieredNamespace::Got> Look(const FrameHeader& request, std::string_view key);
  // Answers pin as much as they may: this one waits for others, or does without the value.
  Outcome AwaitPins();
  void Spend(uint64_t bytes) { turn_left_ -= std::min(turn_left_, bytes); }
  Outcome Remove(const FrameHeader& request, std::string_view key, Waiting* one);

  DataService& service_;
  Refusal refusal_;
  PutSession puts_;
  KeyScan scan_;
  KeptAnswer kept_;
  KeptLookup elsewhere_;
  AnswerTally tally_;
  std::optional<Op> untallied_;  // the answer in hand, which may still change while it waits
  std::function<void()> waker_;
  std::string token_;  // of an Attach
  // Of the request in hand, kept from one asking to the next; at most kBatchItemsMax of each.
  TieredNamespace objects_;
  std::vector<Waiting> waiting_;  // by item; none: the next asking is another request
  std::vector<Waiting> again_;    // those of the asking before
  std::vector<Part> parts_;
  std::vector<ItemResult> results_;
  AnswerRoom room_;
  std::optional<Pass> pass_;
  std::optional<ValueCheck> check_;  // of the key at which the last turn ended
  uint64_t turn_left_ = 0;           // bytes
  bool held_back_ = false;           // it has waited for pins, and is counted
  // How many fetches have been begun and have not ended: the last one wakes.
  LastWake fetched_;
};

std::unique_ptr<fabric::Session> DataService::NewSession() {
  return std::make_unique<DataSession>(this);
}

Outcome DataSession::Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                            Answer* answer) {
  const bool resumed = pass_.has_value() || !waiting_.empty() || elsewhere_.asking();
  const bool multi = IsMulti(request.op);
  WireStatus opened = WireStatus::kOk;
  if (!resumed) {
    refusal_.Clear();
    parts_.clear();
    room_ = AnswerRoom();
    if (request.op == Op::kPing) return {};
    if (request.op == Op::kHello || request.op == Op::kPeers || request.op == Op::kStats ||
        request.op == Op::kView) {
      service_.Tell(request, &answer->body);
      return {};
    }
    if (request.op == Op::kAttach) return Attach(request, body);
    if (request.op == Op::kScan) return scan_.Handle(request, body, answer);
    if (RequestCheck::IsOfKept(request.op)) return kept_.Handle(request, key, body, answer);
    const Outcome outcome = service_.check_.Open(request, &objects_, &refusal_);
    if (outcome.wait > Duration::zero()) return outcome;
    opened = outcome.status;
    if (objects_) room_ = AnswerRoom(objects_.HoldForAnswer(), objects_.answer_pins_max());
    results_.assign(multi ? request.item_count : 1, ItemResult{.status = opened});
  }
  const bool open = opened == WireStatus::kOk;
  Outcome waiting = open && !elsewhere_.asking() ? HandleItems(request, key, body) : Outcome();
  if (waiting.again) return waiting;
  const bool of_copy = RequestCheck::IsOfCopy(request);
  if (open && !of_copy && (request.op == Op::kExists || request.op == Op::kMultiExists))
    waiting =
        elsewhere_.Ask(service_.forwarder_, request, key, body, results_, objects_.replicas());
  if (!again_.empty()) {
    std::ranges::sort(parts_, {}, &Part::item);
    // What was said while an item waited is of no use when none is refused in the end.
    const auto refused = [](const ItemResult& one) {
      return one.status != WireStatus::kOk && one.status != WireStatus::kMiss;
    };
    if (std::ranges::none_of(results_, refused)) refusal_.Clear();
  }
  if (of_copy && IsRead(request.op)) TellCopyMisses(service_.check_, request, body, results_);
  return multi ? AnswerItems(request.op, waiting, answer) : AnswerOne(request.op, waiting, answer);
}

Outcome DataSession::HandleItems(const FrameHeader& request, std::string_view key,
                                 ConstBytes body) {
  if (!pass_) {
    pass_.emplace(Pass{.items = ItemReader(request, body)});
    again_.clear();
    again_.swap(waiting_);
  }
  turn_left_ = kTurnBytes;
  if (request.op == Op::kMultiExists) return ExistMany(request);
  for (; pass_->item < results_.size(); ++pass_->item) {
    if (turn_left_ == 0) return {.again = true};
    ItemReader items = pass_->items;
    ItemReader::Item item{.head = {.slot = request.slot}, .key = key};
    if (IsMulti(request.op)) item = items.Next();
    if (!HandleNext(request, SlotId(item.head.slot), item.key, body)) return {.again = true};
    pass_->items = items;
    check_.reset();
    Spend(kTurnBytesPerKey);
  }
  EMS_CHECK(pass_->next == again_.size(), "{} of {} keys are looked at", pass_->next,
            again_.size());
  return std::exchange(pass_, std::nullopt)->waiting;
}

bool DataSession::HandleNext(const FrameHeader& request, SlotId slot, std::string_view key,
                             ConstBytes body) {
  ItemResult& result = results_[pass_->item];
  Waiting one{.item = pass_->item, .slot = slot};
  if (again_.empty()) {
    const bool write = request.op == Op::kRemove || request.op == Op::kMultiRemove;
    const RequestCheck& check = service_.check_;
    result.status = write ? check.Write(request, objects_, slot, &refusal_)
                          : check.Read(request, objects_, slot, &refusal_);
    if (result.status != WireStatus::kOk) return true;
    if (request.op == Op::kExists) {
      KeyBatch::Say(objects_.Find(key, (request.flags & wire::kFlagNoTouch) == 0), &result);
      return true;
    }
  } else {
    if (pass_->next == again_.size() || again_[pass_->next].item != pass_->item) return true;
    one = std::move(again_[pass_->next++]);
  }
  const Outcome outcome = HandleItem(request, key, body, &one, &result);
  if (outcome.again) {
    if (!again_.empty()) again_[--pass_->next] = std::move(one);
    return false;
  }
  result.status = outcome.status;
  if (outcome.wait == Duration::zero()) return true;
  if (outcome.wait > pass_->waiting.wait) pass_->waiting = outcome;
  waiting_.push_back(std::move(one));
  return true;
}

Outcome DataSession::HandleItem(const FrameHeader& request, std::string_view key, ConstBytes body,
                                Waiting* one, ItemResult* result) {
  switch (request.op) {
    case Op::kGetRange:
      return Read(request, key, wire::ReadRaw<wire::RangeBody>(body), one, result);
    case Op::kMultiGetRange:
      return Read(request, key, wire::RangeOf(request, body, one->item), one, result);
    case Op::kGet:
    case Op::kMultiGet:
      return Read(request, key, std::nullopt, one, result);
    default:
      return Remove(request, key, one);
  }
}

Outcome DataSession::AnswerOne(Op op, const Outcome& waiting, Answer* answer) {
  untallied_ = op;
  if (waiting.wait > Duration::zero()) return waiting;
  const ItemResult& result = results_.front();
  // Of an Exists header.object_bytes, which is the same field.
  answer->checksum = op == Op::kExists ? result.value_bytes : result.checksum;
  answer->whole_bytes = result.whole_bytes;
  answer->flags = result.copies;
  Send(answer);
  TallyAnswer();
  return {result.status};
}

Outcome DataSession::AnswerItems(Op op, Outcome waiting, Answer* answer) {
  untallied_ = op;
  const bool waits = waiting.wait > Duration::zero();
  waiting.status = WireStatus::kOk;
  const ConstBytes results = std::as_bytes(std::span(results_));
  answer->body.assign(results.begin(), results.end());
  Send(answer);
  // What does not come in time is a miss, or not durable; the other items do not wait for ever.
  if (waits) return waiting;
  TallyAnswer();
  return {};
}

void DataSession::TallyAnswer() {
  if (const auto op = std::exchange(untallied_, std::nullopt))
    tally_.OnAnswer(*op, results_, objects_);
}

void DataSession::Send(Answer* answer) {
  for (const Part& part : parts_)
    if (!part.bytes.empty()) answer->payload.push_back(part.bytes);
}

void DataSession::Sent() {
  TallyAnswer();  // one whose wait has run out
  refusal_.Clear();
  Empty(&waiting_);
  Empty(&again_);
  Empty(&parts_);
  Empty(&results_);
  room_ = AnswerRoom();
  pass_.reset();
  check_.reset();
  held_back_ = false;
  fetched_.Reset();
  objects_.Rest();
  puts_.Sent();
  scan_.Sent();
  kept_.Sent();
  elsewhere_.Sent();
}

Outcome DataSession::Attach(const FrameHeader& request, ConstBytes token) {
  if (service_.shm_ == nullptr)
    return {refusal_.Say(WireStatus::kUnimplemented, service_.no_shm_text_)};
  token_ = AsText(token);  // looked at when the connection has been taken over
  if (service_.store_->Open(request.ns(), &objects_)) return {};
  return {refusal_.Say(WireStatus::kStaleNamespace, "the namespace is not known here"), kLookAgain};
}

Result<fabric::StagedBytes> DataSession::Staged(const wire::StagedValue& value) {
  if (service_.shm_ == nullptr) return fabric::Session::Staged(value);
  return service_.shm_->Staged(value);
}

Outcome DataSession::ExistMany(const FrameHeader& request) {
  KeyBatch batch(&objects_, (request.flags & wire::kFlagNoTouch) == 0);
  while (!pass_->items.done() && turn_left_ > 0) {
    const auto [head, key] = pass_->items.Next();
    ItemResult& result = results_[pass_->item++];
    Spend(kTurnBytesPerKey);
    result.status = service_.check_.Read(request, objects_, SlotId(head.slot), &refusal_);
    if (result.status == WireStatus::kOk) batch.Add(key, &result);
  }
  batch.Finish();
  if (!pass_->items.done()) return {.again = true};
  EMS_CHECK(pass_->item == results_.size(), "{} of {} keys", pass_->item, results_.size());
  pass_.reset();
  return {};
}

Outcome DataSession::Read(const FrameHeader& request, std::string_view key,
                          std::optional<wire::RangeBody> range, Waiting* one, ItemResult* result) {
  if (one->fetch == nullptr && room_.none()) return {WireStatus::kBatchFull};
  Outcome outcome;
  ObjectPin pin =
      Find(request, key, range ? range->length : UINT64_MAX, one, &result->tier, &outcome);
  if (!pin) return outcome;
  ConstBytes bytes = pin.value();
  result->checksum = pin.checksum();
  if (range) {
    result->whole_bytes = static_cast<uint32_t>(bytes.size());
    Spend(std::min(range->length, 2 * kPieceBytes));
    const WireStatus checked = CheckRange(pin, *range, &refusal_, &result->checksum);
    if (checked != WireStatus::kOk) return {checked};
    bytes = bytes.subspan(range->offset, range->length);
  }
  const auto room = room_.Take(bytes.size());
  if (!room) return {WireStatus::kBatchFull};
  if (!room_.Pin(pin.value().size())) {
    room_.GiveBack(*room);
    return AwaitPins();
  }
  result->value_bytes = bytes.size();
  result->copies = service_.OnRead(objects_, request.ns(), one->slot, key, bytes.size());
  parts_.push_back({one->item, bytes, std::move(pin)});
  return {};
}

ObjectPin DataSession::Find(const FrameHeader& request, std::string_view key, uint64_t bytes_max,
                            Waiting* one, ItemTier* tier, Outcome* outcome) {
  *outcome = {WireStatus::kMiss};
  if (one->fetch == nullptr) {
    std::optional<TieredNamespace::Got> got = Look(request, key);
    outcome->again = !got;
    if (!got) return {};
    if (got->pin) *tier = ItemTier::kDram;
    if (got->pin) return std::move(got->pin);
    const auto room = room_.Take(got->on_ssd ? std::min(got->on_ssd->value_bytes, bytes_max) : 0);
    if (!room) {
      *outcome = {WireStatus::kBatchFull};
      return {};
    }
    TieredNamespace::Started started =
        got->on_ssd ? objects_.StartFetch(key, fetched_.Next()) : Forward(request, key, one);
    if (started.fetch == nullptr) {
      if (got->on_ssd) fetched_.TakeBack();
      room_.GiveBack(*room);
      if (started.busy) *outcome = {WireStatus::kMiss, kLookAgain};
      return {};
    }
    one->fetch = std::move(started.fetch);
    one->room = *room;
  }
  const Fetch::State state = one->fetch->state();
  if (state == Fetch::State::kComing) {
    *outcome = {WireStatus::kMiss, kWakeSoon, kReadPatience};
    return {};
  }
  room_.GiveBack(one->room);
  const FetchPtr fetch = std::move(one->fetch);
  if (state == Fetch::State::kAgain) outcome->wait = kLookAgain;
  if (state != Fetch::State::kHere) return {};
  *tier = one->forwarded ? ItemTier::kDram : ItemTier::kSsd;
  return fetch->pin().Share();
}

// What is not here may be where the slot was before; it is asked for once.
TieredNamespace::Started DataSession::Forward(const FrameHeader& request, std::string_view key,
                                              Waiting* one) {
  Forwarder* const forwarder = service_.forwarder_;
  const uint32_t replicas = objects_.replicas();
  if (forwarder == nullptr || !forwarder->MayHave(one->slot, replicas) || one->forwarded) return {};
  one->forwarded = true;
  FetchPtr fetch = forwarder->Start(request.ns(), one->slot, key, objects_.HashOf(key),
                                    fetched_.Next(), replicas);
  if (fetch == nullptr) fetched_.TakeBack();
  return {std::move(fetch), false};
}

std::optional<TieredNamespace::Got> DataSession::Look(const FrameHeader& request,
                                                      std::string_view key) {
  if (!check_) {
    TieredNamespace::Got got =
        objects_.Get(key, {.touch = (request.flags & wire::kFlagNoTouch) == 0});
    if (!got.pin || (request.flags & wire::kFlagCheck) == 0) return got;
    check_.emplace(std::move(got.pin));
  }
  if (!check_->GoOn(&turn_left_)) return std::nullopt;
  if (check_->Intact()) return TieredNamespace::Got{std::move(check_->pin()), std::nullopt};
  check_->pin().DropDamaged();
  return TieredNamespace::Got{{}, objects_.OnSsd(key)};
}

Outcome DataSession::AwaitPins() {
  if (!parts_.empty() || !waiting_.empty()) return {WireStatus::kBatchFull};
  if (!std::exchange(held_back_, true)) service_.metrics_->OnReadHeldBack();
  return {refusal_.Say(WireStatus::kRetryLater,
                       "answers that are being sent pin half of what the namespace may have here",
                       kRetryPinsMs),
          kLookForPins, kReadPatience};
}

// Done once, then asked about until it cannot come back.
Outcome DataSession::Remove(const FrameHeader& request, std::string_view key, Waiting* one) {
  if (one->ticket == nullptr) {
    const TimePoint now = Clock::System().Now();
    if (now >= wire::WantedUntil(request, now))
      return {refusal_.Say(WireStatus::kDeadline, "the caller does not wait for it any more")};
    const uint32_t losses = service_.check_.losses(one->slot);
    TieredNamespace::Removed removed = objects_.Remove(key, waker_, one->slot);
    // What is kept of a slot that was lost meanwhile has the key still: its new owner is to be
    // asked.
    if (RequestCheck::IsOfCopy(request))
      return {removed.found ? WireStatus::kOk : WireStatus::kMiss};
    const WireStatus since = service_.check_.WriteSince(one->slot, losses, &refusal_);
    if (since != WireStatus::kOk) return {since};
    service_.OnRemoved(objects_, request.ns(), one->slot, key);
    if (removed.ticket == nullptr) return {removed.found ? WireStatus::kOk : WireStatus::kMiss};
    one->ticket = std::move(removed.ticket);
  }
  return OutcomeOf(*one->ticket, &refusal_);
}

}  // namespace ems::server
