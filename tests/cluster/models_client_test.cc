// What must hold: nobody there is an error in time; Close ends calls that wait. What the calls do:
// tests/mp_controller/model_service_test.cc.
#include "cluster/models_client.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::seconds;

TEST(ModelsClientTest, NobodyThereFailsFastAndNamesTheAddress) {
  ModelsClient models("127.0.0.1:1");
  v1::ModelStatus status;
  const Status failed = models.Get({}, &status, Soon());
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(failed).find("127.0.0.1:1"), std::string_view::npos);
  EXPECT_EQ(models.Get({}, &status, Deadline::After(Duration::zero())).code(),
            StatusCode::kDeadlineExceeded);
}

TEST(ModelsClientTest, AnAddressThatIsNoneIsSaidAndNothingIsTried) {
  ModelsClient models("localhost");
  v1::ModelStatus status;
  const Status failed = models.Get({}, &status, Soon());
  EXPECT_EQ(failed.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(failed).find("the port is missing, write localhost:PORT"),
            std::string_view::npos);
}

TEST(ModelsClientTest, CloseEndsACallThatWaits) {
  TempDir dir;
  Controller controller(FastOptions(dir.path()));
  ASSERT_EQ(controller.Start(), OkStatus());
  ModelsClient models(controller.address());
  v1::ListModelsReply list;
  ASSERT_EQ(models.List(0, Duration::zero(), &list, Soon()), OkStatus());
  const uint64_t number = list.number();
  Status ended;
  Thread waiter("waiter", [&] {
    v1::ListModelsReply reply;
    ended = models.List(number, seconds(25), &reply, Deadline::After(seconds(28)));
  });
  const TimePoint begin = Clock::System().Now();
  models.Close();
  waiter.Join();
  EXPECT_EQ(ended.code(), StatusCode::kCancelled);
  EXPECT_LT(Clock::System().Now() - begin, seconds(20));
}

}  // namespace
}  // namespace ems::controller
