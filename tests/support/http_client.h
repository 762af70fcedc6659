#pragma once
// A plain HTTP client for tests of servers: one request a connection, the answer as it came.
//
// Bound: WirePeer's timeouts.
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/support/wire_peer.h"

namespace ems::testing {

struct HttpAnswer {
  int status = 0;
  std::string head;
  std::string body;    // without chunk frames
  bool whole = false;  // its end came
};

inline std::string HttpText(std::string_view method, std::string_view path, std::string_view body,
                            std::string_view headers = {}) {
  std::string text(method);
  text.append(" ").append(path).append(" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
  if (method == "POST") {
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return text.append(headers).append("\r\n").append(body);
}

inline HttpAnswer ReadHttpAnswer(std::string_view text) {
  HttpAnswer answer;
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string_view::npos || !text.starts_with("HTTP/1.1 ")) return answer;
  answer.head = text.substr(0, end + 2);
  answer.status = std::atoi(answer.head.c_str() + 9);
  std::string_view rest = text.substr(end + 4);
  if (answer.head.find("Transfer-Encoding: chunked") == std::string::npos) {
    answer.body = rest;
    answer.whole = true;
    return answer;
  }
  while (!rest.empty()) {
    const size_t bytes = std::strtoull(std::string(rest.substr(0, 16)).c_str(), nullptr, 16);
    const size_t data = rest.find("\r\n") + 2;
    if (data + bytes + 2 > rest.size()) break;
    answer.body += rest.substr(data, bytes);
    rest.remove_prefix(data + bytes + 2);
    if (bytes == 0) answer.whole = true;
  }
  return answer;
}

// Asks and waits for the whole answer.
inline HttpAnswer AskHttp(const std::string& address, std::string_view method,
                          std::string_view path, std::string_view body = {},
                          std::string_view headers = {}) {
  WirePeer peer = WirePeer::Connect(address);
  if (!peer.Send(HttpText(method, path, body, headers))) return {};
  return ReadHttpAnswer(peer.ReceiveAll().value_or(""));
}

}  // namespace ems::testing
