#pragma once
// For tests of the HTTP server: one that is answered by the test, and what its clients say.
//
// Bound: WirePeer's timeouts, and kPatience for a request to come.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fabric/http/http_server.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {

using fabric::HttpExchange;
using fabric::HttpHandler;
using fabric::HttpMetrics;
using fabric::HttpRequest;
using fabric::HttpServer;
using fabric::HttpServerOptions;

inline constexpr Duration kPatience = std::chrono::seconds(10);

// Keeps exchanges until a test answers them. Threading: thread-safe.
class Desk {
 public:
  HttpHandler handler() {
    return [this](std::shared_ptr<HttpExchange> exchange) {
      {
        auto waiting = waiting_.Lock();
        waiting->push_back(std::move(exchange));
      }
      changed_.notify_all();
    };
  }
  std::shared_ptr<HttpExchange> Take() {
    auto waiting = waiting_.Lock();
    if (!waiting.WaitFor(changed_, kPatience, [](const auto& w) { return !w.empty(); })) return {};
    auto exchange = waiting->front();
    waiting->pop_front();
    return exchange;
  }

 private:
  Guarded<std::deque<std::shared_ptr<HttpExchange>>> waiting_;
  std::condition_variable changed_;
};

inline std::unique_ptr<HttpServer> Serve(HttpHandler handler, HttpServerOptions options = {},
                                         const HttpMetrics& metrics = {}) {
  options.listen = "127.0.0.1:0";
  auto server = HttpServer::Start(options, std::move(handler), metrics);
  EXPECT_TRUE(server.ok()) << server.status();
  return std::move(*server);
}

inline void Echo(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  exchange->Reply({.content_type = "text/plain",
                   .headers = {{"X-Method", request.method}},
                   .body = request.path + "|" + request.body});
}

inline std::string Post(std::string_view path, std::string_view body,
                        std::string_view headers = {}) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(headers) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

inline std::string Ask(const HttpServer& server, std::string_view request) {
  WirePeer peer = WirePeer::Connect(server.address());
  EXPECT_TRUE(peer.Send(request));
  return peer.ReceiveAll().value_or("not closed");
}

}  // namespace ems::testing
