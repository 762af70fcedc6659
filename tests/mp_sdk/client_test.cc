// What must hold: without a controller a client says so in time, and names it.
#include "mp_sdk/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scripted_server.h"

namespace ems {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ClientTest, NoControllerIsUnavailableWithinTheStartTimeout) {
  ClientOptions options;
  options.controller = "127.0.0.1:1";
  options.start_timeout = milliseconds(300);
  const TimePoint start = Clock::System().Now();
  const Status status = Client::Connect(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_LT(Clock::System().Now() - start, seconds(3));
}

TEST(ClientTest, AControllerThatIsSilentIsGivenUp) {
  testing::ScriptedServer silent(
      [](testing::WirePeer* peer, int) { (void)peer->WaitClosed(milliseconds(1000)); });
  ClientOptions options;
  options.controller = silent.address();
  options.start_timeout = milliseconds(300);
  const TimePoint start = Clock::System().Now();
  const StatusCode code = Client::Connect(options).status().code();
  EXPECT_TRUE(code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::System().Now() - start, seconds(3));
}

TEST(BuffersTest, SizesAddUp) {
  const std::vector<ConstBytes> parts = {AsBytes("ab"), {}, AsBytes("cde")};
  EXPECT_EQ(ConstBuffers(parts).size_bytes(), 5U);
  EXPECT_EQ(ConstBuffers(std::string_view("abc")).size_bytes(), 3U);
  EXPECT_EQ(ConstBuffers().size_bytes(), 0U);
  EXPECT_EQ(MutableBuffers().size_bytes(), 0U);
}

}  // namespace
}  // namespace ems
