#include "mp_server/kept_answer.h"

#include <span>

#include "mp_server/store/kept_scan.h"
#include "proto/kept_page.h"

namespace ems::server {

using fabric::Outcome;
using wire::KeptHead;
using wire::KeptState;

namespace {

constexpr uint32_t kRetryPinsMs = 20;
constexpr size_t kTurnKeys = 256;  // before other connections have their turn

}  // namespace

Outcome KeptAnswer::Handle(const wire::FrameHeader& request, std::string_view key, ConstBytes body,
                           fabric::Answer* answer) {
  if (items_) return HandleMany(request, body, answer);
  if (request.op == wire::Op::kScanKept) {
    // Of all namespaces: it names none.
    const Outcome reached = check_->Reached(request, refusal_);
    if (reached.status != wire::WireStatus::kOk) return reached;
    wire::AppendTo(
        ScanKept(check_->dram(), request.slot_id(), wire::ReadRaw<wire::ScanKeptBody>(body)),
        &answer->body);
    return {};
  }
  // Waits for the view of who asks: before it is here, the slot may not have been lost.
  const Outcome opened = check_->Open(request, &objects_, refusal_);
  if (opened.status != wire::WireStatus::kOk) return opened;
  if (request.op == wire::Op::kGetKept) return HandleOne(request, key, body, answer);
  items_.emplace(request, body);
  return HandleMany(request, body, answer);
}

Outcome KeptAnswer::HandleOne(const wire::FrameHeader& request, std::string_view key,
                              ConstBytes body, fabric::Answer* answer) {
  const auto asked = wire::ReadRaw<wire::KeptBody>(body);
  const Era era{asked.history, asked.since};
  KeptHead head;
  pin_ = objects_.GetKept(request.slot_id(), key, era);
  if (pin_ && !pin_.value().empty()) {
    hold_ = objects_.HoldForAnswer();
    if (!hold_.Grow(pin_.value().size())) {
      pin_ = {};
      return {refusal_->Say(wire::WireStatus::kRetryLater, "answers pin too much", kRetryPinsMs)};
    }
    head.state = KeptState::kValue;
    head.checksum = wire::FoldChecksum(pin_.checksum(), request);
    answer->payload.push_back(pin_.value());
  } else if (const auto before = objects_.Untouched(request.slot_id(), key, era); !pin_ && before) {
    head = {
        .state = KeptState::kUntouched, .node = before->node.value(), .since = before->era.since};
  }
  const ConstBytes raw = wire::RawBytes(head);
  answer->body.assign(raw.begin(), raw.end());
  return {};
}

Outcome KeptAnswer::HandleMany(const wire::FrameHeader& request, ConstBytes body,
                               fabric::Answer* answer) {
  for (size_t turn = 0; turn < kTurnKeys && !items_->done(); ++turn) {
    const auto [item, key] = items_->Next();
    const auto asked = wire::KeptOf(request, body, static_cast<uint32_t>(results_.size()));
    const Era era{asked.history, asked.since};
    const SlotId slot(item.slot);
    wire::ItemResult& result = results_.emplace_back();
    result.status = wire::WireStatus::kMiss;
    if (const ObjectPin pin = objects_.GetKept(slot, key, era); pin) {
      if (pin.value().empty()) continue;
      result.status = wire::WireStatus::kOk;
      result.tier = wire::ItemTier::kDram;
      result.value_bytes = pin.value().size();
    } else if (const auto before = objects_.Untouched(slot, key, era)) {
      result.whole_bytes = before->node.value();
      result.checksum = before->era.since;
    }
  }
  if (!items_->done()) return {.again = true};
  const ConstBytes raw = std::as_bytes(std::span(results_));
  answer->body.assign(raw.begin(), raw.end());
  return {};
}

void KeptAnswer::Sent() {
  pin_ = {};
  hold_ = {};
  items_.reset();
  std::vector<wire::ItemResult>().swap(results_);
  objects_.Rest();
}

}  // namespace ems::server
