#pragma once
// The first message of a decode worker on the ring socket of a prefill process, before it offers
// its ring there (fabric/emulated/ring_receiver.h): it names the session that the ring belongs to.
#include <cstdint>

#include "common/status.h"

namespace ems::pdc {

// As it lies on the socket; of one machine, so in its byte order.
struct RingGreeting {
  static constexpr uint64_t kMagic = 0x3167'6e69'5243'4450;
  uint64_t magic = kMagic;
  uint64_t incarnation = 0;  // of the prefill process that is meant
  uint64_t session = 0;      // made up by the decode worker, never used again; not 0
  uint64_t reserved = 0;
};
static_assert(sizeof(RingGreeting) == 32);

// Errors: kInvalidArgument  no greeting of ours    kFailedPrecondition  another process is meant
inline Status CheckGreeting(const RingGreeting& greeting, uint64_t incarnation) {
  if (greeting.magic != RingGreeting::kMagic || greeting.reserved != 0 || greeting.session == 0)
    return Error(StatusCode::kInvalidArgument, "the greeting of a ring makes no sense");
  if (greeting.incarnation != incarnation)
    return Error(StatusCode::kFailedPrecondition, "a ring for a process that was here before");
  return OkStatus();
}

}  // namespace ems::pdc
