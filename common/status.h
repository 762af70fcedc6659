#pragma once
// The one door to absl's Status: error values, and helpers to build and pass them on.
//
// One meaning per code, everywhere: NotFound a miss · FailedPrecondition stale view or namespace ·
// ResourceExhausted no room, quota or queue full · Unavailable peer gone or fenced · DataLoss
// checksum · Aborted a change that may or may not have been made · DeadlineExceeded ·
// InvalidArgument · AlreadyExists · PermissionDenied / Unauthenticated · Unimplemented · OutOfRange
// buffer or range too small · Internal. A miss carries no text, so that it allocates nothing.
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace ems {

using Status = absl::Status;
using StatusCode = absl::StatusCode;
template <typename T>
using Result = absl::StatusOr<T>;

inline Status OkStatus() { return Status(); }
// A miss: no text, no allocation.
inline Status Miss() { return Status(StatusCode::kNotFound, absl::string_view()); }

// Builds an error. Debian's absl has a string_view of its own, so std::string_view is bridged here.
inline Status Error(StatusCode code, std::string_view what) {
  return Status(code, absl::string_view(what.data(), what.size()));
}
template <typename... Args>
requires(sizeof...(Args) > 0) Status
    Error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

inline std::string_view Message(const Status& status) {
  return std::string_view(status.message().data(), status.message().size());
}

// "DEADLINE_EXCEEDED", for logs, metrics labels and tools. The view points to static memory.
std::string_view CodeName(StatusCode code);
// "NOT_FOUND: text", or "OK".
std::string ToString(const Status& status);
// The same code with "context: " in front of the text. OK stays OK.
Status Prefixed(const Status& status, std::string_view context);

}  // namespace ems

#define EMS_RETURN_IF_ERROR(expr)                          \
  do {                                                     \
    if (auto ems_st_ = (expr); !ems_st_.ok()) [[unlikely]] \
      return ems_st_;                                      \
  } while (false)

#define EMS_CONCAT_INNER_(a, b) a##b
#define EMS_CONCAT_(a, b) EMS_CONCAT_INNER_(a, b)
#define EMS_ASSIGN_OR_RETURN(lhs, expr) \
  EMS_ASSIGN_OR_RETURN_IMPL_(EMS_CONCAT_(ems_res_, __LINE__), lhs, expr)
#define EMS_ASSIGN_OR_RETURN_IMPL_(res, lhs, expr) \
  auto res = (expr);                               \
  if (!res.ok()) [[unlikely]]                      \
    return res.status();                           \
  lhs = std::move(res).value()
