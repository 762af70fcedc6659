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

}  // namespace ems::server
