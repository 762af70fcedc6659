// Any messages, as requests to tell again what happened to blocks: each is counted once, as what it
// is; and a well-formed request, in the midst of them, gets an answer without a hole that ends.
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "mp_server/kv_events/event_publisher.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems::kv_events {
namespace {

using testing::FuzzInput;

constexpr size_t kMessagesMax = 16;
constexpr size_t kFrameBytesMax = 256;  // of a longer one ZeroMQ hangs up before anybody sees it
constexpr Duration kPatience = std::chrono::seconds(8);
constexpr int kPatienceMs = 8000;

std::string BigEndian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}
uint64_t Number(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

// A DEALER that is connected to the publisher. Threading: one thread.
class Dealer final {
 public:
  explicit Dealer(const std::string& address)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)) {
    const int none = 0;
    for (const int option : {ZMQ_LINGER, ZMQ_RCVHWM, ZMQ_SNDHWM})
      EMS_CHECK(zmq_setsockopt(socket_, option, &none, sizeof(none)) == 0);
    EMS_CHECK(zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &kPatienceMs, sizeof(kPatienceMs)) == 0);
    EMS_CHECK(zmq_connect(socket_, ("tcp://" + address).c_str()) == 0);
  }
  ~Dealer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Dealer(const Dealer&) = delete;
  Dealer& operator=(const Dealer&) = delete;

  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      EMS_CHECK(zmq_send(socket_, frames[i].data(), frames[i].size(), more) >= 0);
    }
  }
  // The frames of one message; none when there is none in time.
  std::vector<std::string> Receive(int flags = 0) {
    std::vector<std::string> frames;
    for (bool more = true; more;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      int received = -1;
      do {  // libFuzzer's timer interrupts it
        received = zmq_msg_recv(&message, socket_, flags);
      } while (received < 0 && zmq_errno() == EINTR);
      if (received < 0) return {};
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message) != 0;
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* const context_;
  void* const socket_;
};

// A publisher of blocks that come and go. Shared by all inputs. Threading: one thread.
class World final {
 public:
  World() {
    EventPublisher::Options options;
    options.sockets = {"127.0.0.1:0", "127.0.0.1:0", 1000};
    options.topic = "kv";
    options.replay_batches = 8;
    options.batch_every = std::chrono::milliseconds(1);
    options.heartbeat_every = Duration(0);
    options.events = &events_;
    options.list = [this](ListCursor* cursor, std::vector<BlockEvent>* found) {
      auto blocks = blocks_.Lock();
      const auto at = blocks->lower_bound(cursor->place);
      if (at == blocks->end()) return false;
      found->push_back({Hash128{*at, 0}, Medium::kDram, true});
      cursor->place = *at + 1;
      return true;
    };
    options.metrics.foreign = foreign_ = registry_.AddCounter("foreign", "");
    options.metrics.replays = replays_ = registry_.AddCounter("replays", "");
    options.metrics.states = states_ = registry_.AddCounter("states", "");
    options.metrics.refused = refused_ = registry_.AddCounter("refused", "");
    auto started = EventPublisher::Start(options);
    EMS_CHECK(started.ok(), "{}", ToString(started.status()));
    publisher_ = *std::move(started);
    stranger_ = std::make_unique<Dealer>(publisher_->replay_address());
    asker_ = std::make_unique<Dealer>(publisher_->replay_address());
  }

  // Sends one message that may be anything.
  void Disturb(FuzzInput* input) {
    std::vector<std::string> frames(1 + input->TakeUpTo(3));
    for (std::string& frame : frames) {
      const auto what = input->Take<uint8_t>();
      if (what % 4 == 0) frame = BigEndian(last_ + what / 4 - 32);
      if (what % 4 == 1) frame = input->TakeText(8);
      if (what % 4 == 2) frame = input->TakeText(input->TakeUpTo(kFrameBytesMax));
    }
    stranger_->Send(frames);
    const bool delimited = frames.size() == 2 && frames[0].empty();
    const bool asks = (frames.size() == 1 || delimited) && frames.back().size() == 8;
    ++(asks ? requests_sent_ : foreign_sent_);
  }
  void Change(uint64_t number, bool stored) {
    auto blocks = blocks_.Lock();
    stored ? (void)blocks->insert(number) : (void)blocks->erase(number);
    events_.Push({Hash128{number, 0}, Medium::kDram, stored});
  }
  // Asks from a number near the last one, and reads the answer.
  void Ask(uint64_t start) {
    asker_->Send({BigEndian(start)});
    ++requests_sent_;
    uint64_t before = 0;
    bool state = false;
    for (size_t i = 0;; ++i) {
      const std::vector<std::string> frames = asker_->Receive();
      EMS_CHECK(frames.size() == 2 && frames[0].size() == 8, "{} frames", frames.size());
      const uint64_t number = Number(frames[0]);
      if (number == kEndOfAnswer) {
        EMS_CHECK(frames[1].empty());
        break;
      }
      const bool cleared = frames[1].find("AllBlocksCleared") != std::string::npos;
      if (cleared) {  // the present state; also where the rest has become too old on the way
        EMS_CHECK(number >= before);
      } else if (i == 0) {
        EMS_CHECK(number == start);
      } else {
        EMS_CHECK(number == before + 1 || (state && number == before));
      }
      state = cleared || (state && number == before);
      before = number;
    }
    if (before != 0) last_ = before;
  }
  uint64_t last() const { return last_; }
  // Nothing is left out and nothing counts twice.
  void Settle() {
    const auto all = [&] { return replays_.value() + states_.value() + refused_.value(); };
    const Deadline deadline = Deadline::After(kPatience);
    while (all() + foreign_.value() < static_cast<double>(requests_sent_ + foreign_sent_)) {
      EMS_CHECK(!deadline.Passed(), "requests that nobody heard");
      std::this_thread::yield();
    }
    EMS_CHECK(all() == static_cast<double>(requests_sent_));
    EMS_CHECK(foreign_.value() == static_cast<double>(foreign_sent_));
    while (!stranger_->Receive(ZMQ_DONTWAIT).empty()) {
    }
  }

 private:
  BlockEvents events_{1 << 12};
  Guarded<std::set<uint64_t>> blocks_;
  MetricsRegistry registry_;
  Counter foreign_, replays_, states_, refused_;
  std::unique_ptr<EventPublisher> publisher_;
  std::unique_ptr<Dealer> stranger_, asker_;
  uint64_t requests_sent_ = 0;
  uint64_t foreign_sent_ = 0;
  uint64_t last_ = 0;  // the newest batch that was told
};

}  // namespace
}  // namespace ems::kv_events

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ems::kv_events::World world;
  ems::testing::FuzzInput input(data, size);
  for (size_t i = 0; i < ems::kv_events::kMessagesMax && !input.empty(); ++i) {
    const auto what = input.Take<uint8_t>();
    if (what % 4 == 3) {
      world.Change(what / 8, what / 4 % 2 == 0);
    } else {
      world.Disturb(&input);
    }
  }
  const auto start = input.Take<uint8_t>();
  world.Ask(start == 0 ? ems::kv_events::kStateNow : world.last() + start - 32);
  world.Settle();
  return 0;
}
