// Arguments and refusals; what the calls do is tested by
// tests/integrations/c/model_load_api_test.cc.
#include "integrations/c/internal/model_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::capi {
namespace {

using ::testing::HasSubstr;

class ModelCallTest : public ::testing::Test {
 protected:
  ModelsCore core_{{.controller = "127.0.0.1:1"}, 1, 1};
};

TEST_F(ModelCallTest, TheDeadlineIsTheCallersOrTenMinutes) {
  LoadArguments load;
  load.name = "a@b";
  load.folder = "/nowhere";
  auto call = ModelCall::MakeLoad(&core_, load);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ((*call)->timeout(), std::chrono::minutes(10));
  WaitArguments wait;
  wait.name = "a@b";
  wait.timeout_ms = 30;
  call = ModelCall::MakeWait(&core_, wait);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ((*call)->timeout(), std::chrono::milliseconds(30));
}

TEST_F(ModelCallTest, AFileThatIsNamedTwiceIsRefused) {
  char room = 0;
  const ems_model_buffer buffers[] = {{"a", &room, 1}, {"a", &room, 1}};
  LoadArguments load;
  load.name = "a@b";
  load.into = LoadInto::kBuffers;
  load.buffers = buffers;
  load.buffer_count = 2;
  EXPECT_THAT(std::string(Message(ModelCall::MakeLoad(&core_, load).status())),
              HasSubstr("buffers[1]: a has one already"));
}

TEST_F(ModelCallTest, NothingIsBegunForModelsThatWereGivenBack) {
  LoadArguments load;
  load.name = "a@b";
  load.folder = "/nowhere";
  const auto call = ModelCall::MakeLoad(&core_, load);
  ASSERT_TRUE(call.ok()) << call.status();
  core_.stop.Set();
  EXPECT_EQ((*call)->Run(std::chrono::seconds(5)).status.code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace ems::capi
