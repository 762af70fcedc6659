#pragma once
// Asks servers of a view which view they have and what they have heard from others: one small
// request each, to all of a round at once.
//
// Bound: kChannelsMax connections are kept from one round to the next, those that were of use last.
#include <cstdint>
#include <map>
#include <memory>

#include "common/clock.h"
#include "fabric/rpc/rpc_channel.h"
#include "mp_server/lease/quorum_lease.h"

namespace ems::server {

// Threading: one thread ("ems-ctl").
class PeerQuorum final {
 public:
  static constexpr size_t kChannelsMax = 32;

  // Of those processes that the round's view shows and that answer. Connects, greets and asks all
  // of them at the same time, and blocks up to `patience` altogether; a server whose address is a
  // name also for as long as the name takes to resolve.
  PeerAnswers Ask(const PeerRound& round, Duration patience);

 private:
  struct Call;
  struct Kept {
    std::unique_ptr<fabric::RpcChannel> channel;
    uint64_t round = 0;  // when it was used last
  };
  // False: it cannot be connected to.
  bool Begin(Call* call);
  void Keep(Call* call);

  std::map<NodeId, Kept> kept_;
  std::map<NodeId, uint32_t> attempts_;  // to connect, in a row; of servers of the view
  uint64_t rounds_ = 0;
  TimePoint last_round_{};
};

}  // namespace ems::server
