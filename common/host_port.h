#pragma once
// "host:port" as people write it; an IPv6 host stands in brackets.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems {

struct HostPort {
  std::string host;  // without brackets, never empty
  uint16_t port = 0;
};
// Errors: kInvalidArgument  saying what is missing or wrong, and what to write
Result<HostPort> ParseHostPort(std::string_view text);
// Several, separated by commas or blanks, as they are written; none is checked.
std::vector<std::string> SplitAddresses(std::string_view text);

}  // namespace ems
