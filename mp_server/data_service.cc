#include "mp_server/data_service.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"

namespace ems::server {

using fabric::Answer;
using fabric::Outcome;
using fabric::PutRequest;
using fabric::PutTarget;
using wire::FrameHeader;
using wire::ItemReader;
using wire::ItemResult;
using wire::ItemTier;
using wire::Op;
using wire::WireStatus;

namespace {

// How soon to look again for a view, a namespace or room that is on its way.
constexpr Duration kLookAgain = std::chrono::milliseconds(2);
// What one answer may pin; a client asks again for the rest. One value may be larger.
constexpr uint64_t kAnswerBytesMax = 64 * kMiB;
constexpr uint32_t kRetryRoomMs = 20;
constexpr uint32_t kRetryHoldMs = 100;
constexpr uint32_t kRetryDrainMs = 1000;
// How long a read waits for the SSD, and a Put or Remove for it to be durable; the request's own
// deadline may be sooner. A waker ends the wait; looking again is for what has none.
constexpr Duration kReadPatience = std::chrono::seconds(2);
constexpr Duration kDurablePatience = std::chrono::seconds(5);
constexpr Duration kWakeSoon = std::chrono::milliseconds(100);
constexpr uint32_t kRetryDurableMs = 200;

}  // namespace

// A value in memory that cannot go away: in DRAM all along, or just read from the SSD.
class Value final {
 public:
  explicit Value(ObjectPin pin) : pin_(std::move(pin)) {}
  explicit Value(FetchPtr fetch) : fetch_(std::move(fetch)) {}
  ConstBytes bytes() const { return fetch_ == nullptr ? pin_.value() : fetch_->value(); }
  uint64_t checksum() const { return fetch_ == nullptr ? pin_.checksum() : fetch_->checksum(); }
  std::span<const uint64_t> piece_sums() const {
    return fetch_ == nullptr ? pin_.piece_sums() : fetch_->piece_sums();
  }
  bool from_ssd() const { return fetch_ != nullptr; }
  void DropDamaged() const { fetch_ == nullptr ? pin_.DropDamaged() : fetch_->DropDamaged(); }

 private:
  ObjectPin pin_;
  FetchPtr fetch_;
};

// Threading: one thread (the connection's "ems-io").
class DataSession final : public fabric::Session {
 public:
  explicit DataSession(DataService* service) : service_(*service) {}

  Outcome Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                 Answer* answer) override;
  Outcome BeginPut(const PutRequest& put, PutTarget* target) override;
  WireStatus EndPut(uint64_t checksum, uint64_t expected) override;
  void AbortPut() override { reservation_ = Reservation(); }
  Outcome AwaitPuts(std::span<WireStatus> statuses) override;
  void SetWaker(std::function<void()> waker) override { waker_ = std::move(waker); }
  Result<fabric::StagedBytes> Staged(const wire::StagedValue& value) override;
  void TakeOver(fabric::Fd socket, NamespaceRef ns) override {
    service_.shm_->Adopt(std::move(socket), ns, std::move(token_));
  }
  std::string_view ErrorText() override { return text_; }
  uint32_t retry_ms() override { return retry_ms_; }
  ViewVersion view_version() override { return service_.ownership_->version(); }
  void Sent() override;

 private:
  Outcome Hello(Answer* answer);
  Outcome Stats(Answer* answer);
  Outcome Attach(const FrameHeader& request, ConstBytes token);
  Outcome HandleMulti(const FrameHeader& request, ConstBytes body, Answer* answer);
  // One item of a Multi request, or a request of one key.
  Outcome Check(const FrameHeader& request, SlotId slot, bool write);
  Outcome HandleOne(const FrameHeader& request, std::string_view key, ConstBytes body,
                    Answer* answer);
  // A value that the answer can be made of, wherever it lay; null: see `outcome`, which says a miss
  // or how long to wait.
  const Value* Find(const FrameHeader& request, uint32_t item, std::string_view key,
                    Outcome* outcome);
  Outcome Get(const FrameHeader& request, std::string_view key, Answer* answer);
  Outcome GetRange(const FrameHeader& request, std::string_view key, ConstBytes body,
                   Answer* answer);
  // What lies in DRAM, if it may be sent: a value that the request wants checked, and that is
  // damaged, goes.
  ObjectPin FindInDram(const FrameHeader& request, uint32_t item, std::string_view key);
  // The checksum of a range of a value that Find gave. A damaged value goes.
  WireStatus CheckRange(const Value& value, wire::RangeBody range, uint64_t* checksum);
  WireStatus Exists(const FrameHeader& request, std::string_view key, Answer* answer);
  Outcome Remove(const FrameHeader& request, uint32_t item, std::string_view key);
  // `body` is the request's.
  Outcome HandleItem(const FrameHeader& request, uint32_t item, std::string_view key,
                     ConstBytes body, uint64_t* room, ItemResult* result, Answer* answer);
  Outcome ReserveFor(const PutRequest& put, PutTarget* target);
  WireStatus Store(Reservation reservation, uint64_t checksum);
  WireStatus Fail(WireStatus status, std::string text) {
    text_ = std::move(text);
    return status;
  }
  Wake WakeWhenLast();

