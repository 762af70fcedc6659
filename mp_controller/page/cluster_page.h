#pragma once
// The page of the cluster: GET / is a page for people, /state one JSON document, /events the same
// as a stream of server-sent events. With a password all three ask for it.
//
// Invariant: the state is asked for at most once in `every`, however many look, and not at all
// while nobody does; nobody is given one that is older. A slow reader misses states and holds up
// nobody; one that takes nothing is dropped by the HTTP server. Who has gone is forgotten at once.
// Bound: kStreamsMax streams, kWaitingMax who wait for /state; a stream holds one event at a time.
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/http/http_endpoint.h"
#include "mp_controller/page/page_password.h"

namespace ems::controller {

// Threading: thread-safe. Asks for the state on its thread "ems-page".
class ClusterPage final {
 public:
  static constexpr size_t kStreamsMax = 32;
  static constexpr size_t kWaitingMax = 64;
  // `state`: the state of now as JSON in one line; may block for a second.
  explicit ClusterPage(std::function<Result<std::string>()> state,
                       Duration every = std::chrono::seconds(1),
                       std::optional<PagePassword> password = std::nullopt);
  ~ClusterPage();  // Close
  ClusterPage(const ClusterPage&) = delete;
  ClusterPage& operator=(const ClusterPage&) = delete;

  // For an HTTP server, which must be gone before the page is.
  std::vector<fabric::HttpEndpoint::GetPage> pages();
  // Ends all streams, and answers all who wait and all later ones that it is over. Idempotent.
  void Close();

 private:
  using Exchange = std::shared_ptr<fabric::HttpExchange>;
  using Clients = std::vector<Exchange>;
  struct Shared {
    bool closed = false;
    Clients waiting;                    // for one state
    Clients opening;                    // for the first event of a stream
    Clients streams;                    // that have had it
    std::string state;                  // the last one; empty: there was none
    std::optional<TimePoint> asked_at;  // for that
    bool is_looked_at() const { return !waiting.empty() || !opening.empty() || !streams.empty(); }
  };

  // Refuses who does not show the password, before anything is asked or kept for them.
  fabric::HttpHandler Locked(fabric::HttpHandler show) const;
  void ShowState(const Exchange& exchange);
  void Follow(const Exchange& exchange);
  // For one that has been let in.
  void ForgetWhenGone(const Exchange& exchange);
  void Run();
  // Gives the state, or why there is none, to all who look. Cost: O(clients), no lock held.
  void Tell(const Result<std::string>& state, TimePoint asked_at);
  void EndAll();

  const std::function<Result<std::string>()> state_;
  const Duration every_;
  const std::optional<PagePassword> password_;
  Guarded<Shared> shared_;
  std::condition_variable changed_;
  Thread thread_;
};

}  // namespace ems::controller
