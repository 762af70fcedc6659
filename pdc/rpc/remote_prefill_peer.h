#pragma once
// A prefill instance in another process of this host: calls over gRPC, KV over a ring that this
// side offers.
//
// It connects by itself, again and again: asks who is there, offers a new ring, waits until that
// one is attached. When the process dies, does not answer, or stands still, all that runs there
// ends with kUnavailable; a new start of it is found, and gets a new ring.
// Invariant: the events of each task that was started come as PrefillEvents says, whatever becomes
// of the other process. Bound: 1024 tasks.
#include <memory>
#include <optional>
#include <string>

#include "pdc/prefill/prefill_peer.h"
#include "pdc/rpc/instance.h"
#include "pdc/rpc/peer_options.h"

namespace ems::pdc {

struct RemotePrefillPeerOptions {
  std::string name{};       // how messages call it
  std::string address{};    // of its PrefillService
  InstanceInfo expected{};  // CheckFits
  fabric::RingOptions ring{};
  PeerWatchOptions watch{};
};

// Threading: thread-safe. Threads: "ems-pulse"; events come on gRPC's. Goes when nobody is inside
// of a call or an event of it; then those that are to come have come, with kUnavailable.
class RemotePrefillPeer final : public PrefillPeer {
 public:
  explicit RemotePrefillPeer(RemotePrefillPeerOptions options);
  ~RemotePrefillPeer() override;
  RemotePrefillPeer(const RemotePrefillPeer&) = delete;
  RemotePrefillPeer& operator=(const RemotePrefillPeer&) = delete;

  const std::string& name() const override;
  // Also kFailedPrecondition: it is there, and serves another model or stores KV otherwise.
  PrefillHealth health() override;
  // Who hands over to an old ring, after a new one has come, finds its sender gone.
  std::shared_ptr<fabric::RingReceiver> ring() override;
  // What the instance alone can know (its queue is full) comes by on_done.
  Status Start(PrefillTask task, PrefillEvents events) override;
  void Cancel(uint64_t id) override;

  // Who is there; none before it was connected for the first time.
  std::optional<InstanceInfo> instance() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
