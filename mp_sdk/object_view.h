#pragma once
// A value in place: the bytes of an object as they lie in the server's memory, held there while
// this lives.
//
// Without a mapping (another host, a server that does not share) it is a verified copy that it
// owns; callers need not care. Bound: one hazard pointer of a session, or one copy.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"

namespace ems {

// The owner of a mapped view's memory, which is told when the view goes. Threading: thread-safe.
class ViewHolder {
 public:
  virtual ~ViewHolder() = default;
  // Of a view of so many bytes that is held by this hazard pointer.
  virtual void Unpin(uint32_t hazard, uint64_t bytes) = 0;
};

// Move-only. Must not outlive the Client it came from. Threading: one thread at a time (holder);
// the bytes may be read from any.
class ObjectView final {
 public:
  ObjectView() = default;
  // A copy.
  ObjectView(std::string copy, uint64_t checksum)
      : checksum_(checksum), copy_(std::move(copy)), valid_(true) {
    bytes_ = AsBytes(copy_);
  }
  // `bytes` of memory that `holder` keeps mapped and in place until it is told otherwise.
  ObjectView(std::shared_ptr<ViewHolder> holder, uint32_t hazard, ConstBytes bytes,
             uint64_t checksum)
      : holder_(std::move(holder)),
        hazard_(hazard),
        bytes_(bytes),
        checksum_(checksum),
        valid_(true) {}
  ObjectView(ObjectView&& other) noexcept { *this = std::move(other); }
  ObjectView& operator=(ObjectView&& other) noexcept;
  ~ObjectView() { Release(); }

  // Valid until the view goes or is moved from. Read-only memory when mapped().
  ConstBytes bytes() const { return bytes_; }
  uint64_t size_bytes() const { return bytes_.size(); }
  // XXH3 over the value's pieces (common/checksum.h), as the server computed it at the Put.
  uint64_t checksum() const { return checksum_; }
  // True: the server's memory. False: a copy.
  bool mapped() const { return holder_ != nullptr; }
  // Computes the checksum now. Cost: one pass over the bytes. Errors: kDataLoss
  Status Verify() const;
  // Lets the object go before the view ends; bytes() is empty afterwards.
  void Release();
  explicit operator bool() const { return valid_; }

 private:
  std::shared_ptr<ViewHolder> holder_;  // null: a copy
  uint32_t hazard_ = 0;
  ConstBytes bytes_;
  uint64_t checksum_ = 0;
  std::string copy_;
  bool valid_ = false;
};

}  // namespace ems
