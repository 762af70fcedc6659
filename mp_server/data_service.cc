#include "mp_server/data_service.h"

#include <algorithm>
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

}  // namespace

// Threading: one thread (the connection's "ems-io").
class DataSession final : public fabric::Session {
 public:
  explicit DataSession(DataService* service) : service_(*service) {}

  Outcome Handle(const FrameHeader& request, std::string_view key, ConstBytes body,
                 Answer* answer) override;
  Outcome BeginPut(const PutRequest& put, PutTarget* target) override;
  WireStatus EndPut(uint64_t checksum, uint64_t expected) override;
  void AbortPut() override { reservation_ = Reservation(); }
  Result<fabric::StagedBytes> Staged(const wire::StagedValue& value) override;
  void TakeOver(fabric::Fd socket, NamespaceRef ns) override {
    service_.shm_->Adopt(std::move(socket), ns, std::move(token_));
  }
  std::string_view ErrorText() override { return text_; }
  uint32_t retry_ms() override { return retry_ms_; }
  ViewVersion view_version() override { return service_.ownership_->version(); }
  void Sent() override { pins_.clear(); }

 private:
  Outcome Hello(Answer* answer);
  Outcome Stats(Answer* answer);
  Outcome Attach(const FrameHeader& request, ConstBytes token);
  Outcome HandleMulti(const FrameHeader& request, ConstBytes body, Answer* answer);
  // One item of a Multi request, or a request of one key.
  Outcome Check(const FrameHeader& request, SlotId slot, bool write);
  WireStatus Get(const FrameHeader& request, std::string_view key, Answer* answer);
  WireStatus GetRange(const FrameHeader& request, std::string_view key, ConstBytes body,
                      Answer* answer);
  WireStatus Exists(const FrameHeader& request, std::string_view key, Answer* answer);
  WireStatus Remove(const FrameHeader& request, std::string_view key);
  void HandleItem(const FrameHeader& request, std::string_view key, uint64_t* room,
                  ItemResult* result, Answer* answer);
  Outcome ReserveFor(const PutRequest& put, PutTarget* target);
  WireStatus Fail(WireStatus status, std::string text) {
    text_ = std::move(text);
    return status;
  }
  bool RangeChecksum(const ObjectPin& pin, wire::RangeBody range, uint64_t* checksum);

