// A tenure over stores of the test's choice; what it does is tested through Controller
// (controller_test.cc) and Candidate.
#include "mp_controller/tenure.h"

#include <gtest/gtest.h>

#include <atomic>

#include "cluster/while_starting.h"
#include "common/metrics.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/controller_store.h"
#include "mp_controller/rows/durable_rows.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

TEST(TenureTest, WhoLeadsNoMoreAnswersNothingButWhoDoes) {
  TempDir dir;
  const ControllerOptions options = FastOptions(dir.path());
  MetricsRegistry registry;
  ControllerMetrics metrics(&registry);
  std::atomic<bool> leads{true};
  Tenure tenure({.options = &options,
                 .registry = &registry,
                 .metrics = &metrics,
                 .other = [&]() -> std::optional<std::string> {
                   if (leads) return std::nullopt;
                   return "10.0.0.9:7400";
                 }});
  TenureStores stores;
  stores.cluster = std::move(*ControllerStore::Open(dir.path()));
  stores.models = std::move(*DurableRows::Open(dir.path() + "/models", ""));
  ASSERT_EQ(tenure.Start(std::move(stores), options.listen, ""), OkStatus());
  EXPECT_NE(tenure.cluster(), kNoCluster);
  EXPECT_EQ(tenure.http_address(), "");

  ControllerClient client("127.0.0.1:" + std::to_string(tenure.port()), "test");
  v1::ListNodesReply nodes;
  ViewCache cache;
  v1::ListEventsReply events;
  EXPECT_EQ(client.ListNodes(&nodes, Soon()), OkStatus());
  EXPECT_EQ(client.Refresh(&cache, Soon()), OkStatus());
  leads = false;
  EXPECT_TRUE(IsStarting(client.ListNodes(&nodes, Soon())));
  EXPECT_TRUE(IsStarting(client.Refresh(&cache, Soon())));
  EXPECT_TRUE(IsStarting(client.ListEvents({}, &events, Soon())));
  // Nor does a watch begin.
  ViewCache watched;
  client.StartWatch(&watched, {});
  EXPECT_EQ(watched.WaitForView(ViewVersion(1, 1), Deadline::After(std::chrono::milliseconds(300))),
            nullptr);
  leads = true;
  EXPECT_NE(watched.WaitForView(ViewVersion(1, 1), Soon()), nullptr);
}

}  // namespace
}  // namespace ems::controller
