#pragma once
// One message of the watch as it travels, made once however many streams send it.
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace ems::controller {

// Threading: thread-safe.
class EncodedUpdate final {
 public:
  using Bytes = std::shared_ptr<const std::string>;

  // `make` runs at the first Get, on its caller's thread; what it refers to must live until then.
  explicit EncodedUpdate(std::function<Bytes()> make) : make_(std::move(make)) {}
  EncodedUpdate(const EncodedUpdate&) = delete;
  EncodedUpdate& operator=(const EncodedUpdate&) = delete;

  // Never null, always the same. Callers that come while it is made wait for it.
  Bytes Get();

 private:
  std::function<Bytes()> make_;  // empty once it has run
  std::once_flag made_;
  Bytes bytes_;
};

}  // namespace ems::controller
