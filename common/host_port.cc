#include "common/host_port.h"

#include <algorithm>

#include "common/bytes.h"
#include "common/parse_number.h"

namespace ems {

Result<HostPort> ParseHostPort(std::string_view text) {
  const auto wrong = [text](std::string_view why) {
    return Error(StatusCode::kInvalidArgument, "address \"{}\" is not host:port: {}",
                 Printable(text), why);
  };
  if (text.empty()) return wrong("it is empty");
  if (text.find('/') != std::string_view::npos)
    return wrong("write it without \"http://\" and without a path");
  if (text.find(' ') != std::string_view::npos) return wrong("there is a blank in it");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.ends_with(']')) {
    if (text.find_first_not_of("0123456789") == std::string_view::npos)
      return wrong(fmt::format("the host is missing, write HOST:{}", Printable(text)));
    return wrong(fmt::format("the port is missing, write {}:PORT", Printable(text)));
  }
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.empty()) return wrong(fmt::format("the host is missing, write HOST{}", Printable(text)));
  if (host.size() > 2 && host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of("[]:") != std::string_view::npos) {
    return wrong("an IPv6 host goes in brackets, [::1]:80");
  }
  if (port.empty()) return wrong(fmt::format("the port is missing, write {}PORT", Printable(text)));
  const auto number = ParseNumber<uint16_t>(port);
  if (!number) return wrong("the port is a number of 0 to 65535");
  return HostPort{.host = std::string(host), .port = *number};
}

std::vector<std::string> SplitAddresses(std::string_view text) {
  std::vector<std::string> addresses;
  while (true) {
    const size_t first = text.find_first_not_of(", ");
    if (first == std::string_view::npos) return addresses;
    text.remove_prefix(first);
    const size_t end = std::min(text.find_first_of(", "), text.size());
    addresses.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace ems
