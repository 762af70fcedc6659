#pragma once
// The boundary from C++ to C: a Status becomes a code and an error text of the thread, and no
// exception passes.
//
// Invariant: nothing here allocates, so that "out of memory" can be said. Bound: kTextMax bytes of
// text a thread.
#include <exception>
#include <new>
#include <string_view>

#include "common/status.h"
#include "integrations/c/ems.h"

namespace ems::capi {

inline constexpr size_t kTextMax = 511;

// Keeps `text` (cut to kTextMax) as the calling thread's and returns `code`.
ems_status Fail(ems_status code, std::string_view text) noexcept;
// The same for a Status; EMS_OK leaves the thread's text alone. A miss, which has no text, gets
// one.
ems_status Report(const Status& status) noexcept;
// The calling thread's text; "" when there was none. Valid until its next Fail or Report.
const char* LastError() noexcept;
// The code of `status`; numbers are the same.
inline ems_status CodeOf(const Status& status) noexcept {
  return static_cast<ems_status>(status.code());
}

// Runs `work`, which returns an ems_status, and turns whatever it throws into one.
template <typename Work>
ems_status AtBoundary(const Work& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(EMS_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& thrown) {
    return Fail(EMS_INTERNAL, thrown.what());
  } catch (...) {
    return Fail(EMS_INTERNAL, "an exception of unknown type");
  }
}

// A function of ems.h: runs `work`, which returns a Status, and reports it.
template <typename Work>
ems_status ReportOf(const Work& work) noexcept {
  return AtBoundary([&] { return Report(work()); });
}

}  // namespace ems::capi
