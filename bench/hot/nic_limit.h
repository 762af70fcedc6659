#pragma once
// A network card of a stated speed in front of a server: a proxy on loopback that passes on what
// the server sends at so many bytes a second, all connections together. What is sent to the server
// passes as it comes.
//
// A token bucket of kBurstBytes. Bound: kConnectionsMax connections, kPartBytes of each direction
// are held; TCP holds the rest back.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::bench {

// Threading: thread-safe; one thread "bench-nic" of its own does the work.
class NicLimit final {
 public:
  static constexpr size_t kConnectionsMax = 512;
  static constexpr size_t kPartBytes = 256 * kKiB;
  static constexpr double kBurstBytes = 512.0 * kKiB;

  // Errors: kUnavailable  no socket to be had
  static Result<std::unique_ptr<NicLimit>> Start(double bytes_per_s);
  NicLimit(fabric::Fd listener, fabric::Fd wakeup, double bytes_per_s);
  ~NicLimit();
  NicLimit(const NicLimit&) = delete;
  NicLimit& operator=(const NicLimit&) = delete;

  std::string address() const;  // host:port
  // Of connections from now on, host:port in digits; before it they are closed at once.
  void SetTarget(const std::string& target);
  // What has passed from the server.
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  // One direction of a connection: what was read and not written yet.
  struct Pipe {
    int from = -1, to = -1;
    std::vector<std::byte> part;
    size_t begin = 0, end = 0;
    bool ended = false;  // `from` has no more
    bool empty() const { return begin == end; }
  };
  struct Connection {
    fabric::Fd client, server;
    Pipe up, down;
  };
  void Run();
  void Accept();
  void Refill();
  // False: the connection is over.
  bool Pump(Connection* connection);
  // `most`: how much may be read.
  static bool Move(Pipe* pipe, size_t most, size_t* moved);
  void Wait();

  const fabric::Fd listener_;
  const fabric::Fd wakeup_;  // eventfd
  const double bytes_per_s_;
  Guarded<std::string> target_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> sent_bytes_{0};
  // Of the thread.
  std::vector<Connection> connections_;
  double tokens_ = kBurstBytes;  // bytes
  TimePoint refilled_{};
  size_t first_ = 0;  // whose turn it is to be first
  Thread thread_;
};

}  // namespace ems::bench
