#pragma once
// Peers with an address of their own on this host: 127.0.0.1, 127.0.0.2, …
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "common/check.h"
#include "fabric/net/socket.h"

namespace ems::testing {

// A blocking connection from the loopback address `from` to "127.0.0.1:port".
inline fabric::Fd ConnectFrom(const char* from, const std::string& address) {
  fabric::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in end{};
  end.sin_family = AF_INET;
  const bool bound = ::inet_pton(AF_INET, from, &end.sin_addr) == 1 &&
                     ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&end), sizeof(end)) == 0;
  EMS_CHECK(bound, "{}", from);
  end.sin_port = htons(fabric::ParseAddress(address)->port);
  end.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&end), sizeof(end));
  EMS_CHECK(connected == 0, "{} to {}", from, address);
  return fd;
}

}  // namespace ems::testing
