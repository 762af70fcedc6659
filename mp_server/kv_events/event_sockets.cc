#include "mp_server/kv_events/event_sockets.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "common/check.h"
#include "fabric/net/socket.h"

namespace ems::kv_events {
namespace {

constexpr int kAnswersMax = 64;       // that wait for a subscriber
constexpr int64_t kFrameMax = 256;    // of what comes from outside
constexpr int kRequestsWaiting = 64;  // of a subscriber; ZeroMQ makes it wait then

std::array<char, 8> BigEndian(uint64_t number) {
  std::array<char, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

// When a peer's host vanishes without a word, an idle connection ends after two minutes, and one
// with batches on their way when TCP gives them up. TCP's means and not ZeroMQ's
// (ZMQ_HEARTBEAT_IVL): subscribers in other libraries end a connection on a PING.
constexpr int kKeepAliveIdleSeconds = 60;
constexpr int kKeepAliveEverySeconds = 10;
constexpr int kKeepAliveProbes = 6;

// Closes a socket and never waits for what it has not sent.
class Socket final {
 public:
  Socket(void* context, int kind) : socket_(zmq_socket(context, kind)) {
    Set(ZMQ_LINGER, 0);
    Set(ZMQ_TCP_KEEPALIVE, 1);
    Set(ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveIdleSeconds);
    Set(ZMQ_TCP_KEEPALIVE_INTVL, kKeepAliveEverySeconds);
    Set(ZMQ_TCP_KEEPALIVE_CNT, kKeepAliveProbes);
    const int64_t frame_max = kFrameMax;
    if (socket_ != nullptr) zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &frame_max, sizeof(frame_max));
  }
  ~Socket() {
    if (socket_ != nullptr) zmq_close(socket_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void Set(int option, int value) {
    if (socket_ != nullptr) zmq_setsockopt(socket_, option, &value, sizeof(value));
  }

  Status Bind(const std::string& listen, std::string* bound) {
    EMS_ASSIGN_OR_RETURN(const fabric::Address address, fabric::ParseAddress(listen));
    if (address.is_unix())
      return Error(StatusCode::kInvalidArgument, "\"{}\" is not host:port", listen);
    const bool brackets = address.host.find(':') != std::string::npos;
    if (brackets) Set(ZMQ_IPV6, 1);
    const std::string host = brackets ? "[" + address.host + "]" : address.host;
    const std::string port = address.port == 0 ? "*" : std::to_string(address.port);
    if (socket_ == nullptr || zmq_bind(socket_, ("tcp://" + host + ":" + port).c_str()) != 0) {
      const int error = zmq_errno();
      return Error(StatusCode::kUnavailable, "cannot listen on {}: {}{}", listen,
                   zmq_strerror(error),
                   error == ENODEV ? " (an address of this machine, or *)" : "");
    }
    std::array<char, 256> text{};
    size_t size = text.size();
    zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &size);
    *bound = std::string(text.data()).substr(std::string_view("tcp://").size());
    return OkStatus();
  }

  bool Send(std::string_view bytes, int flags) const {
    return zmq_send(socket_, bytes.data(), bytes.size(), flags | ZMQ_DONTWAIT) >= 0;
  }
  void* get() const { return socket_; }

 private:
  void* const socket_;
};

struct Context {
  Context() : context(zmq_ctx_new()) { EMS_CHECK(context != nullptr, "no memory for ZeroMQ"); }
  ~Context() { zmq_ctx_term(context); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void* const context;
};

// One message, all of its frames; at most `most` of them are kept. False: there is none.
bool Receive(void* socket, size_t most, std::vector<std::string>* frames, bool* more_frames) {
  frames->clear();
  *more_frames = false;
  while (true) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return false;  // frames of a message come together: this is between two
    }
    if (frames->size() < most) {
      frames->emplace_back(static_cast<const char*>(zmq_msg_data(&message)),
                           zmq_msg_size(&message));
    } else {
      *more_frames = true;
    }
    const bool more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
    if (!more) return true;
  }
}

}  // namespace

struct EventSockets::Impl {
  Context context;  // before its sockets
  Socket pub{context.context, ZMQ_PUB};
  std::unique_ptr<Socket> router;
  std::string address, replay_address;
  std::vector<std::string> frames;
};

EventSockets::EventSockets(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventSockets::~EventSockets() = default;
const std::string& EventSockets::address() const { return impl_->address; }
const std::string& EventSockets::replay_address() const { return impl_->replay_address; }

Result<std::unique_ptr<EventSockets>> EventSockets::Open(const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->pub.Set(ZMQ_SNDHWM, static_cast<int>(std::min<uint32_t>(options.waiting_max, 1 << 20)));
  EMS_RETURN_IF_ERROR(impl->pub.Bind(options.listen, &impl->address));
  if (!options.replay_listen.empty()) {
    impl->router = std::make_unique<Socket>(impl->context.context, ZMQ_ROUTER);
    impl->router->Set(ZMQ_SNDHWM, kAnswersMax);
    impl->router->Set(ZMQ_RCVHWM, kRequestsWaiting);
    impl->router->Set(ZMQ_ROUTER_MANDATORY, 1);  // tells who is gone, and who does not keep up
    EMS_RETURN_IF_ERROR(impl->router->Bind(options.replay_listen, &impl->replay_address));
  }
  return std::unique_ptr<EventSockets>(new EventSockets(std::move(impl)));
}

void EventSockets::Publish(std::string_view topic, uint64_t sequence, std::string_view payload) {
  const std::array<char, 8> number = BigEndian(sequence);
  // A PUB socket drops a message for whom it cannot have; it fails for nobody.
  if (impl_->pub.Send(topic, ZMQ_SNDMORE) &&
      impl_->pub.Send({number.data(), number.size()}, ZMQ_SNDMORE))
    (void)impl_->pub.Send(payload, 0);
}

void EventSockets::Wait(Duration most) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(most).count();
  zmq_pollitem_t item{};
  item.socket = impl_->router == nullptr ? nullptr : impl_->router->get();
  item.events = ZMQ_POLLIN;
  (void)zmq_poll(&item, impl_->router == nullptr ? 0 : 1, std::max<int64_t>(ms, 0));
}

EventSockets::Heard EventSockets::Hear(Asker* asker, uint64_t* start) {
  bool more = false;
  if (impl_->router == nullptr || !Receive(impl_->router->get(), 3, &impl_->frames, &more))
    return Heard::kNothing;
  std::vector<std::string>& frames = impl_->frames;
  const bool delimited = frames.size() == 3 && frames[1].empty();
  if (more || (frames.size() != 2 && !delimited) || frames.back().size() != sizeof(uint64_t))
    return Heard::kForeign;
  *start = FromBigEndian(frames.back());
  *asker = {std::move(frames[0]), delimited};
  return Heard::kRequest;
}

EventSockets::Told EventSockets::Tell(const Asker& asker, uint64_t sequence,
                                      std::string_view payload) {
  const Socket& router = *impl_->router;
  if (!router.Send(asker.identity, ZMQ_SNDMORE))
    return zmq_errno() == EAGAIN ? Told::kLater : Told::kGone;
  // There is room for the whole message, or none of it would have been taken.
  const std::array<char, 8> number = BigEndian(sequence);
  if (asker.delimited && !router.Send({}, ZMQ_SNDMORE)) return Told::kGone;
  if (!router.Send({number.data(), number.size()}, ZMQ_SNDMORE)) return Told::kGone;
  return router.Send(payload, 0) ? Told::kSent : Told::kGone;
}

}  // namespace ems::kv_events
