#pragma once
// A handle of the SDK that Python can close, or drop in a child of fork().
#include <memory>
#include <utility>

#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

// Threading: as T; Close and Abandon by one thread, with the GIL.
template <typename T>
class Closable {
 public:
  explicit Closable(std::shared_ptr<T> held) : held_(std::move(held)) {}
  bool closed() const { return held_ == nullptr; }
  // What runs keeps what it needs.
  void Close() {
    std::shared_ptr<T> last = std::move(held_);
    held_.reset();
    const GilRelease free;
    last.reset();
  }
  // In a child of fork(): its threads are not there, so that nothing may be ended.
  void Abandon() {
    if (held_ == nullptr) return;
    // Leaked on purpose: its end would wait for threads that only the parent has.
    (void)std::make_unique<std::shared_ptr<T>>(held_).release();
    held_.reset();
  }

 protected:
  // What a call works on, kept alive by it. Raises Unavailable when closed. The GIL is held.
  std::shared_ptr<T> UseOr(const char* what) const {
    if (held_ == nullptr) Raise(Error(StatusCode::kUnavailable, "{} is closed", what));
    return held_;
  }
  std::shared_ptr<T> held_;
};

}  // namespace ems::python
