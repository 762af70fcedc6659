#pragma once
// A real HTTP server on loopback that gives out the files of a folder no faster than stated: the
// shared bucket that models are loaded from.
//
// Speaks GET and HEAD of whole files and single ranges, with entity tags, on kept connections; all
// connections share one rate. Bound: kConnectionsMax connections, requests of 16 KiB; bodies are
// sent from the page cache in pieces of 64 KiB.
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"
#include "model_files/source/bandwidth_cap.h"

namespace ems::bench {

// Threading: thread-safe.
class PacedSource final {
  struct Passkey {};  // only Start constructs

 public:
  static constexpr size_t kConnectionsMax = 512;

  // `bytes_per_s` 0: as fast as it goes. Errors: as fabric::ListenTcp
  static Result<std::unique_ptr<PacedSource>> Start(const std::string& folder,
                                                    uint64_t bytes_per_s);
  PacedSource(Passkey, std::string folder, uint64_t bytes_per_s, fabric::Fd listener, int port);
  ~PacedSource();
  PacedSource(const PacedSource&) = delete;
  PacedSource& operator=(const PacedSource&) = delete;

  // "http://127.0.0.1:PORT/", for what lies in the folder itself.
  std::string url() const;
  // Of bodies, since the start; a piece counts before it is sent.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    fabric::Fd fd;
    Thread thread;
    std::atomic<bool> done{false};
  };
  struct Request;
  void Accept();
  void Serve(Connection* connection);
  bool Answer(int fd, const Request& request);
  bool SendFile(int fd, int file, uint64_t offset, uint64_t bytes);

  const std::string folder_;
  const fabric::Fd listener_;
  const int port_;
  model::BandwidthCap cap_;
  std::atomic<uint64_t> bytes_sent_{0};
  StopFlag stop_;
  Guarded<std::list<Connection>> connections_;
  Thread acceptor_;
};

}  // namespace ems::bench
