// What must hold: a loop is started with the pool that was given, with one of its own, or without
// any; nothing of it is left once it is stopped, nor when a part of it does not start.
#include "bench/serving_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/fake_program.h"

namespace ems::bench {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class ServingLoopTest : public ::testing::Test {
 protected:
  ServingLoopTest() {
    programs_.AddDaemon("ems-pdc", R"({"pid": 1, "http": "127.0.0.1:11"})");
    programs_.AddDaemon("mp-controller", R"({"pid": 2, "address": "127.0.0.1:22"})");
    programs_.AddDaemon("mp-server", R"({"pid": 3, "address": "127.0.0.1:33"})");
  }
  PdcLoopOptions Options() const { return {.model = "tiny", .programs = programs_.path()}; }
  // Where the loop had its files.
  std::string FolderOf(const std::string& program) const {
    const std::string told = programs_.Told(program);
    const size_t from = told.find("/tmp/");
    return told.substr(from, told.find('/', from + 5) - from);
  }
  const ProgramFolder programs_;
};

TEST_F(ServingLoopTest, WithoutEmsItHasNoPool) {
  PdcLoopOptions options = Options();
  options.controller = "10.0.0.1:7400";
  PdcLoop loop(options);
  const auto address = loop.Start(false);
  ASSERT_TRUE(address.ok()) << ToString(address.status());
  EXPECT_EQ(*address, "127.0.0.1:11");
  EXPECT_THAT(programs_.Told("ems-pdc"),
              EndsWith("--set role=all --set model.preset=tiny --set http_listen=127.0.0.1:0 --set "
                       "prefill.workers=1 --set decode.workers=1 --set pool.controller=\n"));
  EXPECT_EQ(programs_.Told("mp-controller"), "");
  EXPECT_EQ(loop.Start(false).status().code(), StatusCode::kFailedPrecondition);
  const std::string folder = FolderOf("ems-pdc");
  EXPECT_TRUE(std::filesystem::exists(folder)) << folder;
  loop.Stop();
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
  EXPECT_TRUE(loop.Start(false).ok()) << "after Stop";
}

TEST_F(ServingLoopTest, APoolThatIsThereIsUsed) {
  PdcLoopOptions options = Options();
  options.controller = "10.0.0.1:7400";
  options.settings = {"prefill.workers=2"};
  PdcLoop loop(options);
  ASSERT_TRUE(loop.Start(true).ok());
  EXPECT_THAT(programs_.Told("ems-pdc"),
              EndsWith("--set pool.controller=10.0.0.1:7400 --set prefill.workers=2\n"));
  EXPECT_EQ(programs_.Told("mp-controller"), "");
}

TEST_F(ServingLoopTest, WithoutOneItHasItsOwn) {
  PdcLoop loop(Options());
  ASSERT_TRUE(loop.Start(true).ok());
  EXPECT_THAT(programs_.Told("mp-controller"), HasSubstr("--set listen=127.0.0.1:0"));
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("--set controller=127.0.0.1:22"));
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("--set dram.bytes=1GiB"));
  EXPECT_THAT(programs_.Told("ems-pdc"), HasSubstr("--set pool.controller=127.0.0.1:22"));
}

TEST_F(ServingLoopTest, APartThatDoesNotStartIsAnErrorAndLeavesNothing) {
  programs_.Add("ems-pdc", "echo no room for the model; exit 1");
  std::string folder;
  {
    PdcLoop loop(Options());
    const auto address = loop.Start(true);
    EXPECT_EQ(address.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(ToString(address.status()), HasSubstr("no room for the model"));
    folder = FolderOf("ems-pdc");
  }
  EXPECT_THAT(folder, Not(::testing::IsEmpty()));
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
}

TEST_F(ServingLoopTest, OneThatDoesNotSayWhereItListensIsAnError) {
  programs_.AddDaemon("ems-pdc", "{}");
  PdcLoop loop(Options());
  EXPECT_EQ(loop.Start(false).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace ems::bench
