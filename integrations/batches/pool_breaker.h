#pragma once
// A circuit breaker over the whole pool, for an engine's batches: after two in a row failed as a
// whole, on all servers or four of them, batches are misses for a second, then one is let through
// to probe.
//
// The client's breakers, one for each server, do not suffice: a batch asks all servers at once, so
// each batch would wait for its deadline until five calls to each server had failed.
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "cluster/view_cache.h"
#include "common/circuit_breaker.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::batches {

// Threading: thread-safe.
class PoolBreaker final {
 public:
  // `views`: of the client, and outlive this; `name_space`: that of its calls.
  PoolBreaker(ViewCache* views, std::function<NamespaceId()> name_space,
              const Clock& clock = Clock::System())
      : views_(views), name_space_(std::move(name_space)), clock_(clock) {}

  // May a batch go out now? One a second may while it is open.
  bool Allow() { return breaker_.Allow(clock_.Now()); }
  // A server answered.
  void OnAnswer() { breaker_.OnSuccess(); }
  // How a batch ended, by block, and where its blocks belong. True: no server answered.
  bool Judge(std::span<const Status> blocks, std::span<const std::string> routes);

 private:
  bool SpeaksForAll(std::span<const std::string> routes) const;

  ViewCache* const views_;
  const std::function<NamespaceId()> name_space_;
  const Clock& clock_;
  CircuitBreaker breaker_{2};
};

}  // namespace ems::batches
