#include "bench/control/server_load.h"

#include <gtest/gtest.h>

#include "cluster/controller_client.h"
#include "mp_controller/controller.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"

namespace ems::bench {
namespace {

TEST(ServerLoadTest, ServersComeIntoTheViewAndLeaveIt) {
  const controller::TempDir dir;
  controller::Controller controller(controller::FastOptions(dir.path()));
  ASSERT_TRUE(controller.Start().ok());
  ViewCache views;
  ControllerClient client(controller.address(), "test");
  client.StartWatch(&views, {});
  ServerLoad servers(controller.address(), [&] { return views.view(); });
  const auto shows = [&](size_t count) {
    return testing::Eventually(
        [&] { return views.view() != nullptr && views.view()->nodes().size() == count; });
  };
  ASSERT_TRUE(servers.Join(3).ok());
  EXPECT_TRUE(shows(3));
  ASSERT_TRUE(servers.LeaveLast().ok());
  EXPECT_TRUE(shows(2));
  EXPECT_EQ(servers.failed_beats(), 0U);
}

TEST(ServerLoadTest, NobodyAnswersAndItSaysSo) {
  ServerLoad servers("127.0.0.1:1", [] { return ViewCache::View(); });
  EXPECT_EQ(servers.Join(1).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::bench
