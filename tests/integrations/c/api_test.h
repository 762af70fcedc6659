#pragma once
// What the tests of ems.h share: a cluster of real daemons for a suite, and a connection to it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "integrations/c/ems.h"
#include "tests/support/cluster.h"

namespace ems::capi {

inline ems_item Item(std::string_view key, ems_iov* piece) {
  return {.key = key.data(), .key_size = key.size(), .value = {.iov = piece, .count = 1}};
}
inline ems_iov PieceOf(std::string* text) { return {.base = text->data(), .size = text->size()}; }

// Threading: one thread.
class ApiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    testing::Cluster::Options options;
    options.servers = 2;
    auto started = testing::Cluster::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = std::move(*started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    ems_client_options options;
    ASSERT_EQ(ems_client_options_init(&options, sizeof(options)), EMS_OK);
    options.controller = cluster_->controller_address().c_str();
    ASSERT_EQ(ems_connect(&options, &client_), EMS_OK) << ems_last_error();
  }
  void TearDown() override { ems_client_destroy(client_); }

  ems_status Put(std::string_view key, std::string_view value) {
    return ems_put(client_, key.data(), key.size(), value.data(), value.size(), nullptr);
  }
  // The value, or the name of the code.
  std::string Get(std::string_view key) {
    std::string into(4096, '?');
    size_t length = 0;
    const ems_status code =
        ems_get(client_, key.data(), key.size(), into.data(), into.size(), &length, nullptr);
    return code == EMS_OK ? into.substr(0, length) : ems_status_name(code);
  }

  static inline std::unique_ptr<testing::Cluster> cluster_;
  ems_client* client_ = nullptr;
};

}  // namespace ems::capi
