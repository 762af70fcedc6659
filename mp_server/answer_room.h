#pragma once
// The room that is left in one answer: bytes to send, and objects that it pins until they are sent.
// An object counts with its whole value, however short a range of it is sent.
//
// Bound: kAnswerBytesMax to send; pins up to what the answer may have, and all answers together up
// to their allowance. The first value has room whatever its length, unless the allowance is used
// up.
#include <cstdint>
#include <optional>
#include <utility>

#include "common/bytes.h"
#include "mp_server/store/allowance.h"

namespace ems::server {

// Threading: one thread (the connection's).
class AnswerRoom final {
 public:
  static constexpr uint64_t kAnswerBytesMax = 64 * kMiB;

  AnswerRoom() = default;
  // `pins` holds nothing yet.
  AnswerRoom(Hold pins, uint64_t pins_max) : pins_(std::move(pins)), pins_max_(pins_max) {}

  bool none() const { return left_ == 0; }
  // How many bytes were taken; nullopt: there is no room.
  std::optional<uint64_t> Take(uint64_t bytes);
  void GiveBack(uint64_t taken);
  // Counts an object until this goes. False: there is no room.
  [[nodiscard]] bool Pin(uint64_t object_bytes);

 private:
  uint64_t left_ = kAnswerBytesMax;
  uint32_t values_ = 0;
  Hold pins_;
  uint64_t pins_max_ = 0;
  uint64_t pinned_bytes_ = 0;  // pins_ holds as many or somewhat more
};

}  // namespace ems::server
