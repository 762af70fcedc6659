#include "mp_server/data_service.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "mp_server/put_session.h"

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

// What one answer may pin; a client asks again for the rest. One value may be larger.
constexpr uint64_t kAnswerBytesMax = 64 * kMiB;
// How long a read waits for the SSD; the request's own deadline may be sooner.
constexpr Duration kReadPatience = std::chrono::seconds(2);
// A connection does not keep the room of its largest batch for ever.
constexpr size_t kItemsKept = 4096;

template <typename T>
void Empty(std::vector<T>* items) {
  items->clear();
  if (items->capacity() > kItemsKept) std::vector<T>().swap(*items);
}

// The room that is left in an answer. Its first value always has room.
class AnswerRoom final {
 public:
  bool none() const { return left_ == 0; }
  // How many bytes were taken; nullopt: there is no room.
  std::optional<uint64_t> Take(uint64_t bytes) {
    if (bytes > left_ && values_ > 0) return std::nullopt;
    const uint64_t taken = std::min(bytes, left_);
    left_ -= taken;
    ++values_;
    return taken;
  }
  void GiveBack(uint64_t taken) {
    EMS_CHECK(values_ > 0 && taken <= kAnswerBytesMax - left_, "{} bytes of none", taken);
    left_ += taken;
    --values_;
  }

 private:
  uint64_t left_ = kAnswerBytesMax;
  uint32_t values_ = 0;
};

}  // namespace

// Threading: one thread (the connection's "ems-io").
class DataSession final : public fabric::Session {
 public:
  explicit DataSession(DataService* service)
      : service_(*service),
        puts_(service->store_, &service->check_, service->metrics_, &refusal_) {}

  Outcome Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                 Answer* answer) override;
  Outcome BeginPut(const PutRequest& put, PutTarget* target) override {
    return puts_.Begin(put, target);
  }
  WireStatus EndPut(uint64_t checksum, uint64_t expected) override {
    return puts_.End(checksum, expected);
  }
  void AbortPut() override { puts_.Abort(); }
  Outcome AwaitPuts(std::span<WireStatus> statuses) override { return puts_.Await(statuses); }
  void SetWaker(std::function<void()> waker) override {
    waker_ = waker;
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

 private:
  // A key of the request in hand that is not answered yet.
  struct Waiting {
    uint32_t item = 0;
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

  Outcome Hello(Answer* answer);
  Outcome Stats(Answer* answer);
  Outcome Peers(const FrameHeader& request, Answer* answer);
  Outcome Attach(const FrameHeader& request, ConstBytes token);
  // Those keys that are not answered yet: all of them, or when `resumed` those of waiting_.
  Outcome HandleItems(const FrameHeader& request, std::string_view key, ConstBytes body,
                      bool resumed);
  Outcome HandleItem(const FrameHeader& request, std::string_view key, ConstBytes body,
                     Waiting* one, ItemResult* result);
  Outcome AnswerOne(Op op, const Outcome& waiting, Answer* answer);
  Outcome AnswerItems(Op op, Outcome waiting, Answer* answer);
  void Send(Answer* answer);
  void CountReads();
  void Exists(std::string_view key, bool touch, ItemResult* result);
  Outcome Read(const FrameHeader& request, std::string_view key,
               std::optional<wire::RangeBody> range, Waiting* one, ItemResult* result);
  // A value that the answer can be made of, wherever it lay, which `tier` says; none: see
  // `outcome`, which says why or how long to wait. What is fetched takes up to `bytes_max` of the
  // answer's room.
  ObjectPin Find(const FrameHeader& request, std::string_view key, uint64_t bytes_max, Waiting* one,
                 ItemTier* tier, Outcome* outcome);
  WireStatus CheckRange(const ObjectPin& pin, wire::RangeBody range, uint64_t* checksum);
  Outcome Remove(const FrameHeader& request, std::string_view key, Waiting* one);
  Wake WakeWhenLast();

  DataService& service_;
  Refusal refusal_;
  PutSession puts_;
  std::function<void()> waker_;
  std::string token_;  // of an Attach
  // Of the request in hand, kept from one asking to the next; at most kBatchItemsMax of each.
  TieredNamespace objects_;
  std::vector<Waiting> waiting_;  // by item; none: the next asking is another request
  std::vector<Waiting> again_;    // those of the asking before
  std::vector<Part> parts_;
  std::vector<ItemResult> results_;
  AnswerRoom room_;
  // How many fetches have been begun and have not ended: the last one wakes.
  std::shared_ptr<std::atomic<int>> coming_ = std::make_shared<std::atomic<int>>(0);
};

std::unique_ptr<fabric::Session> DataService::NewSession() {
  return std::make_unique<DataSession>(this);
}

Outcome DataSession::Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                            Answer* answer) {
  const bool resumed = !waiting_.empty();
  const bool multi = IsMulti(request.op);
  WireStatus opened = WireStatus::kOk;
  if (!resumed) {
    refusal_.Clear();
    parts_.clear();
    room_ = AnswerRoom();
    if (request.op == Op::kHello) return Hello(answer);
    if (request.op == Op::kPing) return {};
    if (request.op == Op::kPeers) return Peers(request, answer);
    if (request.op == Op::kStats) return Stats(answer);
    if (request.op == Op::kAttach) return Attach(request, body);
    const Outcome outcome = service_.check_.Open(request, &objects_, &refusal_);
    if (outcome.wait > Duration::zero()) return outcome;
    opened = outcome.status;
    results_.assign(multi ? request.item_count : 1, ItemResult{.status = opened});
  }
  Outcome waiting;
  if (opened == WireStatus::kOk) waiting = HandleItems(request, key, body, resumed);
  if (resumed) {
    std::ranges::sort(parts_, {}, &Part::item);
    // What was said while an item waited is of no use when none is refused in the end.
    const auto refused = [](const ItemResult& one) {
      return one.status != WireStatus::kOk && one.status != WireStatus::kMiss;
    };
    if (std::ranges::none_of(results_, refused)) refusal_.Clear();
  }
  return multi ? AnswerItems(request.op, waiting, answer) : AnswerOne(request.op, waiting, answer);
}

