#include "mp_server/value_check.h"

#include <algorithm>
#include <utility>

namespace ems::server {

ValueCheck::ValueCheck(ObjectPin pin) : pin_(std::move(pin)) { hasher_.Start({}); }

bool ValueCheck::GoOn(uint64_t* bytes_left) {
  const ConstBytes rest = pin_.value().subspan(done_);
  const uint64_t step = std::min<uint64_t>(rest.size(), *bytes_left);
  hasher_.Update(rest.first(step));
  done_ += step;
  *bytes_left -= step;
  return step == rest.size();
}

bool ValueCheck::Intact() {
  return CombinePieces(pin_.piece_sums()) == pin_.checksum() && hasher_.Finish() == pin_.checksum();
}

wire::WireStatus CheckRange(const ObjectPin& pin, wire::RangeBody range, Refusal* refusal,
                            uint64_t* checksum) {
  const uint64_t size = pin.value().size();
  if (range.offset > size || range.length > size - range.offset) {
    return refusal->Say(
        wire::WireStatus::kOutOfRange,
        fmt::format("range {}+{} of a value of {} bytes", range.offset, range.length, size));
  }
  const auto sum = RangeChecksum(pin.value(), pin.piece_sums(), range.offset, range.length);
  if (!sum) {
    pin.DropDamaged();  // a Put of it must store it again
    return refusal->Say(wire::WireStatus::kChecksumMismatch, "the stored value is damaged");
  }
  *checksum = *sum;
  return wire::WireStatus::kOk;
}

}  // namespace ems::server
