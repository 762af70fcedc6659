#pragma once
// A decode instance in another process, over gRPC.
//
// It connects by itself, again and again. When the process dies, does not answer, or stands still,
// all that runs there ends with kUnavailable; a new start of it is found.
// Invariant: each task that was submitted ends in exactly one OnEnd, whatever becomes of the other
// process. Bound: 1024 tasks; a task's events wait in the connection while its sink is called.
#include <memory>
#include <optional>
#include <string>

#include "pdc/decode/decode_peer.h"
#include "pdc/rpc/instance.h"
#include "pdc/rpc/peer_options.h"

namespace ems::pdc {

struct RemoteDecodePeerOptions {
  std::string name{};                      // how messages call it
  std::string address{};                   // of its DecodeService
  std::optional<InstanceInfo> expected{};  // none: any instance will do
  PeerWatchOptions watch{};
};

// Threading: thread-safe. Threads: "ems-pulse"; sinks are called on gRPC's. Goes when nobody is
// inside of a call or an event of it; then all ends have come, with kUnavailable.
class RemoteDecodePeer final : public DecodePeer {
 public:
  explicit RemoteDecodePeer(RemoteDecodePeerOptions options);
  ~RemoteDecodePeer() override;
  RemoteDecodePeer(const RemoteDecodePeer&) = delete;
  RemoteDecodePeer& operator=(const RemoteDecodePeer&) = delete;

  const std::string& name() const override;
  // Also kFailedPrecondition: it is there, and serves another model or stores KV otherwise.
  DecodeHealth health() override;
  // What the instance alone can know (its queue is full) comes by OnEnd.
  Status Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) override;
  void Cancel(uint64_t id) override;

  // Who is there; none before it was connected for the first time.
  std::optional<InstanceInfo> instance() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