  DataService& service_;
  std::function<void()> waker_;
  // What the present answer sends; at most kBatchItemsMax. Kept from one asking to the next.
  std::vector<Value> values_;
  // What the present request waits for, by item.
  std::map<uint32_t, FetchPtr> fetches_;
  std::set<uint32_t> checked_;  // what it found in DRAM and compared
  std::map<uint32_t, TieredStore::Removed> removes_;
  std::map<uint32_t, ssd::TicketPtr> tickets_;
  // How many fetches have been begun and have not ended: the last one wakes.
  std::shared_ptr<std::atomic<int>> coming_ = std::make_shared<std::atomic<int>>(0);
  std::string text_;
  uint32_t retry_ms_ = 0;
  std::string token_;  // of an Attach
  // The Put under way.
  Reservation reservation_;
  Op put_op_ = Op::kPut;
  bool overwrite_ = false;
  bool durable_ = false;
  bool exists_ = false;        // the key exists: only the same content is welcome
  bool compare_only_ = false;  // and it is in DRAM: nothing is stored
  ObjectInfo existing_;
  NamespaceRef put_ns_;
  std::string put_key_;  // of one that is to be durable
  uint32_t put_index_ = 0;
  uint64_t put_bytes_ = 0;
  SlotId put_slot_;
};

std::unique_ptr<fabric::Session> DataService::NewSession() {
  return std::make_unique<DataSession>(this);
}

Outcome DataSession::Check(const FrameHeader& request, SlotId slot, bool write) {
  if (service_.draining_.load(std::memory_order_acquire)) {
    retry_ms_ = kRetryDrainMs;
    return {Fail(WireStatus::kRetryLater, "this server is stopping")};
  }
  if (!service_.store_->dram().Knows(request.ns())) {
    // It may have been made a moment ago; its news is on the way here.
    return {Fail(WireStatus::kStaleNamespace,
                 fmt::format("namespace {} generation {} is not known here: deleted, or too new",
                             request.namespace_id, request.namespace_generation)),
            kLookAgain};
  }
  const Ownership& ownership = *service_.ownership_;
  switch (write ? ownership.CheckWrite(slot, request.view_version())
                : ownership.CheckRead(slot, request.view_version())) {
    case Verdict::kYes:
      return {};
    case Verdict::kWrongOwner:
      return {Fail(WireStatus::kWrongOwner, fmt::format("slot {} is not here", slot.value()))};
    case Verdict::kBehind:
      return {
          Fail(WireStatus::kWrongOwner, "this server has not seen the view of this request yet"),
          kLookAgain};
    case Verdict::kHold:
      retry_ms_ = kRetryHoldMs;
      return {Fail(WireStatus::kRetryLater, "slot taken over just now")};
    case Verdict::kFenced:
      return {
          Fail(WireStatus::kFenced, "this server's lease has ended: it has lost the controller")};
  }
  return {WireStatus::kInternal};
}

Outcome DataSession::Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                            Answer* answer) {
  text_.clear();
  retry_ms_ = 0;
  values_.clear();
  if (request.op == Op::kHello) return Hello(answer);
  if (request.op == Op::kPing) return {};
  if (request.op == Op::kStats) return Stats(answer);
  if (request.op == Op::kAttach) return Attach(request, body);
  if (IsMulti(request.op)) return HandleMulti(request, body, answer);
  Outcome outcome = Check(request, request.slot_id(), request.op == Op::kRemove);
  if (outcome.status == WireStatus::kOk) outcome = HandleOne(request, key, body, answer);
  if (outcome.wait == Duration::zero()) service_.metrics_->OnAnswer(request.op, outcome.status);
  return outcome;
}

