// What must hold: a loop is started with the pool that was given, with one of its own, or without
// any; nothing of it is left when it goes, nor when a part of it does not start.
#include "bench/serve/serving_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/harness/fake_program.h"

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
  auto loop = PdcLoop::Start(options, false);
  ASSERT_TRUE(loop.ok()) << ToString(loop.status());
  EXPECT_EQ((*loop)->address(), "127.0.0.1:11");
  EXPECT_THAT(programs_.Told("ems-pdc"),
              EndsWith("--set role=all --set model.preset=tiny --set http_listen=127.0.0.1:0 --set "
                       "prefill.workers=1 --set decode.workers=1 --set pool.controller=\n"));
  EXPECT_EQ(programs_.Told("mp-controller"), "");
  const std::string folder = FolderOf("ems-pdc");
  EXPECT_TRUE(std::filesystem::exists(folder)) << folder;
  loop->reset();
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
}

TEST_F(ServingLoopTest, APoolThatIsThereIsUsed) {
  PdcLoopOptions options = Options();
  options.controller = "10.0.0.1:7400";
  options.settings = {"prefill.workers=2"};
  ASSERT_TRUE(PdcLoop::Start(options, true).ok());
  EXPECT_THAT(programs_.Told("ems-pdc"),
              EndsWith("--set pool.controller=10.0.0.1:7400 --set prefill.workers=2\n"));
  EXPECT_EQ(programs_.Told("mp-controller"), "");
}

TEST_F(ServingLoopTest, WithoutOneItHasItsOwn) {
  ASSERT_TRUE(PdcLoop::Start(Options(), true).ok());
  EXPECT_THAT(programs_.Told("mp-controller"), HasSubstr("--set listen=127.0.0.1:0"));
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("--set controller=127.0.0.1:22"));
  EXPECT_THAT(programs_.Told("mp-server"), HasSubstr("--set dram.bytes=1GiB"));
  EXPECT_THAT(programs_.Told("ems-pdc"), HasSubstr("--set pool.controller=127.0.0.1:22"));
}

TEST_F(ServingLoopTest, APartThatDoesNotStartIsAnErrorAndLeavesNothing) {
  programs_.Add("ems-pdc", "echo no room for the model; exit 1");
  const Status failed = PdcLoop::Start(Options(), true).status();
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_THAT(ToString(failed), HasSubstr("no room for the model"));
  const std::string folder = FolderOf("ems-pdc");
  EXPECT_THAT(folder, Not(::testing::IsEmpty()));
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
}

TEST_F(ServingLoopTest, OneThatDoesNotSayWhereItListensIsAnError) {
  programs_.AddDaemon("ems-pdc", "{}");
  EXPECT_EQ(PdcLoop::Start(Options(), false).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace ems::bench
