#pragma once
// Keeps an engine's batches cheap while the whole pool is away: after two in a row failed as a
// whole, on all servers or four of them, batches are misses for a second, then one is let through
// to see.
//
// Why beside the client's own, which is a server's: a batch asks all servers at once, so that each
// would wait for its deadline until five calls to each server had failed.
#include <span>
#include <string>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "mp_sdk/client.h"

namespace ems::python {

// Whether it says that a server did not answer.
inline bool IsOutage(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded;
}

// Threading: thread-safe.
class PoolBreaker final {
 public:
  explicit PoolBreaker(Client* client) : client_(client) {}

  // May a batch go out now? One a second may while it is open.
  bool Allow();
  // How a batch ended: with an answer from somewhere, or none at all from the servers of `routes`.
  void OnAnswer();
  void OnOutage(std::span<const std::string> routes);

 private:
  struct State {
    int failures = 0;
    TimePoint closed_until{};
  };
  bool SpeaksForAll(std::span<const std::string> routes) const;

  Client* const client_;
  Guarded<State> state_;
};

}  // namespace ems::python