Outcome DataSession::HandleOne(const FrameHeader& request, std::string_view key, ConstBytes body,
                               Answer* answer) {
  switch (request.op) {
    case Op::kGet:
      return Get(request, key, answer);
    case Op::kGetRange:
      return GetRange(request, key, body, answer);
    case Op::kExists:
      return {Exists(request, key, answer)};
    default:
      return Remove(request, 0, key);
  }
}

void DataSession::Sent() {
  values_.clear();
  if (!fetches_.empty()) coming_ = std::make_shared<std::atomic<int>>(0);  // some may never end
  fetches_.clear();
  checked_.clear();
  removes_.clear();
  tickets_.clear();
}

// For fetches of this request: the last one of them that ends wakes it, so that it is looked at
// once and not for each.
Wake DataSession::WakeWhenLast() {
  coming_->fetch_add(1, std::memory_order_relaxed);
  return [coming = coming_, waker = waker_] {
    if (coming->fetch_sub(1, std::memory_order_acq_rel) == 1) waker();
  };
}

Outcome DataSession::Hello(Answer* answer) {
  wire::HelloBody hello;
  hello.boot_id = service_.boot_id_;
  hello.value_bytes_max = service_.value_bytes_max_;
  const ConstBytes raw = wire::RawBytes(hello);
  answer->body.assign(raw.begin(), raw.end());
  return {};
}

Outcome DataSession::Stats(Answer* answer) {
  const std::string json = service_.stats_json_();
  answer->body.assign(AsBytes(json).begin(), AsBytes(json).end());
  return {};
}

// Whether this client may attach is decided, and said, when the connection has been taken over.
Outcome DataSession::Attach(const FrameHeader& request, ConstBytes token) {
  if (service_.shm_ == nullptr) return {Fail(WireStatus::kUnimplemented, service_.no_shm_text_)};
  token_ = AsText(token);
  if (service_.store_->dram().Knows(request.ns())) return {};
  return {Fail(WireStatus::kStaleNamespace, "the namespace is not known here"), kLookAgain};
}

Result<fabric::StagedBytes> DataSession::Staged(const wire::StagedValue& value) {
  if (service_.shm_ == nullptr) return fabric::Session::Staged(value);
  return service_.shm_->Staged(value);
}

ObjectPin DataSession::FindInDram(const FrameHeader& request, uint32_t item, std::string_view key) {
  const bool touch = (request.flags & wire::kFlagNoTouch) == 0;
  ObjectPin pin = service_.store_->dram().Get(request.ns(), key, touch);
  // Once a request, however often that has to wait for the SSD.
  const bool check = pin && (request.flags & wire::kFlagCheck) != 0 && checked_.insert(item).second;
  if (!check || pin.Intact()) return pin;
  pin.DropDamaged();
  return {};
}

const Value* DataSession::Find(const FrameHeader& request, uint32_t item, std::string_view key,
                               Outcome* outcome) {
  *outcome = {WireStatus::kMiss};
  const auto begun = fetches_.find(item);
  FetchPtr fetch = begun == fetches_.end() ? nullptr : begun->second;
  if (fetch == nullptr || fetch->state() == Fetch::State::kAgain) {
    ObjectPin pin = FindInDram(request, item, key);
    if (pin) return &values_.emplace_back(std::move(pin));
    if (!service_.store_->OnSsd(request.ns(), key)) return nullptr;
    TieredStore::Started started = service_.store_->StartFetch(request.ns(), key, WakeWhenLast());
    if (started.fetch == nullptr) {
      coming_->fetch_sub(1, std::memory_order_acq_rel);
      if (started.busy) *outcome = {WireStatus::kMiss, kLookAgain};
      return nullptr;
    }
    fetches_[item] = fetch = std::move(started.fetch);
  }
  switch (fetch->state()) {
    case Fetch::State::kHere:
      return &values_.emplace_back(std::move(fetch));
    case Fetch::State::kMiss:
      return nullptr;
    case Fetch::State::kAgain:
      outcome->wait = kLookAgain;
      return nullptr;
    case Fetch::State::kComing:
      break;
  }
  *outcome = {WireStatus::kMiss, kWakeSoon, kReadPatience};
  return nullptr;
}

