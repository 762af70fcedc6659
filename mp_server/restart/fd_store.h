#pragma once
// Where descriptors stay while this server restarts: with systemd, or with a holder of its own
// (holder.h).
//
// Bound: kFdsHeldMax descriptors; a store answers within kStorePatience or not at all.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "fabric/net/socket.h"
#include "mp_server/restart/hold_session.h"

namespace ems::server {

// Threading: one thread (main's).
class FdStore {
 public:
  virtual ~FdStore() = default;
  // What the process before this one has put there. The store has it no more when this returns;
  // nothing: there was nothing, or it could not be had whole.
  virtual std::vector<fabric::Fd> Take() = 0;
  // The store has all of `fds`, beside what this process has, when this returns. Errors:
  // kUnavailable  it has none of them for sure, or does not answer: nothing counts on it
  virtual Status Put(std::span<const int> fds) = 0;
  virtual std::string_view name() const = 0;
};

// systemd's, of a unit with FileDescriptorStoreMax=. What it says in the environment.
struct SystemdWords {
  std::string notify_socket;  // NOTIFY_SOCKET
  uint32_t store_max = 0;     // FDSTORE: how many it stores. 0: none, or it does not say
  std::string listen_pid;     // LISTEN_PID, LISTEN_FDS: who is given how many, from 3 on
  uint32_t listen_fds = 0;
  std::string listen_names;  // LISTEN_FDNAMES: separated by colons
};
// Null: it has no store for this process. What it gives under our name is taken over here and now,
// as other descriptors that are opened might get those numbers.
std::unique_ptr<FdStore> SystemdStore(const SystemdWords& words);

// Null: nobody holds at the socket `path`, or another user does. Cost: a connection.
std::unique_ptr<FdStore> HolderStore(const std::string& path);

}  // namespace ems::server
