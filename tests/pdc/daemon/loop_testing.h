#pragma once
// Configurations of small processes of the serving loop, for tests.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/config.h"
#include "proto/config.pb.h"

namespace ems::pdc::test {

// A tiny model with little KV, on any ports, and `more` on top of that ("key=value").
inline config::PdcConfig TinyLoop(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"model.preset=tiny",       "kv.bytes=4MiB",
                                  "kv.block_tokens=16",      "log_level=warn",
                                  "http_listen=127.0.0.1:0", "listen=127.0.0.1:0"};
  all.insert(all.end(), more.begin(), more.end());
  config::PdcConfig config;
  const Status loaded = config::Load("", all, &config);
  EXPECT_TRUE(loaded.ok()) << loaded;
  return config;
}

}  // namespace ems::pdc::test
