#include "mp_sdk/internal/batch_planner.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"

namespace ems::internal {
namespace {

using wire::FrameHeader;
using wire::ItemHead;
using wire::ItemResult;
using wire::Op;
using wire::WireStatus;

Op MultiForm(Op op) {
  switch (op) {
    case Op::kPut:
      return Op::kMultiPut;
    case Op::kPutStaged:
      return Op::kMultiPutStaged;
    case Op::kGet:
      return Op::kMultiGet;
    case Op::kGetRange:
      return Op::kMultiGetRange;
    case Op::kExists:
      return Op::kMultiExists;
    default:
      EMS_CHECK(op == Op::kRemove, "{} has no Multi form", wire::OpName(op));
      return Op::kMultiRemove;
  }
}

void Append(ConstBytes bytes, std::vector<std::byte>* to) {
  to->insert(to->end(), bytes.begin(), bytes.end());
}

// What a newer server may say beyond that is not known here.
Tier TierOf(wire::ItemTier tier) {
  if (tier == wire::ItemTier::kDram) return Tier::kDram;
  return tier == wire::ItemTier::kSsd ? Tier::kSsd : Tier::kUnknown;
}

// False: there is not so much memory, and `to` is empty.
bool TryResize(std::string* to, uint64_t bytes) {
  try {
    to->resize(bytes);
    return true;
  } catch (const std::bad_alloc&) {
    to->clear();
    return false;
  }
}

bool IsOfHot(const BatchItem* item) { return item->hot_at != kNoNode; }

bool StaysOpen(WireStatus status) {
  return status == WireStatus::kWrongOwner || status == WireStatus::kStaleNamespace ||
         status == WireStatus::kRetryLater || status == WireStatus::kBatchFull;
}

}  // namespace

bool Frame::TryAdd(BatchItem* item) {
  const uint64_t bytes =
      batch_->op == Op::kPut ? item->value.size_bytes() : item->into.size_bytes();
  if (!items_.empty() &&
      (items_.size() == wire::kBatchItemsMax || value_bytes_ + bytes > wire::kBatchBytesMax ||
       IsStaged(*item) != staged_)) {
    return false;
  }
  staged_ = IsStaged(*item);
  items_.push_back(item);
  value_bytes_ += bytes;
  return true;
}

bool Frame::DropLarger(uint64_t value_bytes_max) {
  if (batch_->op != Op::kPut) return true;
  std::erase_if(items_, [&](BatchItem* item) {
    const uint64_t bytes = item->value.size_bytes();
    if (bytes <= value_bytes_max) return false;
    batch_->Finish(item, Error(StatusCode::kOutOfRange, "value of {} bytes: the server takes {}",
                               bytes, value_bytes_max));
    return true;
  });
  return !items_.empty();
}

void Frame::Encode(ViewVersion view, fabric::RpcRequest* request) {
  EMS_CHECK(!items_.empty() && items_.size() <= wire::kBatchItemsMax, "a frame of {} items",
            items_.size());
  EMS_CHECK(!staged_ || staging_.has_value(), "a staged frame without a session");
  request_ = request;
  FrameHeader& header = request->header;
  const Op op = staged_ ? Op::kPutStaged : batch_->op;
  header.op = multi() ? MultiForm(op) : op;
  const bool check = brings_values() && std::ranges::any_of(items_, &BatchItem::damaged);
  const bool copy = std::ranges::any_of(items_, [&](const auto* item) {
    return IsOfHot(item) || (batch_->copies > 0 && item->copy > 0);
  });
  header.flags = static_cast<uint16_t>(batch_->flags | (check ? wire::kFlagCheck : 0) |
                                       (copy ? wire::kFlagCopy : 0));
  header.deadline_ms = static_cast<uint32_t>(std::max(batch_->deadline.RemainingMs(), 1));
  header.namespace_id = batch_->ns.id.value();
  header.namespace_generation = batch_->ns.generation;
  header.view = view.packed();
  if (multi()) {
    header.item_count = static_cast<uint16_t>(items_.size());
    for (const BatchItem* item : items_) {
      ItemHead head;
      head.slot = item->slot.value();
      head.key_bytes = static_cast<uint16_t>(item->key.size());
      if (batch_->op == Op::kPut) head.value_bytes = item->value.size_bytes();
      Append(wire::RawBytes(head), &request->head);
    }
  } else {
    header.slot = items_[0]->slot.value();
    request->key_bytes = static_cast<uint16_t>(items_[0]->key.size());
  }
  for (const BatchItem* item : items_) Append(AsBytes(item->key), &request->head);
  for (const BatchItem* item : items_) {
    EMS_CHECK(item->open, "an item is sent that has its result");
    if (batch_->op == Op::kGetRange) {
      const wire::RangeBody range{.offset = item->offset, .length = item->into.size_bytes()};
      Append(wire::RawBytes(range), &request->head);
    } else if (staged_) {
      const wire::StagedValue value{.session = staging_->session,
                                    .secret = staging_->secret,
                                    .offset = *item->staged_offset,
                                    .bytes = item->value.size_bytes(),
                                    .progress_at = item->staged_progress};
      Append(wire::RawBytes(value), &request->head);
    } else if (batch_->op == Op::kPut) {
      request->values.push_back(item->value.parts());
    }
  }
}

void Frame::Fail(const Status& status) {
  for (BatchItem* item : items_) {
    if (!item->open) continue;
    if (IsOfHot(item)) {
      LeaveHot(item);
      continue;
    }
    if (item->copy < batch_->copies && status.code() != StatusCode::kDeadlineExceeded) {
      if (item->copy++ == 0) item->status = status;
      continue;
    }
    // Out of time: what the server said before, if it did, is the better reason.
    const bool waited = status.code() == StatusCode::kDeadlineExceeded && !item->status.ok();
    batch_->Finish(item, waited ? std::exchange(item->status, OkStatus()) : status);
  }
}

void Frame::FinishUnknown(uint64_t sent_bytes, const Status& why) {
  EMS_CHECK(request_ != nullptr, "a frame that was never sent");
  if (batch_->MayRepeat()) return;
  const bool late = why.code() == StatusCode::kDeadlineExceeded;
  // An item is carried out when its value is there, or, of a frame without values, when all is.
  uint64_t end = wire::kHeaderBytes + request_->head.size();
  for (BatchItem* item : items_) {
    if (!request_->values.empty()) end += item->value.size_bytes() + wire::kTrailerBytes;
    if (sent_bytes < end || !item->open) continue;
    batch_->Finish(item, Error(late ? StatusCode::kDeadlineExceeded : StatusCode::kAborted,
                               "outcome unknown: {}", Message(why)));
  }
}

void Frame::LeaveHot(BatchItem* item) { item->hot_tried = true; }

TimePoint Frame::GiveUpAt() const {
  if (!is_of_hot_copies()) return TimePoint::max();
  return batch_->deadline.at() - batch_->deadline.Remaining() / 2;
}

void Frame::OnDamaged(BatchItem* item, Status status) {
  if (IsOfHot(item)) return LeaveHot(item);
  if (item->damaged) return batch_->Finish(item, std::move(status));
  item->damaged = true;
  item->status = std::move(status);  // what the caller sees if time runs out now
}

void Frame::Settle(BatchItem* item, WireStatus status, std::string_view text) {
  if (IsOfHot(item) && status != WireStatus::kOk && status != WireStatus::kBatchFull)
    return LeaveHot(item);
  if (staged_ && (status == WireStatus::kInvalid || status == WireStatus::kUnimplemented)) {
    staging_refused_ = true;
    item->staged_offset.reset();
    return;
  }
  if (status == WireStatus::kNotDurable) return OnNotDurable(item, text);
  if (item->copy > 0 && (status == WireStatus::kCopyMiss || status == WireStatus::kFenced ||
                         (StaysOpen(status) && status != WireStatus::kBatchFull))) {
    ++item->copy;  // that one has none of it, or cannot say
    return;
  }
  if (status == WireStatus::kCopyMiss) status = WireStatus::kWrongOwner;  // it was the owner's
  if (StaysOpen(status)) {
    if (unsettled_ != WireStatus::kWrongOwner) unsettled_ = status;
    // What the caller sees if time runs out now. Only a Put waits for room; who reads or removes
    // waits for a server that is not able to answer yet.
    const bool no_room = status != WireStatus::kRetryLater || batch_->op == Op::kPut;
    item->status = no_room ? wire::ToStatus(status, text)
                           : Error(StatusCode::kUnavailable, "the server asked to wait: {}", text);
    return;
  }
  if (status == WireStatus::kChecksumMismatch) return OnDamaged(item, wire::ToStatus(status, text));
  batch_->Finish(item, wire::ToStatus(status, text));
}

// It is done where others see it, so that they may have changed it again before a repeat arrives.
void Frame::OnNotDurable(BatchItem* item, std::string_view text) {
  Status status =
      Error(StatusCode::kAborted, "{}: {}",
            batch_->op == Op::kRemove
                ? "gone from memory, but not from the SSD in time: it may be back after a restart"
                : "stored in memory, but not on the SSD in time: a restart may lose it",
            text.empty() ? "the SSD tier is slow" : text);
  if (!batch_->MayRepeat()) return batch_->Finish(item, std::move(status));
  if (unsettled_ != WireStatus::kWrongOwner) unsettled_ = WireStatus::kRetryLater;
  item->status = std::move(status);
}

void Frame::SetWholeStatus(WireStatus status, std::string_view text) {
  for (BatchItem* item : items_) {
    if (item->open) Settle(item, status, text);
  }
}

MutableBytes Frame::Expected() const {
  const BatchItem& item = *items_[0];
  const bool known = brings_values() && !multi() && item.grow == nullptr && !HasLost();
  return known && !item.into.parts().empty() ? item.into.parts()[0] : MutableBytes();
}

uint64_t Frame::OnHeader(const FrameHeader& header) {
  next_ = 0;
  if (multi()) {
    const uint64_t table_bytes = items_.size() * sizeof(ItemResult);
    values_left_ = header.body_bytes - std::min(header.body_bytes, table_bytes);
    return table_bytes;
  }
  BatchItem* const item = items_[0];
  single_body_bytes_ = header.body_bytes;
  if (batch_->race != nullptr && brings_values() && !batch_->race->Claim(this)) return 0;
  if (brings_values())
    item->hot_hint = static_cast<uint8_t>(header.flags <= 0xff ? header.flags : 0);
  single_checksum_ = header.checksum;
  single_whole_bytes_ = header.whole_bytes;
  switch (batch_->op) {
    case Op::kGet:
    case Op::kGetRange:
      item->value_bytes = header.body_bytes;
      break;
    case Op::kExists:
      item->value_bytes = header.object_bytes;
      [[fallthrough]];
    default:
      Settle(item, WireStatus::kOk, {});
  }
  return 0;
}

Status Frame::OnTable(ConstBytes table) {
  EMS_CHECK(table.size() == items_.size() * sizeof(ItemResult), "a table of {} B for {} items",
            table.size(), items_.size());
  results_.resize(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    results_[i] =
        wire::ReadRaw<ItemResult>(table.subspan(i * sizeof(ItemResult), sizeof(ItemResult)));
    const ItemResult& result = results_[i];
    if (static_cast<uint16_t>(result.status) > wire::kWireStatusMax) {
      return Error(StatusCode::kDataLoss, "item with unknown status {}",
                   static_cast<unsigned>(result.status));
    }
    if (brings_values() && result.status == WireStatus::kOk) {
      if (result.value_bytes > values_left_)
        return Error(StatusCode::kDataLoss, "values of more bytes than the answer has");
      values_left_ -= result.value_bytes;
    }
    items_[i]->value_bytes = result.value_bytes;
    items_[i]->tier = TierOf(result.tier);
    items_[i]->hot_hint = result.copies;
    if (!brings_values() || result.status != WireStatus::kOk) Settle(items_[i], result.status, {});
  }
  return OkStatus();
}

bool Frame::NextValue(Value* value) {
  if (!brings_values()) return false;
  while (multi() && next_ < items_.size() && results_[next_].status != WireStatus::kOk) ++next_;
  if (next_ == items_.size()) return false;
  current_ = next_++;
  BatchItem* const item = items_[current_];
  if (HasLost()) {
    value->bytes = single_body_bytes_;
    return true;
  }
  value->bytes = item->value_bytes;
  value->into = item->into.parts();
  if (item->grow != nullptr) {
    grown_ = {};
    if (TryResize(item->grow, item->value_bytes))
      grown_ = std::as_writable_bytes(std::span(*item->grow));
    value->into = std::span(&grown_, 1);
  }
  if (batch_->op == Op::kGetRange)
    value->first_piece_bytes = kPieceBytes - item->offset % kPieceBytes;
  return true;
}

void Frame::OnValue(uint64_t checksum) {
  EMS_CHECK(current_ < items_.size() && next_ > current_, "a value of no item");
  if (HasLost()) return;
  BatchItem* const item = items_[current_];
  const uint64_t expected =
      wire::FoldChecksum(multi() ? results_[current_].checksum : single_checksum_, request_->header,
                         static_cast<uint32_t>(current_));
  const uint64_t whole_bytes = multi() ? results_[current_].whole_bytes : single_whole_bytes_;
  item->checksum = expected;
  if (checksum != expected) {
    ++mismatches_;
    OnDamaged(item, Error(StatusCode::kDataLoss, "value of {} bytes does not match its checksum",
                          item->value_bytes));
  } else if (item->grow != nullptr && grown_.size() != item->value_bytes) {
    batch_->Finish(item, Error(StatusCode::kResourceExhausted, "no memory for a value of {} bytes",
                               item->value_bytes));
  } else if (item->grow == nullptr && item->into.size_bytes() < item->value_bytes) {
    batch_->Finish(item, Error(StatusCode::kOutOfRange, "value of {} bytes, buffer of {}",
                               item->value_bytes, item->into.size_bytes()));
  } else if (batch_->op == Op::kGetRange && item->into.size_bytes() != item->value_bytes) {
    batch_->Finish(item, Error(StatusCode::kDataLoss, "range of {} bytes, {} asked for",
                               item->value_bytes, item->into.size_bytes()));
  } else if (item->whole_bytes != 0 && item->whole_bytes != whole_bytes) {
    batch_->Finish(item, Error(StatusCode::kOutOfRange, "value of {} bytes, {} expected",
                               whole_bytes, item->whole_bytes));
  } else {
    batch_->Finish(item, OkStatus());
  }
}

std::vector<std::unique_ptr<Frame>> PlanFrames(Batch* batch, const DhtView& view,
                                               LocalServers* locals) {
  std::vector<std::unique_ptr<Frame>> frames;
  for (BatchItem& item : batch->items) {
    if (!item.open) continue;
    EMS_CHECK(item.slot.value() < kSlotCount, "slot {}", item.slot.value());
    const bool hot = item.hot_at != kNoNode;
    if (!hot && item.copy > 0 &&
        item.copy > std::min<size_t>(batch->copies, view.Copies(item.slot).size())) {
      batch->Finish(&item, std::exchange(item.status, OkStatus()));
      continue;
    }
    const NodeId owner = hot             ? item.hot_at
                         : item.copy > 0 ? view.Copies(item.slot)[item.copy - 1]
                                         : view.OwnerId(item.slot);
    if (owner == kNoNode) {
      batch->Finish(&item, Error(StatusCode::kUnavailable, "no server owns slot {} (view {}.{})",
                                 item.slot.value(), view.version().term(), view.version().epoch()));
      continue;
    }
    const auto found = std::ranges::find_if(
        frames, [&](const auto& f) { return f->node() == owner && f->is_of_hot_copies() == hot; });
    if (found != frames.end()) {
      (*found)->TryAdd(&item);  // what it does not take stays open for the next round
      continue;
    }
    const bool puts = locals != nullptr && batch->op == Op::kPut;
    frames.push_back(
        std::make_unique<Frame>(batch, owner, puts ? locals->StagedFor(owner) : std::nullopt));
    frames.back()->TryAdd(&item);
  }
  // One order for all calls: each takes a connection to one server after the other, so that no two
  // calls can hold what the other waits for.
  std::ranges::sort(frames, {}, [](const auto& frame) { return frame->node(); });
  return frames;
}

}  // namespace ems::internal
