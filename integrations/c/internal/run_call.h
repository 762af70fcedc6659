#pragma once
// Runs a call of ems.h that also reports a code for each item: at once on the caller's thread, or
// later, on a completion queue.
//
// Invariant: the code returned, the thread's error text and the caller's codes agree, also when the
// call was refused.
#include <algorithm>
#include <memory>
#include <utility>

#include "integrations/c/internal/handles.h"
#include "integrations/c/internal/last_error.h"

namespace ems::capi {

// The caller's array for the codes, of `count`, or NULL.
struct CallerCodes {
  ems_status* codes = nullptr;
  size_t count = 0;
};

// `good`; a mistake is told in the codes, too.
inline Status Told(Status good, const CallerCodes& where) {
  if (!good.ok() && where.codes != nullptr && where.count <= EMS_BATCH_MAX) {
    std::fill_n(where.codes, where.count, CodeOf(good));
  }
  return good;
}

// make() → Result<std::unique_ptr<C>>, C a Call with a timeout(); tell(const C&, const Outcome&)
// takes what else the caller wants to know.
template <typename Handle, typename Make, typename Tell>
ems_status RunNow(const Handle* handle, std::string_view name, const CallerCodes& codes,
                  const Make& make, const Tell& tell) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(Told(CheckHandle(handle, name), codes));
    EMS_ASSIGN_OR_RETURN(const auto call, make());
    const Outcome outcome = call->Run(call->timeout());
    tell(*call, outcome);
    return outcome.status;
  });
}

template <typename Handle, typename Make>
ems_status RunLater(const Handle* handle, std::string_view name, ems_cq* queue, uint64_t tag,
                    const CallerCodes& codes, const Make& make) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(Told(CheckHandle(handle, name), codes));
    EMS_RETURN_IF_ERROR(Told(CheckHandle(queue, "queue"), codes));
    if (queue->core != handle->core) {
      return Told(
          Error(StatusCode::kInvalidArgument, "queue and {} are of different clients", name),
          codes);
    }
    EMS_ASSIGN_OR_RETURN(auto call, make());
    const Duration timeout = call->timeout();
    return queue->calls->Submit(tag, timeout, std::move(call));
  });
}

}  // namespace ems::capi
