#include "mp_controller/publish/encoded_update.h"

#include <utility>

#include "common/check.h"

namespace ems::controller {

EncodedUpdate::Bytes EncodedUpdate::Get() {
  std::call_once(made_, [this] {
    bytes_ = std::exchange(make_, nullptr)();
    EMS_CHECK(bytes_ != nullptr, "an update that is nothing");
  });
  return bytes_;
}

}  // namespace ems::controller
