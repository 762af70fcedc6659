#include "mp_server/put_session.h"

#include <utility>

#include "common/check.h"

namespace ems::server {

using fabric::Outcome;
using fabric::PutRequest;
using fabric::PutTarget;
using wire::WireStatus;

namespace {

constexpr uint32_t kRetryRoomMs = 20;
// How soon to look again whether others' values have come; many may be looking.
constexpr Duration kLookForFilling = std::chrono::milliseconds(10);

// Of a value that was not published.
WireStatus StatusOfRefused(StatusCode code) {
  switch (code) {
    case StatusCode::kAlreadyExists:
      return WireStatus::kAlreadyExists;
    case StatusCode::kDeadlineExceeded:
      return WireStatus::kDeadline;
    default:
      return WireStatus::kWrongOwner;
  }
}

}  // namespace

Outcome PutSession::Begin(const PutRequest& request, PutTarget* target) {
  EMS_CHECK(!put_, "a Put begins before the one before has ended");
  refusal_->text.clear();
  const wire::FrameHeader& header = *request.header;
  Put put{.op = header.op,
          .slot = request.slot,
          .index = request.index,
          .bytes = request.value_bytes,
          .overwrite = (header.flags & wire::kFlagOverwrite) != 0,
          .durable = (header.flags & wire::kFlagDurableSsd) != 0,
          .copy = RequestCheck::IsOfCopy(header),
          .hot = RequestCheck::IsOfCopy(header) && (header.flags & wire::kFlagHot) != 0};
  Outcome outcome = check_->Open(header, &objects_, refusal_);
  if (outcome.status == WireStatus::kOk) outcome.status = CheckWrite(put);
  if (outcome.status == WireStatus::kOk && put.copy &&
      !objects_.IsWorthCopy(request.key, put.bytes, std::chrono::milliseconds(request.idle_ms))) {
    outcome.status = refusal_->Say(WireStatus::kQuotaExceeded, "colder than what is here");
  }
  if (outcome.status == WireStatus::kOk && put.hot &&
      (guests_ == nullptr || !guests_->Admit(header.ns(), put.slot, request.key))) {
    outcome.status = refusal_->Say(WireStatus::kQuotaExceeded, "no more hot objects are taken");
  }
  if (outcome.status == WireStatus::kOk && put.overwrite && objects_.immutable()) {
    outcome.status =
        refusal_->Say(WireStatus::kInvalid, "the namespace is immutable: put without overwrite");
  }
  if (outcome.status == WireStatus::kOk) outcome.status = CheckDurable(request.key, put);
  if (outcome.status == WireStatus::kOk) outcome = Reserve(request.key, &put, target);
  if (outcome.status == WireStatus::kOk) {
    put.room.set_until(wire::WantedUntil(header, Clock::System().Now()));
    put_ = std::move(put);
  } else if (outcome.wait == Duration::zero()) {
    metrics_->OnAnswer(header.op, outcome.status);
  }
  return outcome;
}

WireStatus PutSession::CheckWrite(const Put& put) {
  if (put.hot) return check_->WriteHot(objects_, put.slot, refusal_);
  return put.copy ? check_->WriteCopy(objects_, put.slot, refusal_)
                  : check_->Write(put.slot, refusal_);
}

WireStatus PutSession::CheckDurable(std::string_view key, const Put& put) {
  if (!put.durable) return WireStatus::kOk;
  if (!store_->has_ssd()) {
    return refusal_->Say(WireStatus::kUnimplemented,
                         "this server has no SSD tier: put with durability dram");
  }
  if (store_->ssd_offline()) {
    return refusal_->Say(WireStatus::kUnimplemented,
                         "this server's SSD tier is offline, its log says why: put with durability "
                         "dram");
  }
  if (!store_->FitsSsd(put.bytes)) {
    return refusal_->Say(WireStatus::kTooLarge,
                         "larger than the SSD tier takes: see ssd.region_bytes and "
                         "ssd.dirty_bytes_max, or put with durability dram");
  }
  if (!objects_.TooSmallForSsd(key, put.bytes, put.overwrite)) return WireStatus::kOk;
  return refusal_->Say(WireStatus::kQuotaExceeded,
                       "too small for what is left of the SSD tier's index: see "
                       "ssd.index_memory_bytes, or put with durability dram");
}

Outcome PutSession::Reserve(std::string_view key, Put* put, PutTarget* target) {
  if (!put->overwrite) {
    if (const auto found = objects_.FindForPut(key)) {
      put->existing = found->info;
      if (found->in_dram) {
        key_ = key;
        target->discard = true;
        return {};
      }
      // On the SSD alone: the sender has it in hand, so it comes back to DRAM without a read.
    }
  }
  Result<Hold> filling = objects_.AdmitPut(put->bytes);
  if (!filling.ok()) {
    Outcome refused = RefuseRoom(filling.status());
    if (refused.status != WireStatus::kRetryLater) return refused;
    if (!std::exchange(held_back_, true)) metrics_->OnPutHeldBack();
    refused.wait = kLookForFilling;
    return refused;
  }
  Result<Reservation> room = objects_.Reserve(put->slot, key, put->bytes);
  if (!room.ok()) return RefuseRoom(room.status());
  put->filling = *std::move(filling);
  put->room = *std::move(room);
  target->value = put->room.value();
  target->piece_sums = put->room.piece_sums();
  EMS_CHECK(target->value.size() == put->bytes, "room for {} bytes, {} are wanted",
            target->value.size(), put->bytes);
  return {};
}

Outcome PutSession::RefuseRoom(const Status& why) {
  std::string text(Message(why));
  switch (why.code()) {
    case StatusCode::kResourceExhausted:
      return {refusal_->Say(WireStatus::kRetryLater, std::move(text), kRetryRoomMs), kLookAgain};
    case StatusCode::kOutOfRange:
      return {refusal_->Say(WireStatus::kTooLarge, std::move(text))};
    case StatusCode::kFailedPrecondition:
      return {refusal_->Say(WireStatus::kStaleNamespace, std::move(text))};
    default:
      return {refusal_->Say(WireStatus::kInternal, std::move(text))};
  }
}

WireStatus PutSession::End(uint64_t checksum, uint64_t expected) {
  EMS_CHECK(put_.has_value(), "a Put ends that has not begun");
  Put put = *std::exchange(put_, std::nullopt);
  const wire::Op op = put.op;
  // The bytes may have taken long: is this server still the one to take them? It has to be so when
  // the value becomes visible, too, however long this thread stands still before.
  const TimePoint now = Clock::System().Now();
  if (!put.copy) put.room.set_until(now + check_->LeaseLeft());
  WireStatus status = CheckWrite(put);
  if (status != WireStatus::kOk) {
    refusal_->text += ", since the transfer began";
  } else if (checksum != expected) {
    status = refusal_->Say(WireStatus::kChecksumMismatch,
                           "the value does not match the sender's checksum");
  } else if (put.existing &&
             (put.existing->value_bytes != put.bytes || put.existing->checksum != checksum)) {
    status = refusal_->Say(
        WireStatus::kAlreadyExists,
        fmt::format("the key holds another value of {} bytes: overwrite to replace it",
                    put.existing->value_bytes));
  } else {
    status = Store(std::move(put), checksum);
  }
  metrics_->OnAnswer(op, status);
  return status;
}

WireStatus PutSession::Store(Put put, uint64_t checksum) {
  ssd::TicketPtr ticket;
  bool stored = false;
  if (put.copy && !check_->Owns(put.slot)) {
    const Status published =
        put.room ? TieredNamespace::PublishCopy(std::move(put.room), checksum, &stored)
                 : OkStatus();
    if (!published.ok())
      return refusal_->Say(StatusOfRefused(published.code()), std::string(Message(published)));
  } else if (!put.room) {
    if (!objects_.Confirm(key_, put.durable, waker_, &ticket))
      return refusal_->Say(WireStatus::kRetryLater, "the key was removed meanwhile", kRetryRoomMs);
  } else {
    const Status published = store_->Publish(std::move(put.room), checksum, put.overwrite,
                                             put.durable, waker_, &stored, &ticket);
    if (!published.ok()) {
      return refusal_->Say(StatusOfRefused(published.code()), std::string(Message(published)));
    }
  }
  if (ticket != nullptr) tickets_.emplace_back(put.index, std::move(ticket));
  stored && !put.existing ? metrics_->OnStored(put.bytes) : metrics_->OnDeduplicated(put.bytes);
  return WireStatus::kOk;
}

// They are settled in their order, in which they are written: those behind the first one that waits
// count as waiting.
Outcome PutSession::Await(std::span<WireStatus> statuses) {
  if (!std::exchange(awaited_, true)) {
    for (const auto& [index, ticket] : tickets_) {
      EMS_CHECK(index < statuses.size(), "Put {} of {}", index, statuses.size());
      statuses[index] = WireStatus::kNotDurable;
    }
  }
  for (auto& [index, ticket] : tickets_) {
    if (ticket == nullptr) continue;
    const ssd::Ticket::State state = ticket->state();
    if (state == ssd::Ticket::State::kWaiting) {
      refusal_->retry_ms = kRetryDurableMs;
      return {WireStatus::kNotDurable, kWakeSoon, kDurablePatience};
    }
    ticket = nullptr;
    if (state == ssd::Ticket::State::kDone) {
      statuses[index] = WireStatus::kOk;
    } else {
      refusal_->Say(WireStatus::kNotDurable, "the SSD tier is " + store_->SsdState(),
                    kRetryDurableMs);
    }
  }
  return {};
}

void PutSession::Sent() {
  tickets_.clear();
  awaited_ = held_back_ = false;
  objects_.Rest();
}

}  // namespace ems::server
