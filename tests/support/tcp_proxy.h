#pragma once
// A TCP proxy that a test can cut: for clients that must not see the controller, or a server, for a
// while.
//
// Bound: 64 connections; what one direction has read and not yet written is at most 64 KiB.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/thread_pool.h"

namespace ems::testing {

// Threading: thread-safe; one thread "proxy" of its own does the work.
class TcpProxy final {
 public:
  // Listens on a free loopback port and forwards to `target` (host:port).
  explicit TcpProxy(const std::string& target);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Closes all connections, and new ones as soon as they are accepted, until Mend.
  void Cut();
  void Mend();

 private:
  struct Pipe {
    int from;
    int to;
    std::string pending;  // read, not yet written
    bool from_ended = false;
  };
  // Two pipes a connection: [2i] and [2i + 1] share their sockets.
  void Run();
  void Accept();
  void DropAll();
  static bool Pump(Pipe* pipe);

  const std::string target_;
  int listener_ = -1;
  int wakeup_ = -1;  // eventfd
  uint16_t port_ = 0;
  std::atomic<bool> cut_{false};
  std::atomic<bool> stopping_{false};
  std::vector<Pipe> pipes_;  // of the proxy thread
  Thread thread_;
};

}  // namespace ems::testing
