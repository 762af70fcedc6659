#pragma once
// A ring from a sender to a receiver in one process: two emulated NPUs of one machine, or a test.
#include <memory>

#include "common/status.h"
#include "fabric/emulated/ring_receiver.h"
#include "fabric/emulated/ring_sender.h"

namespace ems::fabric {

struct RingPair {
  std::unique_ptr<RingSender> sender;
  std::unique_ptr<RingReceiver> receiver;
};

// The ends of a connected pair of Unix stream sockets, over which a ring may be offered: in one
// process, or to a child that has yet to be forked. Errors: kInternal  no descriptors
struct SocketPair {
  Fd one, other;
};
Result<SocketPair> MakeSocketPair();

// Errors: those of RingReceiver::Offer and RingSender::Accept; kInternal  no descriptors
Result<RingPair> MakeRingPair(const RingOptions& options);

}  // namespace ems::fabric
