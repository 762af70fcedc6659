#pragma once
// Sends a batch to the owners of its keys and decides every retry: the only place that does.
//
// A round plans one frame for each server, connects to servers and drives all frames at once on the
// caller's thread, and leaves open what must be asked again: another owner (after the view has
// moved on, 3 hops), no room just now (after the server's pause), a connection that broke before
// its answer (once, within the retry budget), a holder of copies in place of an owner that cannot
// be reached (in namespaces with replicas, each of them once a view). Reads of keys that have
// copies are spread over them (HotReads); one that takes longer than 95 in 100 of its server's
// latest is asked of another one, too, for one request in twenty at most. What changes something
// and may have been carried out is not asked again: its outcome is unknown (Batch::MayRepeat).
// Bound: the batch's deadline.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cluster/view_cache.h"
#include "common/retry.h"
#include "mp_sdk/client_stats.h"
#include "mp_sdk/internal/batch.h"
#include "mp_sdk/internal/batch_planner.h"
#include "mp_sdk/internal/connection_pool.h"
#include "mp_sdk/internal/hot_reads.h"
#include "mp_sdk/options.h"

namespace ems::internal {

struct RouterStats {
  std::atomic<uint64_t> retries{0}, wrong_owner{0}, breaker_opened{0}, checksum_mismatches{0},
      copies_asked{0};
  std::atomic<uint64_t> hedges{0}, hedges_won{0};  // HotReads has the rest of copies
};

// Threading: thread-safe.
class Router final {
 public:
  // `refresh` asks the controller for a newer view, within the deadline; may be empty (tests).
  using Refresh = std::function<void(Deadline)>;
  Router(const ClientOptions& options, ViewCache* views, Refresh refresh);
  // Has one-sided reads follow each view that is used here, before it is used, and offers values in
  // place where servers take them. Call before the first Run; `locals` must outlive the router.
  void Use(LocalServers* locals) { locals_ = locals; }

  // Runs the batch until every item has a result or the deadline passes. Blocks.
  void Run(Batch* batch);
  // One frame without a key to one node, again as long as it says kRetryLater; the body of the
  // answer. For what is asked of a server itself.
  Result<std::string> Ask(const NodeInfo& node, const wire::FrameHeader& header, ConstBytes body,
                          Deadline deadline);
  Result<std::string> Ask(const NodeInfo& node, wire::Op op, Deadline deadline) {
    wire::FrameHeader header;
    header.op = op;
    return Ask(node, header, {}, deadline);
  }
  const RouterStats& stats() const { return stats_; }
  const HotReads::Stats& hot_stats() const { return hot_.stats(); }
  // What it has counted.
  void AddTo(ClientStats* stats) const;

 private:
  struct Flight {
    enum class Stage : uint8_t {
      kWaiting,   // all connections to the server are in use
      kNameless,  // no address of the server is known yet
      kGreeting,  // connecting; the request begins when that is done
      kNoServer,  // that has failed, and the frame with it unless there is another address
      kIdle,      // nothing of the frame may be sent
      kSent,      // the request is under way, or over
    };
    Frame* frame;
    const NodeInfo* node;  // of the round's view
    std::shared_ptr<Peer> peer;
    std::unique_ptr<fabric::RpcChannel> channel;  // from kGreeting on
    Stage stage = Stage::kWaiting;
    uint32_t attempt = 0;  // as the peer's
  };
  struct RoundResult {
    wire::WireStatus unsettled = wire::WireStatus::kOk;
    ViewVersion newest;  // the newest view that a server spoke of
    uint32_t retry_ms = 0;
    bool broken = false;  // a connection broke and its items are to be asked again
    LastRequest last;
  };

  // Whom a Get is asked of, too, when it is not answered by then.
  struct Hedge {
    NodeId other;  // kNoNode: the owner of its slot
    TimePoint at{};
  };

  RoundResult RunRound(Batch* batch, const DhtView& view, bool fresh);
  static bool IsNameless(const Flight& flight) { return flight.stage == Flight::Stage::kNameless; }
  static bool IsGreeting(const Flight& flight) { return flight.stage == Flight::Stage::kGreeting; }
  // A channel for each frame whose server has one free, or is being connected to, and a flight
  // without one where its name is being looked up; if there is none at all, waits for a channel.
  // Holding some while waiting for others could make two calls wait for each other, and a server
  // that stands still hold those up that do not.
  std::vector<Flight> TakeChannels(Batch* batch, const DhtView& view, bool fresh,
                                   std::span<const std::unique_ptr<Frame>> frames);
  // One without waiting; begins the request where it is connected.
  void TakeFree(Flight* flight, Batch* batch, bool fresh, ViewVersion view);
  // Connects to those that are kNameless and have an address by now. Their names have
  // connect_timeout together, from `since` on. False: there are no others.
  bool TakeNamed(Batch* batch, bool fresh, ViewVersion view, TimePoint since,
                 std::span<Flight> flights, std::span<fabric::RpcChannel*> channels);
  // The frame's server cannot be asked.
  void Fail(Batch* batch, Frame* frame, const Status& status);
  // Its frame fails, unless the next round asks the server over TCP.
  void FailToTake(Flight* flight, Batch* batch, const Status& status, bool connect_failed);
  // The channel has greeted, or ended with `result` before.
  void OnGreeting(Flight* flight, Batch* batch, const Status& result, ViewVersion view);
  // Begins the request, unless none of it may be sent.
  void Start(Flight* flight, ViewVersion view);
  void Receive(Flight* flight, Batch* batch, const Status& result, RoundResult* round);
  void HandleBroken(Flight* flight, Batch* batch, const Status& result, RoundResult* round);
  // Of a single key that has copies; none: nobody else has it, or too little is known of how long
  // the server takes.
  std::optional<Hedge> PlanHedge(const Batch& batch, const DhtView& view,
                                 std::span<const Flight> flights);
  // Asks the other one, too, and ends with the first value; the connection of the one that is late
  // is closed, so that its answer is nobody's. False: it did nothing, as others have used the
  // budget up, or there is no connection to be had now.
  bool RunHedged(NodeId other, Flight* first, Batch* batch, const DhtView& view,
                 RoundResult* round);
  // Holders of copies that a namespace with replicas has, besides owners.
  uint32_t CountCopies(const Batch& batch);
  bool KnowsNamespace(NamespaceRef ns);
  void WaitForView(ViewVersion newer_than, ViewVersion at_least, Deadline deadline);

  const ClientOptions options_;
  ViewCache* views_;
  Refresh refresh_;
  LocalServers* locals_ = nullptr;  // may stay so
  ConnectionPool pool_;
  RetryBudget budget_;
  RetryBudget hedges_{10, 20};  // one request in twenty
  HotReads hot_;
  RouterStats stats_;
  std::atomic<uint64_t> retained_view_{0};
};

}  // namespace ems::internal
