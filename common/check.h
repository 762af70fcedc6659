#pragma once
// EMS_CHECK: our own bugs. Logs what was expected and aborts, in release builds too: a daemon that
// lost an invariant must not go on serving bytes.
#include <fmt/core.h>

#include <string>
#include <string_view>

namespace ems::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);
inline std::string CheckMessage() { return {}; }
template <typename... Args>
std::string CheckMessage(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace ems::internal

// EMS_CHECK(used <= capacity, "used {} of {}", used, capacity);
#define EMS_CHECK(condition, ...)                                               \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::ems::internal::CheckFailed(__FILE__, __LINE__, #condition,              \
                                   ::ems::internal::CheckMessage(__VA_ARGS__)); \
  } while (false)
