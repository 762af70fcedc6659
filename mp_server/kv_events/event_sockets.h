#pragma once
// The two sockets of the event stream, and the one door to ZeroMQ.
//
//   PUB      topic · sequence (8 bytes, big-endian) · payload        to all subscribers
//   ROUTER   a request is the sequence to begin with, 8 bytes, with or without an empty frame in
//            front; the answer is many messages: [empty frame ·] sequence · payload
//
// Nothing waits for a peer: who does not keep up misses messages (PUB), or is asked again later
// (ROUTER). Bound: `waiting_max` messages to each subscriber, 64 to each who asks; frames of more
// than 256 bytes from outside end their connection.
// NOT bounded, as ZeroMQ offers no means: connections; the frames of one message from outside,
// which wait for its last one (its limits count messages, and bytes of a frame); subscriptions of a
// connection (with ZMQ_XPUB_MANUAL it keeps those, too, that nobody accepted). A process that
// reaches a port can take all memory: docs/engines/KV_EVENTS.md says where to bind.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace ems::kv_events {

// Whom to answer.
struct Asker {
  std::string identity;
  bool delimited = true;  // an empty frame stands in front of the request, and of each answer
};

// Threading: one thread at a time.
class EventSockets final {
 public:
  struct Options {
    std::string listen;         // host:port; port 0: any
    std::string replay_listen;  // empty: nobody can ask
    uint32_t waiting_max = 1000;
  };
  // Errors: kInvalidArgument  not a host:port    kUnavailable  the address cannot be bound
  static Result<std::unique_ptr<EventSockets>> Open(const Options& options);
  // Drops what is on its way, at once.
  ~EventSockets();
  EventSockets(const EventSockets&) = delete;
  EventSockets& operator=(const EventSockets&) = delete;

  // As bound; the second is empty when nobody can ask.
  const std::string& address() const;
  const std::string& replay_address() const;

  void Publish(std::string_view topic, uint64_t sequence, std::string_view payload);
  // Waits until a request comes, `most` at most.
  void Wait(Duration most);
  enum class Heard : uint8_t { kNothing, kRequest, kForeign };
  // One request, without waiting. kForeign: something else was sent there.
  Heard Hear(Asker* asker, uint64_t* start);
  enum class Told : uint8_t { kSent, kLater, kGone };
  Told Tell(const Asker& asker, uint64_t sequence, std::string_view payload);

 private:
  struct Impl;
  explicit EventSockets(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::kv_events
