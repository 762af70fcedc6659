#include "tests/fault/chaos/key_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace ems::testing {
namespace {

std::string During(TimePoint origin, TimePoint low, TimePoint high, const std::string& by) {
  using Seconds = std::chrono::duration<double>;
  return fmt::format("from {:.3f} to {:.3f} s ({})", Seconds(low - origin).count(),
                     Seconds(high - origin).count(), by);
}

}  // namespace

void KeyRecord::BeginPut(uint64_t put_id, TimePoint now) {
  values_[put_id] = {.begun = now, .shown = TimePoint::max(), .last = now, .by = {}};
}

void KeyRecord::EndPut(uint64_t put_id, const TimedCall& call, PutOutcome outcome) {
  Value& value = values_.at(put_id);
  value.acknowledged = outcome == PutOutcome::kDone;
  value.refused = outcome == PutOutcome::kRefused;
  if (!value.refused) value.shown = std::min(value.shown, call.ended);
  if (value.by.empty()) value.by = call.by;
}

void KeyRecord::OnRemove(const TimedCall& call) { removes_.push_back(call); }

void KeyRecord::OnRead(uint64_t put_id, const TimedCall& call) {
  const auto known = values_.find(put_id);
  if (known == values_.end()) {
    strange_.emplace_back(put_id, call);
    return;
  }
  Value& value = known->second;
  value.read = true;
  value.shown = std::min(value.shown, call.ended);
  if (call.begun <= value.last) return;
  value.last = call.begun;
  value.by = call.by;
}

std::vector<KeyRecord::Span> KeyRecord::Spans(TimePoint origin) const {
  std::vector<Span> spans;
  for (const auto& [id, value] : values_) {
    if (!value.acknowledged && !value.read) continue;  // it need not have been there
    const bool stayed = value.shown < value.last;
    const TimePoint low = std::min(value.shown, value.last);
    const TimePoint high = std::max(value.shown, value.last);
    spans.push_back(
        {low, high, stayed, value.acknowledged,
         fmt::format("put {} {} {}", id, stayed ? "was there" : "was made at some moment",
                     During(origin, low, high, value.by))});
  }
  for (const TimedCall& call : removes_) {
    spans.push_back(
        {call.begun, call.ended, false, true,
         "a Remove was made at some moment " + During(origin, call.begun, call.ended, call.by)});
  }
  // What begins when another value's time begins was there before it.
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.low, a.stayed) < std::tie(b.low, b.stayed);
  });
  return spans;
}

std::vector<std::string> KeyRecord::Check(TimePoint origin) {
  std::vector<std::string> unexplained;
  for (const auto& [id, call] : std::exchange(strange_, {})) {
    unexplained.push_back(
        fmt::format("put {} was read {}: nobody made it, or it was replaced long before", id,
                    During(origin, call.begun, call.ended, call.by)));
  }
  for (const auto& [id, value] : values_) {
    if (value.refused && value.read)
      unexplained.push_back(fmt::format("put {} was refused and is read ({})", id, value.by));
  }
  const std::vector<Span> spans = Spans(origin);
  const Span* there = nullptr;  // the value that stayed longest of those so far
  for (const Span& span : spans) {
    const bool collides =
        there != nullptr && span.acknowledged && (span.stayed ? span.low : span.high) < there->high;
    if (collides) unexplained.push_back(there->text + ", but " + span.text);
    if (span.stayed && (there == nullptr || span.high > there->high)) there = &span;
  }
  Forget();
  return unexplained;
}

// A value that nobody has seen since a later change began is read no more; a Remove matters to
// values that were there before it.
void KeyRecord::Forget() {
  TimePoint change = TimePoint::min();  // the last begin of one that was acknowledged
  for (const TimedCall& call : removes_) change = std::max(change, call.begun);
  for (const auto& [id, value] : values_)
    if (value.acknowledged) change = std::max(change, value.begun);
  std::erase_if(values_, [&](const auto& one) {
    return one.second.refused || std::max(one.second.shown, one.second.last) < change;
  });
  std::erase_if(removes_, [&](const TimedCall& call) {
    return std::none_of(values_.begin(), values_.end(),
                        [&](const auto& one) { return one.second.shown < call.begun; });
  });
}

}  // namespace ems::testing
