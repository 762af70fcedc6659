#pragma once
// Runs the real emsctl against a small cluster of real daemons, shared by the tests of one file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/daemon.h"

namespace ems::emsctl {

class EmsctlTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started =
        testing::Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  // Without a cluster: the controller is as the flags say.
  static testing::ProgramOutput RunBare(const std::vector<std::string>& flags) {
    const auto ran = testing::RunProgram("emsctl", flags);
    EXPECT_TRUE(ran.ok()) << ToString(ran.status());
    return ran.value_or(testing::ProgramOutput{.exit_code = -1, .out = {}});
  }
  static testing::ProgramOutput Run(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--controller", cluster_->controller_address()});
    return RunBare(flags);
  }
  // The one JSON document that the command printed.
  static nlohmann::json RunJson(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "--json");
    const testing::ProgramOutput ran = Run(std::move(flags));
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    auto json = nlohmann::json::parse(ran.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << ran.out;
    return json;
  }

  // Of the cluster, and of none that there is.
  static std::string OwnId() { return RunJson({"status"})["cluster"]; }
  static std::string OtherId() {
    std::string id = OwnId();
    id[15] = id[15] == '1' ? '2' : '1';
    return id;
  }
  // Runs it for a cluster that is not the one that answers, which is to be refused by name.
  static void ExpectRefused(std::vector<std::string> flags) {
    const std::string other = OtherId();
    flags.insert(flags.begin(), {"--cluster", other});
    const testing::ProgramOutput ran = Run(flags);
    EXPECT_EQ(ran.exit_code, 1) << ran.out;
    EXPECT_THAT(ran.out, ::testing::HasSubstr(other));
    EXPECT_THAT(ran.out, ::testing::HasSubstr(OwnId()));
  }

  static inline std::unique_ptr<testing::Cluster> cluster_;
};

}  // namespace ems::emsctl
