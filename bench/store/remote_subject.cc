#include "bench/store/remote_subject.h"

#include <algorithm>
#include <span>

namespace ems::bench {
namespace {

constexpr uint64_t kRemoveBatch = 4096;

}  // namespace

Status RemoteSubject::Call(SideOp op, uint32_t /*caller*/, const Stretch& stretch, uint64_t first,
                           uint64_t count) {
  for (uint64_t i = first; i < first + count; ++i) {
    if (op == SideOp::kPutOrdinary) {
      EMS_RETURN_IF_ERROR(
          client_->Put(stretch.keys[i], ConstBytes(stretch.Buffer(i)), {.overwrite = true}));
      continue;
    }
    EMS_ASSIGN_OR_RETURN(const uint64_t bytes, client_->Get(stretch.keys[i], stretch.Buffer(i)));
    if (bytes != stretch.value_bytes) {
      return Error(StatusCode::kDataLoss, "{} bytes came back, {} were stored", bytes,
                   stretch.value_bytes);
    }
  }
  return OkStatus();
}

Status RemoteSubject::RemoveAll(const ValueSet& values) {
  for (uint64_t first = 0; first < values.count(); first += kRemoveBatch) {
    std::vector<KeyItem> items;
    for (uint64_t i = first; i < std::min(values.count(), first + kRemoveBatch); ++i)
      items.push_back({.key = values.key(i)});
    for (const Status& status : client_->MultiRemove(items)) {
      if (status.code() != StatusCode::kNotFound) EMS_RETURN_IF_ERROR(status);
    }
  }
  return OkStatus();
}

}  // namespace ems::bench
