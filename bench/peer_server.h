#pragma once
// Another cache, started for the length of a measurement: redis-server or memcached as a child
// process that keeps everything in memory.
//
// Invariant: the process and its folder are gone when this is; the process also dies with ours,
// however that ends. It listens on a Unix socket in a folder that only this user can enter, or on a
// free port of the loopback address. Bound: 10 s to start; it ends by a kill,
// having nothing to save.
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/peer_client.h"
#include "common/status.h"

namespace ems::bench {

enum class PeerTransport { kUnix, kTcp };

struct PeerServerOptions {
  PeerKind kind = PeerKind::kRedis;
  PeerTransport transport = PeerTransport::kUnix;
  uint64_t memory_bytes = 0;     // most that its values may take
  uint64_t value_bytes_max = 0;  // of one value
};

// The program of a peer: its path, or nothing when it is not installed. Looks in PATH, /usr/bin and
// /usr/local/bin.
std::string FindPeerProgram(PeerKind kind);

// Threading: one thread, the one that started it (the kernel ties the child's life to it).
class PeerServer final {
  struct Passkey {};  // only Start constructs

 public:
  PeerServer(Passkey, PeerServerOptions options) : options_(options) {}
  // Starts it and waits until it takes connections.
  // Errors: kNotFound  not installed; says which package    kUnavailable  it did not start; the end
  // of what it printed is in the text    kInternal  no process
  static Result<std::unique_ptr<PeerServer>> Start(const PeerServerOptions& options);
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // What ConnectPeer takes.
  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  // "redis-server 7.0.15", or the bare name when it does not say.
  const std::string& version() const { return version_; }

 private:
  Status MakeFolder();
  Status ChooseAddress();
  std::vector<std::string> Arguments(const std::string& program) const;
  Status WaitUntilItAnswers();
  std::string LogPath() const { return folder_ + "/log"; }
  bool HasEnded();
  void End();

  const PeerServerOptions options_;
  std::string folder_;
  std::string address_, version_;
  uint16_t port_ = 0;  // 0: a Unix socket
  pid_t pid_ = 0;      // 0: not running
};

}  // namespace ems::bench
