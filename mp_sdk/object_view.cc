#include "mp_sdk/object_view.h"

#include "common/checksum.h"

namespace ems {

ObjectView& ObjectView::operator=(ObjectView&& other) noexcept {
  if (this == &other) return *this;
  Release();
  holder_ = std::move(other.holder_);
  hazard_ = other.hazard_;
  checksum_ = other.checksum_;
  valid_ = std::exchange(other.valid_, false);
  // A short copy lies in the string itself, so it moves with it.
  copy_ = std::move(other.copy_);
  bytes_ = holder_ != nullptr ? other.bytes_ : AsBytes(copy_);
  other.bytes_ = {};
  other.copy_.clear();
  return *this;
}

Status ObjectView::Verify() const {
  if (!valid_ || Checksum(bytes_) == checksum_) return OkStatus();
  return Error(StatusCode::kDataLoss, "value of {} bytes does not match its checksum",
               bytes_.size());
}

void ObjectView::Release() {
  if (holder_ != nullptr) holder_->Unpin(hazard_, bytes_.size());
  holder_.reset();
  bytes_ = {};
  copy_.clear();
  valid_ = false;
}

}  // namespace ems
