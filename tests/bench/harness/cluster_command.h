#pragma once
// A command of ems-bench as a process, beside a cluster of two servers that the tests of a source
// share.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/daemon.h"

namespace ems::bench {

class ClusterCommandTest : public ::testing::Test {
 protected:
  using Cluster = ::ems::testing::Cluster;
  using ProgramOutput = ::ems::testing::ProgramOutput;
  static constexpr Duration kBenchTimeout = std::chrono::seconds(100);

  // `command`: the name by which ems-bench knows it.
  explicit ClusterCommandTest(std::string command) : command_(std::move(command)) {}

  static void SetUpTestSuite() {
    auto started = Cluster::Start({.servers = 2, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  ProgramOutput Run(std::vector<std::string> flags, const Cluster& cluster = *cluster_) const {
    flags.insert(flags.begin(), {command_, "--controller", cluster.controller_address()});
    const auto ran = ::ems::testing::RunProgram("ems-bench", flags, kBenchTimeout);
    EXPECT_TRUE(ran.ok()) << ToString(ran.status());
    return ran.value_or(ProgramOutput{.exit_code = -1, .out = {}});
  }
  static size_t NamespaceCount() {
    ControllerClient controller(cluster_->controller_address(), "test");
    const auto list = controller.ListNamespaces(Deadline::After(std::chrono::seconds(5)));
    EXPECT_TRUE(list.ok());
    return list.ok() ? list->size() : 0;
  }

  static inline std::unique_ptr<Cluster> cluster_;

 private:
  const std::string command_;
};

}  // namespace ems::bench
