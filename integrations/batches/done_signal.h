#pragma once
// The eventfd by which a queue says that something of it is done.
//
// Invariant: it is readable as long as something is done that nobody has taken, if Set follows each
// time that something is put there and Reset comes before each look.
#include <utility>

#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::batches {

// Movable. Threading: thread-safe.
class DoneSignal final {
 public:
  // Errors: kResourceExhausted  no descriptor
  static Result<DoneSignal> Open();

  int fd() const { return fd_.get(); }
  // Neither blocks nor allocates.
  void Set() const;
  void Reset() const;

 private:
  explicit DoneSignal(fabric::Fd fd) : fd_(std::move(fd)) {}
  fabric::Fd fd_;
};

}  // namespace ems::batches