Outcome DataSession::HandleItems(const FrameHeader& request, std::string_view key, ConstBytes body,
                                 bool resumed) {
  again_.clear();
  again_.swap(waiting_);
  auto next = again_.begin();
  const bool write = request.op == Op::kRemove || request.op == Op::kMultiRemove;
  const bool look = request.op == Op::kExists || request.op == Op::kMultiExists;
  const bool touch = (request.flags & wire::kFlagNoTouch) == 0;
  Outcome waiting;
  const auto handle = [&](uint32_t item, SlotId slot, std::string_view item_key) {
    ItemResult& result = results_[item];
    if (!resumed) {
      result.status =
          write ? service_.check_.Write(slot, &refusal_) : service_.check_.Read(slot, &refusal_);
      if (result.status != WireStatus::kOk) return;
      if (look) return Exists(item_key, touch, &result);
    } else if (next == again_.end() || next->item != item) {
      return;
    }
    Waiting one = resumed ? std::move(*next++) : Waiting{.item = item};
    const Outcome outcome = HandleItem(request, item_key, body, &one, &result);
    result.status = outcome.status;
    if (outcome.wait == Duration::zero()) return;
    if (outcome.wait > waiting.wait) waiting = outcome;
    waiting_.push_back(std::move(one));
  };
  if (!IsMulti(request.op)) {
    handle(0, request.slot_id(), key);
    return waiting;
  }
  uint32_t item = 0;
  for (ItemReader items(request, body); !items.done(); ++item) {
    const auto [head, item_key] = items.Next();
    handle(item, SlotId(head.slot), item_key);
  }
  EMS_CHECK(item == results_.size() && next == again_.end(), "{} of {} keys are looked at", item,
            results_.size());
  return waiting;
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
  if (waiting.wait > Duration::zero()) return waiting;
  const ItemResult& result = results_.front();
  service_.metrics_->OnAnswer(op, result.status);
  // Of an Exists header.object_bytes, which is the same field.
  answer->checksum = op == Op::kExists ? result.value_bytes : result.checksum;
  answer->whole_bytes = result.whole_bytes;
  Send(answer);
  CountReads();
  return {result.status};
}

Outcome DataSession::AnswerItems(Op op, Outcome waiting, Answer* answer) {
  const bool waits = waiting.wait > Duration::zero();
  waiting.status = WireStatus::kOk;
  const ConstBytes results = std::as_bytes(std::span(results_));
  answer->body.assign(results.begin(), results.end());
  Send(answer);
  // What does not come in time is a miss, or not durable; the other items do not wait for ever.
  if (waits) return waiting;
  std::array<uint32_t, wire::kWireStatusMax + 1> counts{};
  for (const ItemResult& result : results_) ++counts[static_cast<size_t>(result.status)];
  for (size_t status = 0; status < counts.size(); ++status) {
    if (counts[status] > 0)
      service_.metrics_->OnAnswer(op, static_cast<WireStatus>(status), counts[status]);
  }
  CountReads();
  return {};
}

void DataSession::Send(Answer* answer) {
  for (const Part& part : parts_) {
    if (!part.bytes.empty()) answer->payload.push_back(part.bytes);
  }
}

void DataSession::CountReads() {
  for (const Part& part : parts_) {
    const bool from_ssd = results_[part.item].tier == ItemTier::kSsd;
    service_.metrics_->OnRead(part.bytes.size(), from_ssd);
  }
}