Outcome DataSession::Get(const FrameHeader& request, std::string_view key, Answer* answer) {
  Outcome outcome;
  const Value* value = Find(request, 0, key, &outcome);
  if (value == nullptr) return outcome;
  answer->checksum = value->checksum();
  answer->payload.push_back(value->bytes());
  service_.metrics_->OnRead(value->bytes().size(), value->from_ssd());
  return {};
}

Outcome DataSession::GetRange(const FrameHeader& request, std::string_view key, ConstBytes body,
                              Answer* answer) {
  const auto range = wire::ReadRaw<wire::RangeBody>(body);
  Outcome outcome;
  const Value* value = Find(request, 0, key, &outcome);
  if (value == nullptr) return outcome;
  const WireStatus checked = CheckRange(*value, range, &answer->checksum);
  if (checked != WireStatus::kOk) return {checked};
  answer->whole_bytes = static_cast<uint32_t>(value->bytes().size());
  answer->payload.push_back(value->bytes().subspan(range.offset, range.length));
  service_.metrics_->OnRead(range.length, value->from_ssd());
  return {};
}

WireStatus DataSession::CheckRange(const Value& value, wire::RangeBody range, uint64_t* checksum) {
  const uint64_t size = value.bytes().size();
  if (range.offset > size || range.length > size - range.offset) {
    return Fail(WireStatus::kOutOfRange, fmt::format("range {}+{} of a value of {} bytes",
                                                     range.offset, range.length, size));
  }
  const auto sum = RangeChecksum(value.bytes(), value.piece_sums(), range.offset, range.length);
  if (!sum) {
    value.DropDamaged();  // a Put of it must store it anew
    return Fail(WireStatus::kChecksumMismatch, "the stored value is damaged");
  }
  *checksum = *sum;
  return WireStatus::kOk;
}

WireStatus DataSession::Exists(const FrameHeader& request, std::string_view key, Answer* answer) {
  const auto info =
      service_.store_->Find(request.ns(), key, (request.flags & wire::kFlagNoTouch) == 0);
  if (!info) return WireStatus::kMiss;
  answer->checksum = info->value_bytes;  // header.object_bytes
  return WireStatus::kOk;
}

// Done once, then asked about until it cannot come back.
Outcome DataSession::Remove(const FrameHeader& request, uint32_t item, std::string_view key) {
  auto it = removes_.find(item);
  if (it == removes_.end()) {
    TieredStore::Removed removed = service_.store_->Remove(request.ns(), key, waker_);
    if (removed.ticket == nullptr) return {removed.found ? WireStatus::kOk : WireStatus::kMiss};
    it = removes_.emplace(item, std::move(removed)).first;
  }
  switch (it->second.ticket->state()) {
    case ssd::Ticket::State::kDone:
      return {WireStatus::kOk};
    case ssd::Ticket::State::kFailed:
      retry_ms_ = kRetryDurableMs;
      return {Fail(WireStatus::kRetryLater,
                   "gone from memory, but the SSD tier cannot forget it now: it may be back after "
                   "a restart")};
    case ssd::Ticket::State::kWaiting:
      break;
  }
  retry_ms_ = kRetryDurableMs;
  return {Fail(WireStatus::kRetryLater, "the SSD tier is slow to forget it"), kWakeSoon,
          kDurablePatience};
}

Outcome DataSession::HandleMulti(const FrameHeader& request, ConstBytes body, Answer* answer) {
  const bool write = request.op == Op::kMultiRemove;
  uint64_t room = kAnswerBytesMax;
  Outcome waiting;
  uint32_t item = 0;
  answer->body.resize(request.item_count * sizeof(ItemResult));
  std::byte* out = answer->body.data();
  for (ItemReader items(request, body); !items.done(); out += sizeof(ItemResult), ++item) {
    const auto [head, key] = items.Next();
    const Outcome checked = Check(request, SlotId(head.slot), write);
    // A view or namespace on its way concerns the whole frame, and nothing of it has been done yet.
    if (checked.wait > Duration::zero() && out == answer->body.data()) {
      answer->body.clear();
      return checked;
    }
    ItemResult result;
    result.status = checked.status;
    if (checked.status == WireStatus::kOk) {
      const Outcome outcome = HandleItem(request, item, key, body, &room, &result, answer);
      if (outcome.wait > waiting.wait) waiting = outcome;
    }
    std::memcpy(out, &result, sizeof(result));
  }
  if (waiting.wait > Duration::zero()) {
    // What does not come in time is a miss; the items that are there do not wait for ever.
    waiting.status = WireStatus::kOk;
    if (write) {
      waiting.status = WireStatus::kRetryLater;
      answer->body.clear();
    }
    return waiting;
  }
  auto value = values_.begin();  // of the next item that brings one
  for (const std::byte* at = answer->body.data(); at != out; at += sizeof(ItemResult)) {
    ItemResult result;
    std::memcpy(&result, at, sizeof(result));
    service_.metrics_->OnAnswer(request.op, result.status);
    if (!values_.empty() && result.status == WireStatus::kOk)
      service_.metrics_->OnRead(result.value_bytes, value++->from_ssd());
  }
  return {};
}

