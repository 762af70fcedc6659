#pragma once
// The health of a router's decode workers: which of them serve, which are left out for a moment
// because they failed a request or had no room, and how much KV each takes.
//
// Invariant: a worker is open when its last health answer said that it is well and has room for a
// new request, it has failed no request for a heartbeat, and it is not full. Pure except for
// DecodePeer::health, which costs no message; time comes from the caller. Threading: one thread
// (the router's).
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "pdc/decode/decode_peer.h"

namespace ems::pdc {

struct PeerHealthOptions {
  uint64_t kv_tokens_max = 0;  // KV that a worker is given; 0: what it says it has
  Duration heartbeat = std::chrono::milliseconds(100);  // one that failed is left out for as long
};

class PeerHealth final {
 public:
  // KV of a worker that does not say how much it has room for.
  static constexpr uint64_t kUnknownRoom = uint64_t{1} << 48;

  // `peers`: at least one. Each is to be looked at before anything else is asked.
  PeerHealth(std::vector<std::shared_ptr<DecodePeer>> peers, const PeerHealthOptions& options);

  int size() const { return static_cast<int>(peers_.size()); }
  DecodePeer& peer(int index) const { return *At(index).peer; }

  // Takes in what the worker says of itself. One that was full is asked again. Returns why what it
  // has is lost; OK also for one that is late to answer: it may still bring that.
  Status Look(int index, TimePoint now);
  // It failed a request: left out until a look a heartbeat later.
  void OnFailed(int index, TimePoint now);
  // Its queue was full: left out until the next look, or until a request ends there.
  void OnFull(int index) { At(index).full = true; }
  // A request ended there.
  void OnEnded(int index) { At(index).full = false; }

  bool serves(int index) const { return At(index).why.ok(); }
  // May be given a request now.
  bool open(int index) const { return Usable(At(index)) && !At(index).full; }
  // KV that it may be given, in tokens, as of the last look.
  uint64_t kv_tokens_max(int index) const { return At(index).kv_tokens_max; }
  // Of the worker with the most.
  uint64_t room_tokens_max() const;
  // At least one would take a request, now or when it has room again.
  bool any_usable() const;
  // OK when at least one serves; else kUnavailable, and says why each does not.
  Status ready() const;

 private:
  struct Peer {
    std::shared_ptr<DecodePeer> peer;
    // Why it does not serve: its health, or that it could begin nothing new.
    Status why{};
    uint64_t kv_tokens_max = kUnknownRoom;
    bool failed = false, full = false;
    TimePoint failed_at{};
  };
  static bool Usable(const Peer& peer) { return peer.why.ok() && !peer.failed; }
  size_t Checked(int index) const;
  const Peer& At(int index) const { return peers_[Checked(index)]; }
  Peer& At(int index) { return peers_[Checked(index)]; }

  const PeerHealthOptions options_;
  std::vector<Peer> peers_;
};

}  // namespace ems::pdc