void DataSession::Sent() {
  refusal_.Clear();
  Empty(&waiting_);
  Empty(&again_);
  Empty(&parts_);
  Empty(&results_);
  if (coming_->load(std::memory_order_relaxed) != 0)  // some may never end
    coming_ = std::make_shared<std::atomic<int>>(0);
  objects_.Rest();
  puts_.Sent();
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
  if (service_.cluster_) hello.SetCluster(service_.cluster_());
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
Outcome DataSession::Peers(const FrameHeader& request, Answer* answer) {
  if (service_.tell_peers_) service_.tell_peers_(request.view_version(), &answer->body);
  return {};
}

Outcome DataSession::Attach(const FrameHeader& request, ConstBytes token) {
  if (service_.shm_ == nullptr)
    return {refusal_.Say(WireStatus::kUnimplemented, service_.no_shm_text_)};
  token_ = AsText(token);
  if (service_.store_->Open(request.ns(), &objects_)) return {};
  return {refusal_.Say(WireStatus::kStaleNamespace, "the namespace is not known here"), kLookAgain};
}

Result<fabric::StagedBytes> DataSession::Staged(const wire::StagedValue& value) {
  if (service_.shm_ == nullptr) return fabric::Session::Staged(value);
  return service_.shm_->Staged(value);
}

void DataSession::Exists(std::string_view key, bool touch, ItemResult* result) {
  const auto found = objects_.Find(key, touch);
  result->status = found ? WireStatus::kOk : WireStatus::kMiss;
  if (!found) return;
  result->value_bytes = found->info.value_bytes;
  result->tier = found->in_dram ? ItemTier::kDram : ItemTier::kSsd;
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
    const WireStatus checked = CheckRange(pin, *range, &result->checksum);
    if (checked != WireStatus::kOk) return {checked};
    bytes = bytes.subspan(range->offset, range->length);
  }
  if (!room_.Take(bytes.size())) return {WireStatus::kBatchFull};
  result->value_bytes = bytes.size();
  parts_.push_back({one->item, bytes, std::move(pin)});
  return {};
}

ObjectPin DataSession::Find(const FrameHeader& request, std::string_view key, uint64_t bytes_max,
                            Waiting* one, ItemTier* tier, Outcome* outcome) {
  *outcome = {WireStatus::kMiss};
  if (one->fetch == nullptr) {
    TieredNamespace::Got got =
        objects_.Get(key, {.touch = (request.flags & wire::kFlagNoTouch) == 0,
                           .check = (request.flags & wire::kFlagCheck) != 0});
    if (got.pin) *tier = ItemTier::kDram;
    if (got.pin || !got.on_ssd) return std::move(got.pin);
    const auto room = room_.Take(std::min(got.on_ssd->value_bytes, bytes_max));
    if (!room) {
      *outcome = {WireStatus::kBatchFull};
      return {};
    }
    TieredNamespace::Started started = objects_.StartFetch(key, WakeWhenLast());
    if (started.fetch == nullptr) {
      coming_->fetch_sub(1, std::memory_order_acq_rel);
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
  *tier = ItemTier::kSsd;
  return fetch->pin().Share();
}

WireStatus DataSession::CheckRange(const ObjectPin& pin, wire::RangeBody range,
                                   uint64_t* checksum) {
  const uint64_t size = pin.value().size();
  if (range.offset > size || range.length > size - range.offset) {
    return refusal_.Say(WireStatus::kOutOfRange, fmt::format("range {}+{} of a value of {} bytes",
                                                             range.offset, range.length, size));
  }
  const auto sum = RangeChecksum(pin.value(), pin.piece_sums(), range.offset, range.length);
  if (!sum) {
    pin.DropDamaged();  // a Put of it must store it again
    return refusal_.Say(WireStatus::kChecksumMismatch, "the stored value is damaged");
  }
  *checksum = *sum;
  return WireStatus::kOk;
}

// Done once, then asked about until it cannot come back.
Outcome DataSession::Remove(const FrameHeader& request, std::string_view key, Waiting* one) {
  if (one->ticket == nullptr) {
    const TimePoint now = Clock::System().Now();
    if (now >= wire::WantedUntil(request, now))
      return {refusal_.Say(WireStatus::kDeadline, "the caller does not wait for it any more")};
    TieredNamespace::Removed removed = objects_.Remove(key, waker_);
    if (removed.ticket == nullptr) return {removed.found ? WireStatus::kOk : WireStatus::kMiss};
    one->ticket = std::move(removed.ticket);
  }
  switch (one->ticket->state()) {
    case ssd::Ticket::State::kDone:
      return {WireStatus::kOk};
    case ssd::Ticket::State::kFailed:
      return {refusal_.Say(WireStatus::kNotDurable, "the SSD tier cannot forget it now",
                           kRetryDurableMs)};
    case ssd::Ticket::State::kWaiting:
      break;
  }
  return {refusal_.Say(WireStatus::kNotDurable, "the SSD tier is slow", kRetryDurableMs), kWakeSoon,
          kDurablePatience};
}

}  // namespace ems::server
