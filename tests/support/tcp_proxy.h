#pragma once
// A TCP proxy that can be cut, and whose two directions can each be slow, lossy, damaged or silent:
// for peers that must not reach each other, or must reach each other badly.
//
// Bounds: 256 connections; what one direction has read and not yet passed on is at most 64 KiB
// (twice that where pieces are duplicated), so a delay of 100 ms allows 640 KiB/s.
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::testing {

enum class Way : uint8_t { kToTarget, kToClient };

// What becomes of the sender's bytes.
enum class Carry : uint8_t {
  kAll,        // they are passed on
  kStall,      // nobody reads them: they fill the sender's window and wait
  kSwallow,    // they are read and dropped: to the sender they have arrived. The receiver sees no
               // end, and a hole in the stream when the fault is over
  kVanish,     // its packets are dropped before TCP sees them: no acknowledgement, no end, and
               // towards the target no new connection. A host that has vanished
  kLoseLarge,  // the same for packets of more than kSmallPacketBytes, others are passed on: a path
               // that carries less than both ends believe
};

inline constexpr uint32_t kSmallPacketBytes = 1400;  // with the TCP header
// What one read brings is cut into pieces of at most so many bytes.
inline constexpr size_t kPieceBytesMax = 1460;

// How many of the pieces meet a fault, each by a chance from 0 (none) to 1 (all). TCP mends what
// happens to packets; these are faults behind its checksum, of a stream that is already in order.
struct LinkNoise {
  double flip = 0;       // one bit of it is flipped
  double drop = 0;       // it is left out
  double duplicate = 0;  // it comes twice
  double reorder = 0;    // the next one overtakes it; without a next one it comes 20 ms late
  double reset = 0;      // both ends get a RST instead of it
  // Each connection and direction has choices of its own, and the same ones for the same pieces.
  // Which pieces the kernel makes of a stream depends on time.
  uint64_t seed = 1;
};

// The faults of one direction. Bytes are numbered from 0, for each connection by itself, from the
// moment that the fault was set.
struct LinkFaults {
  Carry carry = Carry::kAll;
  Duration delay{0};                      // of each byte
  Duration drip{0};                       // more than 0: one byte each `drip`
  std::optional<uint64_t> reset_at = {};  // both ends get a RST instead of this byte; happens once
  std::optional<uint64_t> flip_at = {};   // this byte has its lowest bit flipped; happens once
  // Connections 0, 2, 4, … of the proxy's life pass nothing on before the next one has.
  bool later_first = false;
  LinkNoise noise = {};
};

// Of one direction, over all connections.
struct LinkCounts {
  uint64_t bytes = 0;  // read from the sender
  uint64_t flips = 0, drops = 0, duplicates = 0, reorders = 0, resets = 0;
};
struct ProxyCounts {
  uint64_t connections = 0;             // forwarded to the target
  std::array<LinkCounts, 2> ways = {};  // by Way
};

// Threading: thread-safe; one thread "proxy" of its own does the work.
class TcpProxy final {
 public:
  // Listens on a free loopback port and forwards to `target` (host:port). Without a target
  // connections are closed as soon as they are accepted.
  explicit TcpProxy(const std::string& target = "") : TcpProxy(target, ListenAnywhere()) {}
  // The same on a socket that listens; a target is an IPv4 address in digits and a port.
  TcpProxy(const std::string& target, fabric::Fd listener);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Of connections from now on.
  void SetTarget(const std::string& target);
  // Holds for connections that are there and for later ones, and is in force on return.
  void Set(Way way, const LinkFaults& faults);
  // Closes all connections, and new ones as soon as they are accepted, until Mend.
  void Cut();
  // Ends the cut and all faults.
  void Mend();
  ProxyCounts counts() const;
  // Resets and flips that have happened.
  uint64_t strikes() const;

 private:
  struct Orders {
    std::string target;
    bool cut = false;
    std::array<LinkFaults, 2> faults{};  // by Way
    std::array<uint64_t, 2> set{};       // how often the faults of each direction were set
    uint64_t given = 0;                  // changes
    uint64_t obeyed = 0;                 // those of them that the proxy thread has carried out
  };
  struct Chunk {
    TimePoint due;
    std::string bytes;
    bool is_late = false;  // the next one goes in front of it
    bool resets = false;   // a RST comes instead of it
  };
  // One direction of a connection.
  struct Pipe {
    Way way;
    int from;
    int to;
    std::deque<Chunk> waiting{};  // read, not yet passed on
    size_t waiting_bytes = 0;
    uint64_t passed = 0;  // bytes since the faults of this direction were set
    TimePoint next_drip{};
    bool from_ended = false;
    std::mt19937_64 random{};
  };
  // Both directions use the same two sockets.
  struct Connection {
    uint64_t number;
    std::array<Pipe, 2> pipes;  // by Way
  };
  enum class Fate : uint8_t { kGoesOn, kEnds, kIsReset };

  static fabric::Fd ListenAnywhere();
  template <typename Change>
  void Order(const Change& change);
  void Run();
  void Wait(bool* knocked);
  void Obey();
  void Accept();
  void Drop(const Connection& connection, bool reset);
  void DropAll();
  Fate Pump(Connection* connection);
  void CountOf(Way way, uint64_t LinkCounts::*count);
  void BeginFaults(uint64_t number, Pipe* pipe) const;
  void Read(Pipe* pipe);
  void Queue(std::string piece, Pipe* pipe, LinkCounts* counts) const;
  Fate PassOn(uint64_t number, Pipe* pipe);
  const LinkFaults& FaultsOf(const Pipe& pipe) const {
    return now_.faults[static_cast<size_t>(pipe.way)];
  }
  bool Reads(const Pipe& pipe) const;
  // When its next byte may be passed on; nullopt: something else must happen first.
  std::optional<TimePoint> Due(uint64_t number, const Pipe& pipe) const;

  fabric::Fd listener_;
  fabric::Fd wakeup_;  // eventfd
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable Guarded<ProxyCounts> counts_;
  Guarded<Orders> orders_;
  std::condition_variable obeyed_;
  // Of the proxy thread.
  Orders now_;
  uint64_t accepted_ = 0;
  std::array<uint64_t, 2>
      passed_end_{};  // by Way: 1 + the last connection that has passed a byte on
  std::vector<Connection> connections_;
  Thread thread_;
};

}  // namespace ems::testing
