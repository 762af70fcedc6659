#pragma once
// Options of an HttpServer (listen address, bounds), and its metrics.
#include <cstdint>
#include <functional>
#include <string>

#include "common/clock.h"
#include "common/metrics.h"
#include "fabric/http/http_message.h"

namespace ems::fabric {

struct HttpMetrics {
  Gauge connections = {};
  Counter refused = {};       // over connections_max, or out of descriptors
  Counter bad_requests = {};  // not HTTP, or more than the limits
  Counter timeouts = {};      // slow requests, slow readers
  Counter gone = {};          // clients that left before their answer had ended
};

struct HttpServerOptions {
  std::string listen = {};  // host:port; port 0: any
  uint32_t io_threads = 2;
  uint32_t connections_max = 1024;
  bool keep_alive = true;  // false: a connection is closed after its first answer
  HttpLimits limits = {};
  size_t unsent_bytes_max = 1 * kMiB;                  // of one answer that streams
  Duration head_timeout = std::chrono::seconds(10);    // from its first byte to its last
  Duration body_timeout = std::chrono::seconds(30);    // likewise
  Duration write_timeout = std::chrono::seconds(20);   // without one byte taken
  Duration idle_timeout = std::chrono::seconds(60);    // between requests
  Duration answer_timeout = std::chrono::minutes(60);  // then the connection is closed, whatever
  // How the server's own refusals look (400, 408, 413, 431, 503 and so on); plain text without.
  std::function<HttpReply(int status, const std::string& why)> refusal = {};
};

}  // namespace ems::fabric
