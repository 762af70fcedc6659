#include "common/repeat_filter.h"

#include <algorithm>
#include <utility>

namespace ems::log {

void RepeatFilter::Say(Kind* kind, std::vector<LineOut>* out) {
  if (kind->held.repeated == 0) return;
  kind->held.within = kind->last_at - kind->begun_at;
  out->push_back(std::exchange(kind->held, {}));
}

void RepeatFilter::TakeDue(TimePoint now, std::vector<LineOut>* out) {
  if (now < due_at_) return;
  due_at_ = TimePoint::max();
  for (auto at = kinds_.begin(); at != kinds_.end();) {
    Kind& kind = at->second;
    if (now >= kind.begun_at + kWindow) {
      // What was silent for a window is new when it comes again; what was not is still too much.
      if (kind.held.repeated == 0) {
        at = kinds_.erase(at);
        continue;
      }
      Say(&kind, out);
      kind.begun_at = now;
    }
    due_at_ = std::min(due_at_, kind.begun_at + kWindow);
    ++at;
  }
}

void RepeatFilter::MakeRoom(std::vector<LineOut>* out) {
  if (kinds_.size() < kKindsMax) return;
  const auto oldest =
      std::ranges::min_element(kinds_, {}, [](const auto& one) { return one.second.begun_at; });
  Say(&oldest->second, out);
  kinds_.erase(oldest);
}

void RepeatFilter::TakeAll(std::vector<LineOut>* out) {
  for (auto& [id, kind] : kinds_) Say(&kind, out);
  kinds_.clear();
  due_at_ = TimePoint::max();
}

void RepeatFilter::Take(uint64_t most, LineOut line, TimePoint now, std::vector<LineOut>* out) {
  TakeDue(now, out);
  const uint64_t id = line.line.kind;
  if (!kinds_.contains(id)) MakeRoom(out);
  Kind& kind = kinds_.try_emplace(id, Kind{.begun_at = now, .last_at = now}).first->second;
  due_at_ = std::min(due_at_, kind.begun_at + kWindow);
  kind.last_at = now;
  if (kind.written < most) {
    ++kind.written;
    out->push_back(std::move(line));
    return;
  }
  line.repeated = kind.held.repeated + 1;
  if (line.line.text.size() > kLineBytesMax) {
    line.line.text.resize(kLineBytesMax);
    line.line.message_bytes = kLineBytesMax;
    line.line.fields.clear();
  }
  kind.held = std::move(line);
}

}  // namespace ems::log
