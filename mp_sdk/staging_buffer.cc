#include "mp_sdk/staging_buffer.h"

namespace ems {

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  memory_ = std::move(other.memory_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void StagingBuffer::Release() {
  if (memory_ != nullptr) memory_->Free(bytes_);
  memory_.reset();
  bytes_ = {};
}

}  // namespace ems
