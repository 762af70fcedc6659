// What must hold while a server's memory grows and shrinks: whoever else needs memory gets it,
// nobody is killed for want of it, the pool grows again, and no value is ever wrong.
// EMS_PRESSURE_CYCLES: how often another process takes memory and gives it back.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/long_run.h"
#include "tests/support/memory_group.h"
#include "tests/support/verified_load.h"

namespace ems::testing {
namespace {

constexpr uint64_t kPool = 384 * kMiB;
constexpr uint64_t kLeast = 64 * kMiB;
constexpr uint64_t kKeepFree = 128 * kMiB;
constexpr uint64_t kLimit = 832 * kMiB;  // with the daemons and this process
constexpr uint64_t kOthers = 448 * kMiB;
constexpr uint64_t kStep = 4 * kMiB;  // each 10 ms: 128 MiB in a third of a second

// A process that takes memory by and by, has it for a while and ends. Its exit code is 0 unless it
// was killed.
pid_t TakeMemory() {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, kOthers, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) ::_exit(2);
  for (uint64_t at = 0; at < kOthers; at += 4096) {
    memory[at] = 1;
    if (at % kStep == 0) ::poll(nullptr, 0, 10);
  }
  ::poll(nullptr, 0, 100);
  ::_exit(0);
}

// Bytes of one field of the only server's pool.
uint64_t PoolField(Client& client, const char* field) {
  const auto text = client.ServerStats(Cluster::ServerName(0), std::chrono::seconds(2));
  if (!text.ok()) return UINT64_MAX;
  return nlohmann::json::parse(*text)["pool"][field].get<uint64_t>();
}

TEST(ElasticMemoryTest, GivesMemoryBackBeforeAnyoneIsKilledAndTakesItAgain) {
  MemoryGroup group;
  if (const Status entered = group.Enter(kLimit); !entered.ok()) GTEST_SKIP() << Message(entered);
  auto cluster = Cluster::Start(
      {.servers = 1,
       .controller_flags = {},
       .server_flags = {"--set", "dram.bytes=" + std::to_string(kPool), "--set",
                        "dram.segment_bytes=16MiB", "--set", "dram.huge_pages=off", "--set",
                        "dram.elastic.min_bytes=" + std::to_string(kLeast), "--set",
                        "dram.elastic.keep_free_bytes=" + std::to_string(kKeepFree), "--set",
                        "dram.elastic.grow_after_ms=100"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto client = (*cluster)->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(Eventually([&] { return PoolField(**client, "bytes_max") == kPool; }));
  VerifiedLoad load(client->get(), {.keys = 4000, .value_bytes_max = 256 * kKiB});
  ASSERT_TRUE(load.WaitForCalls(2000, std::chrono::seconds(30)));
  uint64_t least = kPool;
  const uint64_t cycles = NumberOfVariable("EMS_PRESSURE_CYCLES", 5);
  for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
    const pid_t other = TakeMemory();
    ASSERT_GT(other, 0);
    int state = 0;
    ASSERT_TRUE(Eventually([&] {
      least = std::min(least, PoolField(**client, "bytes_max"));
      return ::waitpid(other, &state, WNOHANG) != 0;
    }));
    ASSERT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << "in cycle " << cycle;
    ASSERT_EQ(group.Kills(), 0u) << "in cycle " << cycle;
    EXPECT_LE(least, kPool - 100 * kMiB) << "in cycle " << cycle;
    EXPECT_GE(least, kLeast);
    ASSERT_TRUE(Eventually([&] { return PoolField(**client, "bytes_max") == kPool; }))
        << "in cycle " << cycle;
  }
  load.Stop();
  const LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();
  std::printf(
      "%llu times %llu MiB taken by another process: 0 killed, the pool went down to %llu MiB\n",
      static_cast<unsigned long long>(cycles), static_cast<unsigned long long>(kOthers / kMiB),
      static_cast<unsigned long long>(least / kMiB));
}

TEST(ElasticMemoryTest, AnOperatorMakesARunningServerSmallerAndLargerAndRestartsKeepIt) {
  auto started = Cluster::Start(
      {.servers = 1,
       .controller_flags = {"--set", "damping_ms=0"},
       .server_flags = {"--set", "dram.bytes=256MiB", "--set", "dram.segment_bytes=16MiB"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  auto client = cluster.Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  VerifiedLoad load(client->get(), {.keys = 4000, .value_bytes_max = 256 * kKiB});
  ASSERT_TRUE(Eventually([&] { return PoolField(**client, "bytes_in_use") >= 240 * kMiB; }));
  ControllerClient controller(cluster.controller_address(), "test");
  const auto set = [&](uint64_t bytes) {
    return controller.SetNode(Cluster::ServerName(0), bytes,
                              Deadline::After(std::chrono::seconds(5)));
  };
  ASSERT_EQ(set(64 * kMiB), OkStatus());
  EXPECT_TRUE(Eventually([&] { return PoolField(**client, "bytes_in_use") <= 64 * kMiB; }));
  EXPECT_TRUE(Eventually([&] { return PoolField(**client, "bytes_created") <= 64 * kMiB; }));
  ASSERT_EQ(set(320 * kMiB), OkStatus());  // more than it was started with
  EXPECT_TRUE(Eventually([&] { return PoolField(**client, "bytes_in_use") >= 300 * kMiB; }));
  load.Stop();
  const LoadCounts counts = load.Take();
  EXPECT_TRUE(counts.right()) << counts.ToText();
  EXPECT_TRUE(counts.errors.empty()) << counts.ToText();

  cluster.controller().Signal(SIGKILL);
  cluster.server(0).Signal(SIGKILL);
  ASSERT_TRUE(cluster.controller().WaitExit(std::chrono::seconds(10)).ok());
  ASSERT_TRUE(cluster.server(0).WaitExit(std::chrono::seconds(10)).ok());
  ASSERT_EQ(cluster.RestartController(), OkStatus());
  ASSERT_EQ(cluster.RestartServer(0), OkStatus());
  auto again = cluster.Connect();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(Eventually([&] { return PoolField(**again, "bytes_max") == 320 * kMiB; }));
  ASSERT_EQ(set(0), OkStatus());
  EXPECT_TRUE(Eventually([&] { return PoolField(**again, "bytes_max") == 256 * kMiB; }));
}

}  // namespace
}  // namespace ems::testing
