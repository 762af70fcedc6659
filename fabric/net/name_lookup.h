#pragma once
// Addresses of a host by its name, within a time: the system's resolver has none of its own, and
// takes many seconds where the name servers are silent.
//
// What was found for a name is used from then on, and looked up again in the background when it is
// older than kFreshFor: a call waits for the first answer alone, and name servers that fail later
// are not noticed. Bound: kNamesMax names, kLookupsMax threads, which end when the resolver does;
// more names wait for a place.
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::fabric {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
using SocketAddresses = std::shared_ptr<const std::vector<SocketAddress>>;  // one or more

// Threading: thread-safe.
class NameLookup final {
 public:
  static constexpr Duration kFreshFor = std::chrono::seconds(5);
  static constexpr size_t kNamesMax = 4096;
  static constexpr size_t kLookupsMax = 16;
  static constexpr Duration kExitPatience = std::chrono::milliseconds(100);

  explicit NameLookup(const Clock& clock = Clock::System());
  // Waits for the lookups that are under way.
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;
  // One for the process. It is never destroyed; an exit waits for lookups, kExitPatience at most.
  static NameLookup& Shared();

  // Of a name, or of a number at once. With a timeout of 0 it does not wait, but begins to look.
  // Errors: kUnavailable  no such name    kDeadlineExceeded  no answer in time; a later call finds
  // it    kResourceExhausted  kLookupsMax lookups of other names did not end in time: this one has
  // not been looked up. That there is no such name is an answer as well where it was asked for at
  // `since` or later; without that, after this call.
  Result<SocketAddresses> Find(const std::string& host, uint16_t port, Duration timeout,
                               TimePoint since = TimePoint::max());

 private:
  struct State;
  // Joins the threads of lookups that end in this time.
  void Finish(Duration patience);
  const Clock& clock_;
  const std::unique_ptr<State> state_;
};

}  // namespace ems::fabric
