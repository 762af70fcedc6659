#pragma once
// A value in place: the bytes of an object as they lie in the server's memory, held there while
// this lives.
//
// Without a mapping (another host, a server that does not share) it is a verified copy that it
// owns; callers need not care. Bound: one hazard slot of a session, or one copy.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"

namespace ems {

namespace internal {
class ShmSession;
}

// Move-only. Must not outlive the Client it came from. Threading: one thread at a time (holder);
// the bytes may be read from any.
class ObjectView final {
 public:
  ObjectView() = default;
  ObjectView(ObjectView&& other) noexcept { *this = std::move(other); }
  ObjectView& operator=(ObjectView&& other) noexcept;
  ~ObjectView() { Release(); }

  // Valid until the view goes or is moved from. Read-only memory when mapped().
  ConstBytes bytes() const { return bytes_; }
  uint64_t size_bytes() const { return bytes_.size(); }
  // XXH3 over the value's pieces (common/checksum.h), as the server computed it at the Put.
  uint64_t checksum() const { return checksum_; }
  // True: the server's memory. False: a copy.
  bool mapped() const { return session_ != nullptr; }
  // Computes the checksum now. Cost: one pass over the bytes. Errors: kDataLoss
  Status Verify() const;
  // Lets the object go before the view ends; bytes() is empty afterwards.
  void Release();
  explicit operator bool() const { return valid_; }

 private:
  friend class internal::ShmSession;
  friend class Client;
  std::shared_ptr<internal::ShmSession> session_;  // keeps the mapping
  uint32_t hazard_ = 0;                            // its slot
  ConstBytes bytes_;
  uint64_t checksum_ = 0;
  std::string copy_;
  bool valid_ = false;
};

}  // namespace ems
