#include "integrations/c/internal/last_error.h"

#include <algorithm>
#include <cstring>

namespace ems::capi {
namespace {

// Plain bytes: no constructor to run in a foreign thread, no destructor after dlclose.
thread_local char text_of_thread[kTextMax + 1];

}  // namespace

ems_status Fail(ems_status code, std::string_view text) noexcept {
  const size_t size = std::min(text.size(), kTextMax);
  std::memmove(text_of_thread, text.data(), size);
  text_of_thread[size] = '\0';
  return code;
}

ems_status Report(const Status& status) noexcept {
  if (status.ok()) return EMS_OK;
  const std::string_view text = Message(status);
  if (!text.empty()) return Fail(CodeOf(status), text);
  return Fail(CodeOf(status), status.code() == StatusCode::kNotFound
                                  ? std::string_view("no such key")
                                  : CodeName(status.code()));
}

const char* LastError() noexcept { return text_of_thread; }

}  // namespace ems::capi
