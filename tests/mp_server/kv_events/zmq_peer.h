#pragma once
// A subscriber, or one who asks, as other programs are: raw ZeroMQ.
#include <gtest/gtest.h>
#include <zmq.h>

#include <string>
#include <vector>

namespace ems::kv_events {

// Threading: one thread.
class ZmqPeer final {
 public:
  // `kind`: ZMQ_SUB (of all topics), ZMQ_DEALER, …
  ZmqPeer(int kind, const std::string& address)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, kind)) {
    const int none = 0, patience = 10'000;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof(none));
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &patience, sizeof(patience));
    if (kind == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, ("tcp://" + address).c_str()), 0) << zmq_strerror(zmq_errno());
  }
  ~ZmqPeer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  ZmqPeer(const ZmqPeer&) = delete;
  ZmqPeer& operator=(const ZmqPeer&) = delete;

  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      EXPECT_GE(zmq_send(socket_, frames[i].data(), frames[i].size(),
                         i + 1 < frames.size() ? ZMQ_SNDMORE : 0),
                0);
    }
  }
  // The frames of one message; none after 10 s.
  std::vector<std::string> Receive() {
    std::vector<std::string> frames;
    while (true) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, 0) < 0) return {};
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      const bool more = zmq_msg_more(&message) != 0;
      zmq_msg_close(&message);
      if (!more) return frames;
    }
  }

 private:
  void* const context_;
  void* const socket_;
};

inline std::string BigEndian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}
inline uint64_t Number(const std::string& bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

}  // namespace ems::kv_events
