// What must hold: a server is started with the tier that was asked for or with none, comes back
// after it was killed, and what does not start is said.
#include "bench/harness/bench_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/harness/fake_program.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class BenchServerTest : public ::testing::Test {
 protected:
  BenchServerTest() {
    programs_.AddDaemon("mp-controller", R"({"pid": 2, "address": "127.0.0.1:22"})");
    programs_.AddDaemon("mp-server", R"({"pid": 3, "address": "127.0.0.1:33"})");
  }
  BenchServerOptions Options(uint64_t ssd_bytes) const {
    return {.folder = folder_.path(),
            .programs = programs_.path(),
            .dram_bytes = 1000,
            .ssd_bytes = ssd_bytes};
  }
  const ::ems::testing::TempFolder folder_;
  const ProgramFolder programs_;
};

TEST_F(BenchServerTest, HasTheTierThatWasAskedForOrNone) {
  ASSERT_TRUE(BenchServer::Start(Options(0)).ok());
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("controller=127.0.0.1:22"));
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("dram.bytes=1000"));
  EXPECT_THAT(programs_.Told("mp-server"), Not(HasSubstr("ssd.")));
  ASSERT_TRUE(BenchServer::Start(Options(2000)).ok());
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("ssd.capacity_bytes=2000"));
}

TEST_F(BenchServerTest, ComesBackAfterItWasKilled) {
  const auto server = BenchServer::Start(Options(2000));
  ASSERT_TRUE(server.ok()) << ToString(server.status());
  (*server)->Kill();
  const Result<double> seconds = (*server)->StartAgain();
  ASSERT_TRUE(seconds.ok()) << ToString(seconds.status());
  EXPECT_GT(*seconds, 0);
}

TEST_F(BenchServerTest, OneThatDoesNotStartIsSaid) {
  programs_.Add("mp-server", "echo no disk >&2; exit 1");
  const auto server = BenchServer::Start(Options(2000));
  EXPECT_THAT(ToString(server.status()), HasSubstr("no disk"));
}

}  // namespace
}  // namespace ems::bench
