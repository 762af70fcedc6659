#pragma once
// Open channels to each server, taken by one call at a time and given back.
//
// Bound: connections_per_server_max channels a server, idle and in use together. A call that finds
// none free waits for one within its deadline.
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "common/circuit_breaker.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "fabric/rpc/rpc_channel.h"
#include "mp_sdk/internal/recent_latencies.h"
#include "mp_sdk/options.h"

namespace ems::internal {

// The channels to one server process. Threading: thread-safe.
class Peer final {
 public:
  // `cluster`: as RpcChannel::Open's. `boot_id`: of the server that a Unix socket has to lead to;
  // 0: any.
  Peer(fabric::Address address, uint32_t connections_max, Duration connect_timeout,
       ClusterId cluster = kNoCluster, uint64_t boot_id = 0)
      : address_(std::move(address)),
        connections_max_(connections_max),
        connect_timeout_(connect_timeout),
        cluster_(cluster),
        boot_id_(boot_id) {}

  // A channel for one call. `fresh`: not one that has been idle, which the server may have closed
  // meanwhile. Errors: kUnavailable  refused, unreachable, or the breaker is open kDeadlineExceeded
  // none became free    kFailedPrecondition  another protocol version, or a server of another
  // cluster
  // `*connect_failed` tells whether the server was tried in vain: that counts against its breaker.
  // `seen_open`: one that the server has closed, as far as is known here, is not it. For what must
  // not be sent twice; costs a system call.
  Result<std::unique_ptr<fabric::RpcChannel>> Take(bool fresh, Deadline deadline,
                                                   bool* connect_failed = nullptr,
                                                   bool seen_open = false);
  // The same without waiting: null when all are in use, or it awaits_name(). A channel that is not
  // done() is greeting: it is to be driven, until connect_timeout at most, and CheckOpened says
  // whether it may be used.
  Result<std::unique_ptr<fabric::RpcChannel>> TryTake(bool fresh, Deadline deadline,
                                                      bool* connect_failed, bool seen_open);
  // How the greeting of `channel` has ended, `driven` being what its driver says. Errors: as Take's
  // of a server that was tried; the channel has to be returned as one that broke. `attempt`: that
  // it was opened with.
  Status CheckOpened(const fabric::RpcChannel& channel, const Status& driven, uint32_t attempt);
  // Which of its name's addresses, in turns, the next channel uses.
  uint32_t attempt() const { return attempt_.load(std::memory_order_relaxed); }
  // The one of that attempt could not be used. True: since one was reached not all have been tried,
  // and the next channel uses another one.
  bool NextAddress(uint32_t attempt);
  // No address of its name is known yet; it is being looked up. Does not wait.
  bool awaits_name() const { return CountAddresses() == 0; }
  // Whether one is, and otherwise why not. `since`, waiting and errors: as NameLookup::Find. It is
  // no failure of the server (`*connect_failed`) that others kept its name from being looked up.
  Status LookUp(TimePoint since, Duration timeout, bool* connect_failed) const;
  // Gives it back; null when it broke.
  void Return(std::unique_ptr<fabric::RpcChannel> channel);

  // Another server has answered at the Unix socket, which has the same path in another container:
  // this peer opens no channel, and its server is to be asked over TCP. For good once it is so.
  bool misled() const { return misled_.load(std::memory_order_relaxed); }

  const fabric::Address& address() const { return address_; }
  CircuitBreaker& breaker() { return breaker_; }
  // Of answers to Gets of single keys.
  RecentLatencies& latencies() { return latencies_; }
  uint64_t value_bytes_max() const { return value_bytes_max_.load(std::memory_order_relaxed); }

 private:
  struct State {
    std::vector<std::unique_ptr<fabric::RpcChannel>> idle;
    uint32_t open = 0;
  };
  // An idle channel, of several the one that was opened first, by its descriptor: a server spreads
  // connections over its threads as they come, so that few callers use different threads. Or null,
  // and room for a new one if `*may_open`. Cost: O(idle channels).
  Result<std::unique_ptr<fabric::RpcChannel>> TakeIdle(bool fresh, Duration patience,
                                                       bool* may_open);
  Result<std::unique_ptr<fabric::RpcChannel>> TakeAny(bool fresh, Deadline deadline,
                                                      bool* connect_failed);
  Result<std::unique_ptr<fabric::RpcChannel>> OpenOne(Deadline deadline, bool* connect_failed);
  // `addresses`: those of its name share the time.
  Result<std::unique_ptr<fabric::RpcChannel>> StartOne(size_t addresses, Deadline deadline);
  // How many are known; of a number it is one.
  size_t CountAddresses() const;
  // Whether the server that has greeted is the one that is meant. Errors: kUnavailable  no: it is
  // misled()    those of RpcChannel::Greeted
  Status CheckGreeting(const fabric::RpcChannel& channel);

  const fabric::Address address_;
  const uint32_t connections_max_;
  const Duration connect_timeout_;
  const ClusterId cluster_;
  const uint64_t boot_id_;
  std::atomic<bool> misled_{false};
  std::atomic<uint64_t> value_bytes_max_{wire::kValueBytesLimit};  // as the server said last
  std::atomic<uint32_t> attempt_{0};
  std::atomic<uint32_t> reached_{0};  // the attempt that ended well last
  CircuitBreaker breaker_;
  RecentLatencies latencies_;
  Guarded<State> state_;
  std::condition_variable freed_;
};

// Threading: thread-safe.
class ConnectionPool final {
 public:
  // `host_id`: of this process.
  explicit ConnectionPool(const ClientOptions& options, std::string host_id = fabric::HostId());
  // The peer behind a node of the view of `cluster`, by its Unix socket where this process reaches
  // it; a restarted server (another boot id) is another peer, and so is one that was misled().
  // Errors: kUnavailable  its address is unusable, or no Unix socket where one is demanded
  Result<std::shared_ptr<Peer>> PeerOf(const NodeInfo& node, ClusterId cluster);
  // Forgets peers that `view` does not know.
  void Retain(const DhtView& view);

 private:
  struct Entry {
    uint64_t boot_id = 0;
    std::shared_ptr<Peer> peer;
  };
  // `misled`: what its Unix socket led to.
  Result<fabric::Address> AddressOf(const NodeInfo& node, bool misled) const;
  // Whether a server listens at the Unix socket of `node`, for all that this process can see.
  bool MayConnect(const NodeInfo& node, bool misled) const;

  const ClientOptions options_;
  const std::string host_id_;
  Guarded<std::map<NodeId, Entry>> peers_;
};

}  // namespace ems::internal
