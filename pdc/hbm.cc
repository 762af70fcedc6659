#include "pdc/hbm.h"

namespace ems::pdc {

Result<Hbm> Hbm::Take(fabric::NpuDevice* device, uint64_t bytes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "no bytes of HBM");
  EMS_ASSIGN_OR_RETURN(const fabric::HbmAddress address, device->Allocate(bytes));
  // Owned before anything can fail.
  Hbm hbm(device, address, {});
  EMS_ASSIGN_OR_RETURN(hbm.memory_, device->KernelView(address, bytes));
  return hbm;
}

Hbm::Hbm(Hbm&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      address_(other.address_),
      memory_(std::exchange(other.memory_, {})) {}

Hbm& Hbm::operator=(Hbm&& other) noexcept {
  if (this == &other) return *this;
  Free();
  device_ = std::exchange(other.device_, nullptr);
  address_ = other.address_;
  memory_ = std::exchange(other.memory_, {});
  return *this;
}

void Hbm::Free() {
  if (device_ != nullptr) device_->Free(address_);
  device_ = nullptr;
}

}  // namespace ems::pdc
