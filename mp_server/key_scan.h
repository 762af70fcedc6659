#pragma once
// The Scan requests of one connection: a page of a namespace's keys each (store/key_walk.h).
//
// A cursor is foreign: one of another life of the server is refused, for its places mean nothing
// here; any other leads to some place of the walk.
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "mp_server/request_check.h"
#include "mp_server/store/key_walk.h"

namespace ems::server {

// Threading: one thread (the connection's "ems-io").
class KeyScan final {
 public:
  // All must outlive it. `refusal` says why a Scan was refused.
  KeyScan(const RequestCheck* check, uint64_t boot_id, Refusal* refusal)
      : check_(check), boot_(static_cast<uint32_t>(boot_id)), refusal_(refusal) {}

  // As Session's.
  void SetWaker(std::function<void()> waker) { waker_ = std::move(waker); }
  fabric::Outcome Handle(const wire::FrameHeader& request, ConstBytes body, fabric::Answer* answer);
  // The request has been answered.
  void Sent();

 private:
  fabric::Outcome Begin(const wire::FrameHeader& request, ConstBytes body);
  wire::WireStatus SaySlow();
  wire::ScanCursor CursorOf(const KeyPlace& place) const;
  // nullopt: of another life of the server.
  std::optional<KeyPlace> PlaceOf(const wire::ScanCursor& cursor) const;

  const RequestCheck* const check_;
  const uint32_t boot_;
  Refusal* const refusal_;
  std::function<void()> waker_;
  TieredNamespace objects_;
  std::optional<KeyWalk> walk_;  // of the request in hand
};

}  // namespace ems::server
