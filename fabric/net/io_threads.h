#pragma once
// The threads of a server: each runs an io_context with the connections that live on it, and the
// first of them accepts for all.
//
// For the servers of fabric/ alone, so Asio may show here. Bounds: connections_max connections, and
// of one peer peer_connections_max; one beyond that, or beyond the process's descriptors, is
// refused with a word. The last sixteenth of them is kept free by connections that are idle: who
// has most of them loses the one that has been idle longest, so that no peer shuts others out by
// connections that it does not use. Deadlines are looked at each kTick.
#include <sys/types.h>

#include <asio.hpp>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/net/busy_poll.h"
#include "fabric/net/socket.h"
#include "fabric/net/turns.h"
#include "fabric/net/unix_listener.h"

namespace ems::fabric {

using StreamSocket = asio::generic::stream_protocol::socket;

// A connection of a server. Threading: one thread (the IoThread that it lives on).
class IoConnection {
 public:
  virtual ~IoConnection() = default;
  // Each kTick: closes itself when its present step has taken too long.
  virtual void CheckDeadline(TimePoint now) = 0;
  // The server stops: closes itself when no request is in hand.
  virtual void CloseIdle() {}
  // Since when it has had no request in hand; max: it has one, or is never closed for others.
  virtual TimePoint idle_since() const { return TimePoint::max(); }
  // Closes itself, which is idle, for others.
  virtual void MakeRoom() {}
  // Its thread has ended, and the io_context is about to go. The last call, from another thread.
  virtual void Abandon() = 0;
};

// Equal for connections from one address, or from one process of this host.
using PeerNumber = uint64_t;
// Of who is at the other end of a Unix socket, as SO_PEERCRED tells it: its process, or its user
// where that process is of another PID namespace, as in a container, and has no number here (0).
PeerNumber LocalPeer(pid_t pid, uid_t uid);

// The connections that there are, and those of each peer. Threading: thread-safe; a leaf lock.
class ConnectionCounts final {
 public:
  struct Count {
    uint32_t all = 0;
    uint32_t of_peer = 0;
  };
  Count Of(PeerNumber peer);
  void Add(PeerNumber peer);
  void Remove(PeerNumber peer);

 private:
  struct Counts {
    uint32_t all = 0;
    std::unordered_map<PeerNumber, uint32_t> of_peer;  // of those that have any
  };
  Guarded<Counts> counts_;
};

// Threading: one thread (its own), but for context().
class IoThread final {
 public:
  struct Kept {
    std::shared_ptr<IoConnection> connection;
    PeerNumber peer;
  };
  using At = std::list<Kept>::iterator;

  explicit IoThread(ConnectionCounts* counts) : counts_(*counts) {}
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  asio::io_context& context() { return context_; }
  // Keeps the thread awake for a moment when the next request is about to come.
  BusyPoll* busy_poll() { return &busy_poll_; }
  Turns* turns() { return &turns_; }
  // Keeps a connection that was accepted until LetGo, once, when it has ended.
  At Keep(std::shared_ptr<IoConnection> connection);
  void LetGo(At at);

 private:
  friend class IoThreads;
  // Any connection may let itself go meanwhile.
  void ForEach(const std::function<void(IoConnection&)>& deed);
  void Tick();
  void Run();
  // A connection is on its way here; LetGo, or Uncount where it did not come to Keep, ends that.
  void Count(PeerNumber peer);
  void Uncount(PeerNumber peer);
  // Closes the connection that has been idle longest, for kIdleLeast at least, of `of` or, without
  // one, of the peer that has most of those that could be closed; `asking` is false by then, so
  // that whoever finds room again may ask again. False: there is none. Cost: O(connections of the
  // thread).
  bool MakeRoom(TimePoint now, std::optional<PeerNumber> of, std::atomic<bool>* asking);

  BusyPoll busy_poll_;  // these two before the context, whose connections use them
  Turns turns_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  asio::steady_timer tick_{context_};
  std::list<Kept> connections_;
  PeerNumber adopting_ = 0;         // of the connection that Keep is about to be called for
  std::atomic<uint32_t> count_{0};  // of connections here; any thread
  ConnectionCounts& counts_;        // over all threads
  Thread thread_;
};

// Threading: one thread (holder); the callbacks run on its own.
class IoThreads final {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(100);
  // A client between two requests is not idle.
  static constexpr Duration kIdleLeast = std::chrono::milliseconds(200);

  struct Options {
    std::string name;  // threads are called "<name>-0", …
    uint32_t threads = 1;
    uint32_t connections_max = 1024;
    uint32_t peer_connections_max = UINT32_MAX;
    // Takes a connection, on the thread where it is to live; calls Keep.
    std::function<void(StreamSocket socket, IoThread* thread)> adopt;
    // Says no to one, without waiting; it is closed then.
    std::function<void(int socket)> refuse;
  };

  explicit IoThreads(Options options);
  ~IoThreads() { Stop(Duration::zero()); }
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  // Before Run. Listens on a host:port (port 0: any) and returns it as bound.
  // Errors: kInvalidArgument  bad address    kUnavailable  cannot listen there
  Result<std::string> ListenTcp(const std::string& listen);
  // The same on a Unix socket, whose file goes when the server stops.
  Status ListenUnix(const std::string& path, uint32_t mode);
  // Begins to serve.
  void Run();
  // Requests in hand over all connections, for the connections to count.
  std::atomic<int>* in_hand() { return &in_hand_; }
  // Accepts no more and closes idle connections, waits up to `patience` for requests in hand, then
  // joins the threads, abandons what is left, and destroys the io_contexts. Once.
  void Stop(Duration patience);

 private:
  struct Listener {
    Listener(asio::io_context* context, int fd) : socket(*context, fd), pause(*context) {}
    asio::posix::stream_descriptor socket;
    asio::steady_timer pause;
    size_t next = 0;  // of threads with equally few connections, the one to begin with
  };
  void Listen(int fd);
  void AwaitConnections(Listener* listener);
  void Accept(Listener* listener);
  void OnExhausted(Listener* listener);
  void Take(Fd socket, PeerNumber peer, Listener* listener);
  // Has an idle connection, of that peer or of any, make room: of the thread with the most, or of
  // the first one after it that has such a connection.
  void MakeRoom(std::optional<PeerNumber> of);
  // Asks that thread, and those after it where it has none, `left` threads in all.
  void AskForRoom(size_t thread, size_t left, std::optional<PeerNumber> of);
  // The thread with the fewest connections. Those of one listener go to different threads also
  // where another listener's came in between.
  IoThread* Choose(Listener* listener);
  void Adopt(Fd socket, PeerNumber peer, IoThread* thread);

  const Options options_;
  ConnectionCounts counts_;
  std::atomic<int> in_hand_{0};
  std::atomic<bool> asking_{false};  // the threads for room, one after the other
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::list<Listener> listeners_;       // on the first thread
  std::unique_ptr<UnixListener> unix_;  // holds the name
  Fd reserve_;  // closed to have a descriptor for saying no when there are no others
  bool stopped_ = false;
};

}  // namespace ems::fabric
