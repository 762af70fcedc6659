// What must hold: the least of what the machine and each cgroup above this process leave counts, in
// both versions of cgroups; page cache of files counts as free; what cannot be read is no limit.
#include "mp_server/memory/host_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/bytes.h"
#include "common/check.h"

namespace ems::server {
namespace {

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    Write("proc/meminfo",
          "MemTotal:       8388608 kB\nMemFree:   1 kB\nMemAvailable:   4194304 kB\n");
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(folder_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MemoryReading Read() {
    const Result<MemoryReading> reading = memory_.Read();
    EXPECT_TRUE(reading.ok()) << reading.status();
    return reading.ok() ? *reading : MemoryReading();
  }

  static std::string MakeFolder() {
    std::string folder = ::testing::TempDir() + "ems-host-memory-XXXXXX";
    EMS_CHECK(::mkdtemp(folder.data()) != nullptr);
    return folder;
  }

  const std::string folder_ = MakeFolder();
  HostMemory memory_{{.proc = folder_ + "/proc", .cgroup = folder_ + "/cgroup"}};
};

TEST_F(HostMemoryTest, WithoutCgroupsTheMachineCounts) {
  EXPECT_EQ(Read().available_bytes, 4 * kGiB);
  EXPECT_EQ(Read().limit_bytes, 8 * kGiB);
  EXPECT_EQ(Read().stalled_us, 0u);
  Write("proc/pressure/memory",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=1234\nfull total=99\n");
  EXPECT_EQ(Read().stalled_us, 1234u);
}

TEST_F(HostMemoryTest, OfVersion2TheTightestGroupAboveCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("cgroup/a/memory.max", "2147483648\n");
  Write("cgroup/a/memory.current", "1610612736\n");
  Write("cgroup/a/memory.stat",
        "anon 1\nfile 268435456\nactive_file 134217728\ninactive_file 134217728\n");
  Write("cgroup/a/b/memory.max", "max\n");
  Write("cgroup/a/b/memory.current", "1610612736\n");
  Write("cgroup/a/b/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\n");
  Write("proc/pressure/memory", "some avg10=1.00 avg60=0.00 avg300=0.00 total=1234\n");
  EXPECT_EQ(Read().available_bytes, 768 * kMiB);  // 512 MiB and the cache
  EXPECT_EQ(Read().limit_bytes, 2 * kGiB);
  EXPECT_EQ(Read().stalled_us, 77u);  // of its own group
  Write("cgroup/a/b/memory.max", "1610612736\n");
  Write("cgroup/a/b/memory.stat", "active_file 0\ninactive_file 4096\n");
  EXPECT_EQ(Read().available_bytes, 4096u);
  EXPECT_EQ(Read().limit_bytes, 1536 * kMiB);
}

TEST_F(HostMemoryTest, OfVersion1TooAndAMoveToAnotherGroupIsSeen) {
  Write("proc/self/cgroup", "5:cpu:/x\n4:memory:/one\n0::/\n");
  for (const char* group : {"one", "two"}) {
    Write(std::string("cgroup/memory/") + group + "/memory.limit_in_bytes", "1073741824\n");
    Write(std::string("cgroup/memory/") + group + "/memory.stat",
          "active_file 1\ntotal_active_file 1048576\ntotal_inactive_file 0\n");
  }
  Write("cgroup/memory/one/memory.usage_in_bytes", "1072693248\n");  // 1 MiB less
  Write("cgroup/memory/two/memory.usage_in_bytes", "0\n");
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(Read().available_bytes, 2 * kMiB);
  Write("proc/self/cgroup", "4:memory:/two\n");
  EXPECT_EQ(Read().available_bytes, 1 * kGiB);
  // More in use than the limit, which was lowered: nothing is left.
  Write("cgroup/memory/two/memory.usage_in_bytes", "2147483648\n");
  Write("cgroup/memory/two/memory.stat", "total_active_file 0\ntotal_inactive_file 0\n");
  EXPECT_EQ(Read().available_bytes, 0u);
}

// In a container the path is the host's, and the mount shows the container's own group at its root.
TEST_F(HostMemoryTest, APathThatIsNotThereIsTheRootOfTheMount) {
  Write("proc/self/cgroup", "0::/docker/12ab\n");
  Write("cgroup/memory.max", "1073741824\n");
  Write("cgroup/memory.current", "1073741824\n");
  EXPECT_EQ(Read().available_bytes, 0u);
  Write("proc/self/cgroup", "0::/../../escape\n");
  EXPECT_EQ(Read().available_bytes, 4 * kGiB);
}

TEST_F(HostMemoryTest, FilesThatAreNoNumbersAreNoLimit) {
  Write("proc/self/cgroup", "garbage\n:\n0::\n0::/a\n");
  Write("cgroup/a/memory.max", "");
  Write("cgroup/a/memory.current", "99999999999999999999999999\n");
  EXPECT_EQ(Read().available_bytes, 4 * kGiB);
  Write("proc/meminfo", "MemTotal: many\n");
  EXPECT_EQ(memory_.Read().status().code(), StatusCode::kUnavailable);
}

TEST(HostMemoryOfThisMachineTest, IsPlausible) {
  const Result<MemoryReading> reading = HostMemory().Read();
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_GT(reading->available_bytes, 16 * kMiB);
  EXPECT_GE(reading->limit_bytes, reading->available_bytes);
}

}  // namespace
}  // namespace ems::server
