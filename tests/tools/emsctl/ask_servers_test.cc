// What must hold: each server of the view has an entry, with its statistics or with why there are
// none.
#include "tools/emsctl/ask_servers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tools/emsctl/context.h"

namespace ems::emsctl {
namespace {

using std::chrono::seconds;

TEST(AskServersTest, EachServerOfTheViewHasAnEntry) {
  auto cluster =
      testing::Cluster::Start({.servers = 2, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << ToString(cluster.status());
  Context context;
  context.controller = (*cluster)->controller_address();
  context.timeout_seconds = 0.5;
  ControllerClient controller(context.controller, "test", context.joined.get());
  ViewCache cache;
  ASSERT_EQ(controller.Refresh(&cache, Deadline::After(seconds(5))), OkStatus());
  const auto client = ConnectToAny(context, *cache.namespaces(), Deadline::After(seconds(5)));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto all = AskServers(context, client, *cache.view(), Deadline::After(seconds(5)));
  ASSERT_EQ(all.size(), 2U);
  for (const ServerStats& one : all) EXPECT_TRUE(one.json.ok()) << one.name;

  (*cluster)->server(1).Signal(SIGSTOP);
  const auto some = AskServers(context, client, *cache.view(), Deadline::After(seconds(5)));
  const auto late = AskServers(context, client, *cache.view(), Deadline::After(seconds(0)));
  (*cluster)->server(1).Signal(SIGCONT);
  ASSERT_EQ(some.size(), 2U);
  EXPECT_NE(some[0].json.ok(), some[1].json.ok());
  EXPECT_EQ(late[0].json.status().code(), StatusCode::kDeadlineExceeded);

  const auto nobody = ConnectToAny(context, NamespaceTable(), Deadline::After(seconds(5)));
  EXPECT_EQ(nobody.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      AskServers(context, nobody, *cache.view(), Deadline::After(seconds(5)))[0].json.status(),
      nobody.status());
}

}  // namespace
}  // namespace ems::emsctl