  DataService& service_;
  std::vector<ObjectPin> pins_;  // what the present answer sends; at most kBatchItemsMax
  std::string text_;
  uint32_t retry_ms_ = 0;
  std::string token_;  // of an Attach
  // The Put under way.
  Reservation reservation_;
  Op put_op_ = Op::kPut;
  bool overwrite_ = false;
  bool compare_only_ = false;  // the key exists: only whether the content is the same matters
  ObjectInfo existing_;
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
  if (!service_.store_->Knows(request.ns())) {
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
  pins_.clear();
  if (request.op == Op::kHello) return Hello(answer);
  if (request.op == Op::kPing) return {};
  if (request.op == Op::kStats) return Stats(answer);
  if (request.op == Op::kAttach) return Attach(request, body);
  if (IsMulti(request.op)) return HandleMulti(request, body, answer);
  Outcome outcome = Check(request, request.slot_id(), request.op == Op::kRemove);
  if (outcome.status == WireStatus::kOk) {
    switch (request.op) {
      case Op::kGet:
        outcome.status = Get(request, key, answer);
        break;
      case Op::kGetRange:
        outcome.status = GetRange(request, key, body, answer);
        break;
      case Op::kExists:
        outcome.status = Exists(request, key, answer);
        break;
      default:
        outcome.status = Remove(request, key);
        break;
    }
  }
  if (outcome.wait == Duration::zero()) service_.metrics_->OnAnswer(request.op, outcome.status);
  return outcome;
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
  if (service_.store_->Knows(request.ns())) return {};
  return {Fail(WireStatus::kStaleNamespace, "the namespace is not known here"), kLookAgain};
}

Result<fabric::StagedBytes> DataSession::Staged(const wire::StagedValue& value) {
  if (service_.shm_ == nullptr) return fabric::Session::Staged(value);
  return service_.shm_->Staged(value);
}

WireStatus DataSession::Get(const FrameHeader& request, std::string_view key, Answer* answer) {
  ObjectPin pin =
      service_.store_->Get(request.ns(), key, (request.flags & wire::kFlagNoTouch) == 0);
  if (!pin) return WireStatus::kMiss;
  answer->checksum = pin.checksum();
  answer->payload.push_back(pin.value());
  service_.metrics_->OnRead(pin.value().size());
  pins_.push_back(std::move(pin));
  return WireStatus::kOk;
}

WireStatus DataSession::GetRange(const FrameHeader& request, std::string_view key, ConstBytes body,
                                 Answer* answer) {
  const auto range = wire::ReadRaw<wire::RangeBody>(body);
  ObjectPin pin =
      service_.store_->Get(request.ns(), key, (request.flags & wire::kFlagNoTouch) == 0);
  if (!pin) return WireStatus::kMiss;
  const uint64_t size = pin.value().size();
  if (range.offset > size || range.length > size - range.offset) {
    return Fail(WireStatus::kOutOfRange, fmt::format("range {}+{} of a value of {} bytes",
                                                     range.offset, range.length, size));
  }
  if (!RangeChecksum(pin, range, &answer->checksum)) {
    (void)service_.store_->Remove(request.ns(), key);  // a Put of it must store it anew
    return Fail(WireStatus::kChecksumMismatch, "the stored value is damaged");
  }
  answer->payload.push_back(pin.value().subspan(range.offset, range.length));
  service_.metrics_->OnRead(range.length);
  pins_.push_back(std::move(pin));
  return WireStatus::kOk;
}

// The checksum of a range, cut at piece boundaries: stored sums where whole pieces are covered. The
// pieces at the edges are checksummed anew, after the whole piece has been verified. False: an edge
// piece is damaged. Cost: at most two pieces.
bool DataSession::RangeChecksum(const ObjectPin& pin, wire::RangeBody range, uint64_t* checksum) {
  const ConstBytes value = pin.value();
  const std::span<const uint64_t> sums = pin.piece_sums();
  if (range.length == 0) {
    *checksum = Checksum({});
    return true;
  }
  Hash64Stream combined;
  uint64_t count = 0;
  uint64_t sum = 0;
  const uint64_t end = range.offset + range.length;
  for (uint64_t at = range.offset; at < end; ++count) {
    const uint64_t piece = at / kPieceBytes;
    const ConstBytes whole = value.subspan(
        piece * kPieceBytes, std::min<uint64_t>(kPieceBytes, value.size() - piece * kPieceBytes));
    const uint64_t stop = std::min<uint64_t>(end, piece * kPieceBytes + whole.size());
    if (count == 1) combined.Update(wire::RawBytes(sum));
    sum = sums[piece];
    if (stop - at != whole.size()) {
      if (Hash64(whole) != sum) return false;
      sum = Hash64(value.subspan(at, stop - at));
    }
    if (count > 0) combined.Update(wire::RawBytes(sum));
    at = stop;
  }
  *checksum = count == 1 ? sum : combined.Digest();
  return true;
}

WireStatus DataSession::Exists(const FrameHeader& request, std::string_view key, Answer* answer) {
  const auto info =
      service_.store_->Find(request.ns(), key, (request.flags & wire::kFlagNoTouch) == 0);
  if (!info) return WireStatus::kMiss;
  answer->checksum = info->value_bytes;  // header.object_bytes
  return WireStatus::kOk;
}

WireStatus DataSession::Remove(const FrameHeader& request, std::string_view key) {
  return service_.store_->Remove(request.ns(), key) ? WireStatus::kOk : WireStatus::kMiss;
}

Outcome DataSession::HandleMulti(const FrameHeader& request, ConstBytes body, Answer* answer) {
  const bool write = request.op == Op::kMultiRemove;
  uint64_t room = kAnswerBytesMax;
  answer->body.resize(request.item_count * sizeof(ItemResult));
  std::byte* out = answer->body.data();
  for (ItemReader items(request, body); !items.done(); out += sizeof(ItemResult)) {
    const auto [head, key] = items.Next();
    const Outcome checked = Check(request, SlotId(head.slot), write);
    // A view or namespace on its way concerns the whole frame, and nothing of it has been done yet.
    if (checked.wait > Duration::zero() && out == answer->body.data()) {
      answer->body.clear();
      return checked;
    }
    ItemResult result;
    result.status = checked.status;
    if (checked.status == WireStatus::kOk) HandleItem(request, key, &room, &result, answer);
    service_.metrics_->OnAnswer(request.op, result.status);
    std::memcpy(out, &result, sizeof(result));
  }
  return {};
}

void DataSession::HandleItem(const FrameHeader& request, std::string_view key, uint64_t* room,
                             ItemResult* result, Answer* answer) {
  const bool touch = (request.flags & wire::kFlagNoTouch) == 0;
  if (request.op == Op::kMultiRemove) {
    result->status = Remove(request, key);
    return;
  }
  if (request.op == Op::kMultiExists) {
    const auto info = service_.store_->Find(request.ns(), key, touch);
    result->status = info ? WireStatus::kOk : WireStatus::kMiss;
    result->value_bytes = info ? info->value_bytes : 0;
    return;
  }
  ObjectPin pin = service_.store_->Get(request.ns(), key, touch);
  if (!pin) {
    result->status = WireStatus::kMiss;
    return;
  }
  const uint64_t bytes = pin.value().size();
  if (bytes > *room && !pins_.empty()) {
    result->status = WireStatus::kBatchFull;
    return;
  }
  *room -= std::min(*room, bytes);
  result->value_bytes = bytes;
  result->checksum = pin.checksum();
  if (bytes > 0) answer->payload.push_back(pin.value());
  service_.metrics_->OnRead(bytes);
  pins_.push_back(std::move(pin));
}

Outcome DataSession::BeginPut(const PutRequest& put, PutTarget* target) {
  text_.clear();
  put_op_ = put.header->op;
  put_bytes_ = put.value_bytes;
  put_slot_ = put.slot;
  overwrite_ = (put.header->flags & wire::kFlagOverwrite) != 0;
  Outcome outcome = Check(*put.header, put.slot, true);
  if (outcome.status == WireStatus::kOk && (put.header->flags & wire::kFlagDurableSsd) != 0) {
    outcome.status =
        Fail(WireStatus::kUnimplemented, "this server has no SSD tier: put with durability dram");
  }
  if (outcome.status == WireStatus::kOk) outcome = ReserveFor(put, target);
  if (outcome.status != WireStatus::kOk && outcome.wait == Duration::zero()) {
    service_.metrics_->OnAnswer(put_op_, outcome.status);
  }
  return outcome;
}

Outcome DataSession::ReserveFor(const PutRequest& put, PutTarget* target) {
  compare_only_ = false;
  if (!overwrite_) {
    if (const auto info = service_.store_->Find(put.header->ns(), put.key, true)) {
      existing_ = *info;
      compare_only_ = true;
      target->discard = true;
      return {};
    }
  }
  auto reservation = service_.store_->Reserve(put.header->ns(), put.slot, put.key, put.value_bytes);
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
  } else if (compare_only_) {
    const bool same = existing_.value_bytes == put_bytes_ && existing_.checksum == checksum;
    status =
        same ? WireStatus::kOk
             : Fail(WireStatus::kAlreadyExists,
                    fmt::format("the key holds another value of {} bytes: overwrite to replace it",
                                existing_.value_bytes));
    if (same) service_.metrics_->OnDeduplicated(put_bytes_);
  } else {
    bool stored = false;
    const Status published =
        service_.store_->Publish(std::move(reservation), checksum, overwrite_, &stored);
    if (published.ok()) {
      stored ? service_.metrics_->OnStored(put_bytes_)
             : service_.metrics_->OnDeduplicated(put_bytes_);
    } else {
      status = Fail(published.code() == StatusCode::kAlreadyExists ? WireStatus::kAlreadyExists
                                                                   : WireStatus::kWrongOwner,
                    std::string(Message(published)));
    }
  }
  service_.metrics_->OnAnswer(put_op_, status);
  return status;
}

}  // namespace ems::server
