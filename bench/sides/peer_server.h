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

#include "bench/harness/child_process.h"
#include "bench/harness/scratch_folder.h"
#include "bench/sides/peer_client.h"
#include "common/status.h"

namespace ems::bench {

enum class PeerTransport { kUnix, kTcp };

struct PeerServerOptions {
  PeerKind kind = PeerKind::kRedis;
  PeerTransport transport = PeerTransport::kUnix;
  uint64_t memory_bytes = 0;     // most that its values may take
  uint64_t value_bytes_max = 0;  // of one value
  uint32_t threads = 0;          // that serve; 0: as many as it takes by itself
};

// The path of a peer's program, or nothing when it is not installed: as FindProgram.
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

  // What PeerClient::Connect takes.
  const std::string& address() const { return address_; }
  pid_t pid() const { return process_.pid(); }
  // "redis-server 7.0.15", or the bare name when it does not say.
  const std::string& version() const { return version_; }

 private:
  Status ChooseAddress();
  Status WaitUntilItAnswers();
  std::string LogPath() const { return folder_->path() + "/log"; }

  const PeerServerOptions options_;
  std::unique_ptr<ScratchFolder> folder_;
  std::string address_, version_;
  uint16_t port_ = 0;     // 0: a Unix socket
  ChildProcess process_;  // gone before its folder
};

}  // namespace ems::bench
