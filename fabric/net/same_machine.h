#pragma once
// Whether two processes run on one kernel, by what HostId() (socket.h) says of each.
#include <string_view>

namespace ems::fabric {

// The names of their hosts may differ: containers have their own. True does not say that one has
// the files of the other: at the path of a Unix socket there may be none, or another server's.
constexpr bool OnOneMachine(std::string_view host_id, std::string_view other) {
  // "name/boot"; a boot that could not be read tells no machine from another.
  const auto boot = [](std::string_view id) {
    const size_t begin = id.rfind('/') + 1;
    return begin < id.size() ? id.substr(begin) : id;
  };
  return boot(host_id) == boot(other);
}

}  // namespace ems::fabric