Outcome DataSession::HandleItem(const FrameHeader& request, uint32_t item, std::string_view key,
                                ConstBytes body, uint64_t* room, ItemResult* result,
                                Answer* answer) {
  if (request.op == Op::kMultiRemove) {
    const Outcome outcome = Remove(request, item, key);
    result->status = outcome.status;
    return outcome;
  }
  if (request.op == Op::kMultiExists) {
    const bool touch = (request.flags & wire::kFlagNoTouch) == 0;
    const auto info = service_.store_->Find(request.ns(), key, touch);
    result->status = info ? WireStatus::kOk : WireStatus::kMiss;
    result->value_bytes = info ? info->value_bytes : 0;
    if (info) {
      const bool here = !service_.store_->has_ssd() ||
                        service_.store_->dram().Find(request.ns(), key, false).has_value();
      result->tier = here ? ItemTier::kDram : ItemTier::kSsd;
    }
    return {};
  }
  if (*room == 0) {
    result->status = WireStatus::kBatchFull;
    return {};
  }
  Outcome outcome;
  const Value* value = Find(request, item, key, &outcome);
  if (value == nullptr) {
    result->status = outcome.status;
    if (outcome.wait == kWakeSoon) {  // it will take its room when it is there
      const auto info = service_.store_->Find(request.ns(), key, false);
      *room -= std::min(*room, info ? info->value_bytes : 0);
    }
    return outcome;
  }
  result->tier = value->from_ssd() ? ItemTier::kSsd : ItemTier::kDram;
  wire::RangeBody range{.offset = 0, .length = value->bytes().size()};
  if (request.op == Op::kMultiGetRange) {
    range = wire::RangeOf(request, body, item);
    result->whole_bytes = static_cast<uint32_t>(value->bytes().size());
    result->status = CheckRange(*value, range, &result->checksum);
  } else {
    result->checksum = value->checksum();
  }
  if (range.length > *room && values_.size() > 1) result->status = WireStatus::kBatchFull;
  if (result->status != WireStatus::kOk) {
    values_.pop_back();
    return {};
  }
  *room -= std::min(*room, range.length);
  result->value_bytes = range.length;
  if (range.length > 0)
    answer->payload.push_back(value->bytes().subspan(range.offset, range.length));
  return {};
}

Outcome DataSession::BeginPut(const PutRequest& put, PutTarget* target) {
  text_.clear();
  put_op_ = put.header->op;
  put_bytes_ = put.value_bytes;
  put_slot_ = put.slot;
  put_index_ = put.index;
  overwrite_ = (put.header->flags & wire::kFlagOverwrite) != 0;
  durable_ = (put.header->flags & wire::kFlagDurableSsd) != 0;
  Outcome outcome = Check(*put.header, put.slot, true);
  if (outcome.status == WireStatus::kOk && durable_ && !service_.store_->has_ssd()) {
    outcome.status =
        Fail(WireStatus::kUnimplemented, "this server has no SSD tier: put with durability dram");
  }
  if (outcome.status == WireStatus::kOk && durable_ && !service_.store_->FitsSsd(put.value_bytes)) {
    outcome.status = Fail(WireStatus::kTooLarge,
                          "larger than the SSD tier takes: see ssd.region_bytes and "
                          "ssd.dirty_bytes_max, or put with durability dram");
  }
  if (outcome.status == WireStatus::kOk) outcome = ReserveFor(put, target);
  if (outcome.status != WireStatus::kOk && outcome.wait == Duration::zero()) {
    service_.metrics_->OnAnswer(put_op_, outcome.status);
  }
  return outcome;
}

