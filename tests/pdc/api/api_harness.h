#pragma once
// An API server over a scripted generator, and what its tests ask of it.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "pdc/api/api_server.h"
#include "tests/support/http_client.h"
#include "tests/support/scripted_generator.h"

namespace ems::pdc::api {

struct ApiHarness {
  explicit ApiHarness(ApiOptions options = {}) {
    options.listen = "127.0.0.1:0";
    auto started = ApiServer::Start(options, &generator, &metrics);
    EMS_CHECK(started.ok());
    server = std::move(*started);
  }
  testing::HttpAnswer Get(std::string_view path) const {
    return testing::AskHttp(server->address(), "GET", path);
  }
  testing::HttpAnswer Post(std::string_view path, std::string_view body,
                           std::string_view headers = {}) const {
    return testing::AskHttp(server->address(), "POST", path, body, headers);
  }
  // A client that has asked and not read the answer yet.
  testing::WirePeer Begin(std::string_view path, std::string_view body,
                          std::string_view headers = {}) const {
    testing::WirePeer peer = testing::WirePeer::Connect(server->address());
    EMS_CHECK(peer.Send(testing::HttpText("POST", path, body, headers)));
    return peer;
  }
  static testing::HttpAnswer End(testing::WirePeer* peer) {
    return testing::ReadHttpAnswer(peer->ReceiveAll().value_or(""));
  }
  // Whether a line "name{labels} value" is among the metrics.
  bool Shows(const std::string& line) const {
    return ("\n" + metrics.Render()).find("\nems_pdc_" + line + "\n") != std::string::npos;
  }

  MetricsRegistry metrics;
  testing::ScriptedGenerator generator;
  std::unique_ptr<ApiServer> server;
};

inline std::string TextBody(const std::string& fields = "") {
  return R"({"model": "scripted", "prompt": "hello", "max_tokens": 50)" +
         (fields.empty() ? "" : ", " + fields) + "}";
}
inline std::string ChatBody(const std::string& fields = "") {
  return R"({"model": "scripted", "messages": [{"role": "user", "content": "hello"}])" +
         (fields.empty() ? "" : ", " + fields) + "}";
}

// The JSON of a stream's events; "[DONE]" as a string.
inline std::vector<nlohmann::json> EventsOf(const std::string& body) {
  std::vector<nlohmann::json> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EMS_CHECK(body.compare(at, 6, "data: ") == 0 && end != std::string::npos);
    const std::string data = body.substr(at + 6, end - at - 6);
    events.push_back(data == "[DONE]" ? nlohmann::json(data) : nlohmann::json::parse(data));
    at = end + 2;
  }
  return events;
}

}  // namespace ems::pdc::api
