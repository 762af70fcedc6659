#pragma once
// An object on its way to the SSD, and the tickets of the callers that wait for it.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "common/bytes.h"

namespace ems::ssd {

// Keeps an object's bytes where they are for as long as it lives. Threading: one thread at a time.
class DirtyObject {
 public:
  virtual ~DirtyObject() = default;
  // Whether the key still leads to these bytes. Any thread.
  virtual bool current() const = 0;
  virtual std::string_view key() const = 0;
  // From kAlignedFrom bytes up it starts on a block, and the rest of its last block can be read.
  virtual ConstBytes value() const = 0;
  virtual uint64_t checksum() const = 0;
  // One for each piece; PieceCount(value().size()) of them.
  virtual std::span<const uint64_t> piece_sums() const = 0;
  virtual uint16_t slot() const = 0;
};

// One outcome that a caller waits for. Threading: thread-safe; Finish is called once.
class Ticket final {
 public:
  enum class State : uint8_t { kWaiting, kDone, kFailed };
  // `wake` is called on another thread when the outcome is there; it must not block. It is not
  // called for a ticket that has failed already when it is handed out: look at the state before
  // waiting.
  explicit Ticket(std::function<void()> wake) : wake_(std::move(wake)) {}
  State state() const { return state_.load(std::memory_order_acquire); }
  void Finish(bool ok) {
    state_.store(ok ? State::kDone : State::kFailed, std::memory_order_release);
    if (wake_) wake_();
  }
  // For its creator: it has failed before any caller could wait for it.
  void FailAtOnce() { state_.store(State::kFailed, std::memory_order_release); }

 private:
  const std::function<void()> wake_;
  std::atomic<State> state_{State::kWaiting};
};
using TicketPtr = std::shared_ptr<Ticket>;

inline void Finish(const TicketPtr& ticket, bool ok) {
  if (ticket != nullptr) ticket->Finish(ok);
}

}  // namespace ems::ssd