Outcome DataSession::ReserveFor(const PutRequest& put, PutTarget* target) {
  exists_ = compare_only_ = false;
  if (service_.store_->has_ssd()) put_key_ = put.key;
  if (!overwrite_) {
    if (const auto info = service_.store_->dram().Find(put.header->ns(), put.key, true)) {
      existing_ = *info;
      exists_ = compare_only_ = true;
      put_ns_ = put.header->ns();
      target->discard = true;
      return {};
    }
    // On the SSD alone: the sender has it in hand, so it comes back to DRAM without a read.
    if (const auto info = service_.store_->Find(put.header->ns(), put.key, true)) {
      existing_ = *info;
      exists_ = true;
    }
  }
  auto reservation =
      service_.store_->dram().Reserve(put.header->ns(), put.slot, put.key, put.value_bytes);
  if (!reservation.ok()) {
    std::string text(Message(reservation.status()));
    switch (reservation.status().code()) {
      case StatusCode::kResourceExhausted:
        retry_ms_ = kRetryRoomMs;
        return {Fail(WireStatus::kRetryLater, std::move(text)), kLookAgain};
      case StatusCode::kOutOfRange:
        return {Fail(WireStatus::kTooLarge, std::move(text))};
      case StatusCode::kFailedPrecondition:
        return {Fail(WireStatus::kStaleNamespace, std::move(text))};
      default:
        return {Fail(WireStatus::kInternal, std::move(text))};
    }
  }
  reservation_ = *std::move(reservation);
  target->value = reservation_.value();
  target->piece_sums = reservation_.piece_sums();
  return {};
}

WireStatus DataSession::EndPut(uint64_t checksum, uint64_t expected) {
  Reservation reservation = std::move(reservation_);
  WireStatus status = WireStatus::kOk;
  // The bytes may have taken long: is this server still the one to take them?
  const Verdict verdict = service_.ownership_->CheckWrite(put_slot_, ViewVersion());
  if (verdict == Verdict::kFenced) {
    status = Fail(WireStatus::kFenced, "this server's lease ended during the transfer");
  } else if (verdict == Verdict::kWrongOwner) {
    status = Fail(WireStatus::kWrongOwner, "the slot moved during the transfer");
  } else if (checksum != expected) {
    status = Fail(WireStatus::kChecksumMismatch, "the value does not match the sender's checksum");
  } else if (exists_ && (existing_.value_bytes != put_bytes_ || existing_.checksum != checksum)) {
    status = Fail(WireStatus::kAlreadyExists,
                  fmt::format("the key holds another value of {} bytes: overwrite to replace it",
                              existing_.value_bytes));
  } else {
    status = Store(std::move(reservation), checksum);
  }
  service_.metrics_->OnAnswer(put_op_, status);
  return status;
}

WireStatus DataSession::Store(Reservation reservation, uint64_t checksum) {
  ssd::TicketPtr ticket;
  bool stored = false;
  if (compare_only_) {
    if (!service_.store_->Confirm(put_ns_, put_key_, durable_, waker_, &ticket)) {
      retry_ms_ = kRetryRoomMs;
      return Fail(WireStatus::kRetryLater, "the key was removed meanwhile");
    }
  } else {
    const Status published = service_.store_->Publish(std::move(reservation), checksum, overwrite_,
                                                      durable_, waker_, &stored, &ticket);
    if (!published.ok()) {
      return Fail(published.code() == StatusCode::kAlreadyExists ? WireStatus::kAlreadyExists
                                                                 : WireStatus::kWrongOwner,
                  std::string(Message(published)));
    }
  }
  if (ticket != nullptr) tickets_[put_index_] = std::move(ticket);
  stored && !exists_ ? service_.metrics_->OnStored(put_bytes_)
                     : service_.metrics_->OnDeduplicated(put_bytes_);
  return WireStatus::kOk;
}

Outcome DataSession::AwaitPuts(std::span<WireStatus> statuses) {
  for (auto it = tickets_.begin(); it != tickets_.end();) {
    const ssd::Ticket::State state = it->second->state();
    if (state == ssd::Ticket::State::kWaiting) {
      retry_ms_ = kRetryDurableMs;
      return {WireStatus::kRetryLater, kWakeSoon, kDurablePatience};
    }
    if (state == ssd::Ticket::State::kFailed && it->first < statuses.size()) {
      retry_ms_ = kRetryDurableMs;
      statuses[it->first] = Fail(WireStatus::kRetryLater,
                                 "in DRAM, but the SSD tier did not take it in time; it is " +
                                     service_.store_->SsdState());
    }
    it = tickets_.erase(it);
  }
  return {};
}

}  // namespace ems::server
