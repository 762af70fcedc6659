#pragma once
// Values from and to files: read whole within a limit, written beside their name and renamed, so
// that nobody sees half of one.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::emsctl {

using OnBytes = std::function<void(uint64_t)>;  // bytes so far; may be empty

// Reads `path` whole; "-" is standard input.
// Errors: kNotFound  no such file    kOutOfRange  more than `bytes_max`    kInvalidArgument  a
// folder    kInternal  reading failed
Result<std::string> ReadValue(const std::string& path, uint64_t bytes_max, const OnBytes& on_bytes);

// Writes `value` to a temporary file in the same folder, mode 0666 less the umask, and renames it
// to `path`. After an error `path` is as it was and the temporary is gone. Errors: kInternal  names
// the file and why
Status WriteValue(const std::string& path, std::string_view value, const OnBytes& on_bytes);

}  // namespace ems::emsctl
