#pragma once
// The streams that are open to one peer, by the ids of their tasks, and whether new ones may be
// opened.
//
// Bound: kStreamsMax.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "common/guarded.h"
#include "common/status.h"

namespace ems::pdc::rpc {

class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // It ends soon, with this reason, unless it has ended or has one. Does not block.
  virtual void Interrupt(const Status& why) = 0;
};

// Threading: thread-safe.
class StreamTable final {
 public:
  static constexpr size_t kStreamsMax = 1024;

  // `on_broken` hears of each stream that broke, before the stream's task does: on gRPC's threads,
  // until WaitUntilEmpty has returned; it must not block.
  explicit StreamTable(std::function<void(const Status& why)> on_broken = {})
      : on_broken_(std::move(on_broken)) {}

  // Errors: why it is closed    kAlreadyExists    kResourceExhausted
  Status Add(uint64_t id, std::shared_ptr<OpenStream> stream);
  // The id may be used again: before the task's last event.
  void Forget(uint64_t id);
  // A stream ended because the peer is not there; before Gone.
  void Broken(const Status& why) const {
    if (on_broken_) on_broken_(why);
  }
  // gRPC is done with a stream that was added; once for each.
  void Gone();

  void Interrupt(uint64_t id, const Status& why);
  void Open();
  // No new ones; those that there are end.
  void Close(const Status& why);
  // Waits until all streams have gone.
  void WaitUntilEmpty();

 private:
  struct State {
    Status closed = Error(StatusCode::kUnavailable, "no connection yet");
    std::map<uint64_t, std::shared_ptr<OpenStream>> streams;
    size_t alive = 0;
  };
  const std::function<void(const Status& why)> on_broken_;
  Guarded<State> state_;
  std::condition_variable changed_;
};

}  // namespace ems::pdc::rpc
