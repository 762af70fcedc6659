#include "mp_server/key_scan.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace ems::server {

using fabric::Answer;
using fabric::Outcome;
using wire::ScanBody;
using wire::ScanCursor;
using wire::WireStatus;

namespace {

constexpr Duration kReadPatience = std::chrono::seconds(2);
constexpr uint32_t kRetrySsdMs = 100;
// Parts of a cursor's first word.
constexpr int kShardShift = 32;
constexpr uint64_t kOnSsdBit = uint64_t{1} << 63;

}  // namespace

// boot · shard · tier, then the bucket and of how many, then when the shard was begun.
ScanCursor KeyScan::CursorOf(const KeyPlace& place) const {
  return {boot_ | uint64_t{place.shard} << kShardShift | (place.on_ssd ? kOnSsdBit : 0),
          place.bucket | uint64_t{place.buckets} << 32, static_cast<uint64_t>(place.began_ns)};
}

std::optional<KeyPlace> KeyScan::PlaceOf(const ScanCursor& cursor) const {
  if (cursor == wire::kScanBegin) return KeyPlace();
  if (static_cast<uint32_t>(cursor[0]) != boot_) return std::nullopt;
  return KeyPlace{.on_ssd = (cursor[0] & kOnSsdBit) != 0,
                  .shard = static_cast<uint32_t>((cursor[0] & ~kOnSsdBit) >> kShardShift),
                  .bucket = static_cast<uint32_t>(cursor[1]),
                  .buckets = static_cast<uint32_t>(cursor[1] >> 32),
                  .began_ns = static_cast<int64_t>(cursor[2])};
}

Outcome KeyScan::Begin(const wire::FrameHeader& request, ConstBytes body) {
  const Outcome opened = check_->Open(request, &objects_, refusal_);
  if (opened.wait > Duration::zero() || opened.status != WireStatus::kOk) return opened;
  const auto scan = wire::ReadRaw<ScanBody>(body.first(sizeof(ScanBody)));
  if (scan.items_max == 0 || scan.items_max > wire::kScanItemsMax)
    return {refusal_->Say(WireStatus::kInvalid, fmt::format("{} keys asked for: 1 to {} a page",
                                                            scan.items_max, wire::kScanItemsMax))};
  const auto place = PlaceOf(scan.cursor);
  if (!place)
    return {refusal_->Say(WireStatus::kInvalid,
                          "the cursor is not of this server, or it has been restarted since: begin "
                          "the scan again")};
  walk_.emplace(
      &objects_, *place,
      KeyWalk::Options{
          .prefix = std::string(AsText(body.subspan(sizeof(ScanBody)))),
          .keys_max = scan.items_max,
          .bytes_max = std::clamp<uint64_t>(scan.bytes_max, 1, wire::kScanAnswerBytesMax / 2),
          .shown =
              [this](SlotId slot) {
                Refusal ignored;
                return check_->Read(slot, &ignored) == WireStatus::kOk;
              },
      });
  return {};
}

Outcome KeyScan::Handle(const wire::FrameHeader& request, ConstBytes body, Answer* answer) {
  if (!walk_) {
    const Outcome begun = Begin(request, body);
    if (!walk_) return begun;
  }
  switch (walk_->GoOn(waker_)) {
    case KeyWalk::Step::kMore:
      return {.again = true};
    case KeyWalk::Step::kComing:
      return {SaySlow(), kWakeSoon, kReadPatience};
    case KeyWalk::Step::kBusy:
      return {SaySlow(), kLookAgain, kReadPatience};
    case KeyWalk::Step::kDone:
      break;
  }
  refusal_->Clear();
  wire::KeyPage page{.keys = std::move(walk_->found()), .next = std::nullopt};
  if (!walk_->ended()) page.next = CursorOf(walk_->place());
  wire::AppendTo(page, &answer->body);
  return {};
}

WireStatus KeyScan::SaySlow() {
  return refusal_->Say(WireStatus::kRetryLater, "the SSD tier is slow", kRetrySsdMs);
}

void KeyScan::Sent() {
  walk_.reset();
  objects_.Rest();
}

}  // namespace ems::server
