// What must hold: namespaces come, change and go as told, and what cannot be is refused before or
// by the controller.
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using NamespaceCommandsTest = EmsctlTest;

TEST_F(NamespaceCommandsTest, CreateUpdateListDelete) {
  const auto made =
      RunJson({"namespace", "create", "chat", "--dram-quota", "64MiB", "--checksum", "sampled"});
  EXPECT_EQ(made["dram_quota_bytes"], 64 << 20);
  const auto changed = RunJson({"namespace", "update", "chat", "--dram-reserved", "1MiB"});
  EXPECT_EQ(changed["dram_reserved_bytes"], 1 << 20);
  EXPECT_EQ(changed["dram_quota_bytes"], 64 << 20);
  EXPECT_EQ(changed["checksum"], "sampled");
  EXPECT_EQ(changed["id"], made["id"]);
  EXPECT_THAT(Run({"namespace", "list"}).out, HasSubstr("chat"));
  EXPECT_EQ(RunJson({"namespace", "delete", "chat"})["deleted"], "chat");
  EXPECT_EQ(Run({"namespace", "delete", "chat"}).exit_code, 1);
}

TEST_F(NamespaceCommandsTest, NamesAreTakenOnce) {
  RunJson({"namespace", "create", "twice"});
  EXPECT_EQ(Run({"namespace", "create", "twice", "--dram-quota", "1GiB"}).exit_code, 1);
}

TEST_F(NamespaceCommandsTest, BadFlagsAreUsageErrors) {
  EXPECT_EQ(Run({"namespace"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "create"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "create", "a", "--durability", "tape"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "create", "a", "--dram-quota", "lots"}).exit_code, 2);
  EXPECT_EQ(Run({"namespace", "update", "default"}).exit_code, 2);
}

TEST_F(NamespaceCommandsTest, ControllerRefusesABadName) {
  EXPECT_EQ(Run({"namespace", "create", "no spaces"}).exit_code, 1);
}

}  // namespace
}  // namespace ems::emsctl
