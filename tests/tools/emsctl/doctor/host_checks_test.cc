// What must hold: what the kernel says is compared with what a server wants, on a machine that the
// test makes up.
#include "tools/emsctl/doctor/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

class HostChecksTest : public ::testing::Test {
 protected:
  HostChecksTest() {
    Write("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
    Write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nSwapTotal:       4194304 kB\n"
          "SwapFree:        4194304 kB\n");
    HugePages(1024, 512);
    Shmem("always within_size advise [never] deny force");
  }
  ~HostChecksTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = folder_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << '\n';
  }
  void HugePages(int total, int free) const {
    const std::string folder = "sys/kernel/mm/hugepages/hugepages-2048kB/";
    Write(folder + "nr_hugepages", std::to_string(total));
    Write(folder + "free_hugepages", std::to_string(free));
  }
  void Shmem(const std::string& words) const {
    Write("sys/kernel/mm/transparent_hugepage/shmem_enabled", words);
  }

  const std::string folder_ = ::testing::TempDir() + fmt::format("ems-host-{}", ::getpid());
  const HostPlaces places_{.proc = folder_ + "/proc", .sys = folder_ + "/sys"};
};

TEST_F(HostChecksTest, HugePagesAreComparedWithThePool) {
  const Finding enough = CheckHugePages(places_, {.dram_bytes = 2 * kGiB});
  EXPECT_EQ(enough.level, Level::kOk);
  EXPECT_EQ(enough.found, "512 of 1024 of 2 MiB free, the pool takes 1024");
  const Finding few = CheckHugePages(places_, {.dram_bytes = 4 * kGiB, .huge_pages = "require"});
  EXPECT_EQ(few.level, Level::kFail);
  EXPECT_THAT(few.mend, HasSubstr("vm.nr_hugepages=2048"));
}

TEST_F(HostChecksTest, TransparentPagesDoWhereTheKernelGivesThem) {
  HugePages(0, 0);
  EXPECT_EQ(CheckHugePages(places_, {}).level, Level::kOk);
  EXPECT_EQ(CheckTransparentPages(places_).level, Level::kOk);
  Shmem("always within_size advise never [deny] force");
  EXPECT_EQ(CheckHugePages(places_, {}).level, Level::kWarn);
  EXPECT_EQ(CheckHugePages(places_, {.huge_pages = "off"}).level, Level::kOk);
  EXPECT_EQ(CheckTransparentPages(places_).level, Level::kWarn);
}

TEST_F(HostChecksTest, AnOlderKernelGivesNoneUnlessItIsTold) {
  Write("proc/sys/kernel/osrelease", "5.15.0");
  EXPECT_EQ(CheckTransparentPages(places_).level, Level::kWarn);
  Shmem("always within_size [advise] never deny force");
  EXPECT_EQ(CheckTransparentPages(places_).level, Level::kOk);
}

TEST_F(HostChecksTest, APoolFitsIntoTheMachineOrItsContainer) {
  EXPECT_EQ(CheckMemory(places_, {.dram_bytes = 8 * kGiB}).level, Level::kOk);
  EXPECT_EQ(CheckMemory(places_, {.dram_bytes = 16 * kGiB}).level, Level::kFail);
  EXPECT_EQ(CheckMemory(places_, {}).found, "8 GiB available of 16 GiB");
}

TEST_F(HostChecksTest, SwapIsSaidWhenItIsInUse) {
  EXPECT_EQ(CheckSwap(places_).level, Level::kOk);
  Write("proc/meminfo", "SwapTotal: 4194304 kB\nSwapFree: 3145728 kB");
  const Finding used = CheckSwap(places_);
  EXPECT_EQ(used.level, Level::kWarn);
  EXPECT_THAT(used.found, HasSubstr("1 GiB of 4 GiB in use"));
  Write("proc/meminfo", "SwapTotal: 0 kB");
  EXPECT_EQ(CheckSwap(places_).found, "none");
}

TEST_F(HostChecksTest, ANodeThatEvictsBeforeOthersAreAskedIsSaid) {
  Write("proc/sys/vm/zone_reclaim_mode", "1");
  const Finding numa = CheckNuma(places_);
  EXPECT_EQ(numa.level, Level::kWarn);
  EXPECT_THAT(numa.mend, HasSubstr("zone_reclaim_mode=0"));
}

TEST_F(HostChecksTest, IoUringIsWantedByTheSsdTierAlone) {
  EXPECT_EQ(CheckIoUring(places_, {.ssd = true}).level, Level::kOk);
  Write("proc/sys/kernel/io_uring_disabled", "2");
  EXPECT_EQ(CheckIoUring(places_, {.ssd = true}).level, Level::kWarn);
  EXPECT_EQ(CheckIoUring(places_, {}).level, Level::kOk);
  Write("proc/sys/kernel/osrelease", "5.10.0");
  EXPECT_EQ(CheckLockedMemory(places_, {.soft = 1, .hard = 65536}, {.ssd = true}).level,
            Level::kWarn);
  EXPECT_EQ(CheckLockedMemory(places_, {.soft = 1, .hard = kUnlimited}, {.ssd = true}).level,
            Level::kOk);
}

TEST_F(HostChecksTest, DescriptorsAreThoseOfTheServersThatRun) {
  Write("proc/4711/comm", "mp-server");
  Write("proc/4711/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max open files            1024                 4096                 files");
  Write("proc/4712/comm", "bash");
  const auto limits = DaemonLimits(places_);
  ASSERT_EQ(limits.size(), 1U);
  EXPECT_EQ(limits[0].whose, "mp-server 4711");
  EXPECT_EQ(limits[0].descriptors.hard, 4096U);
  const Finding few =
      CheckDescriptors(limits[0].whose, limits[0].descriptors, {.descriptors = 4097});
  EXPECT_EQ(few.level, Level::kWarn);
  EXPECT_EQ(few.found, "mp-server 4711 may have 4096, a server takes up to 4097");
  EXPECT_EQ(CheckDescriptors("", limits[0].descriptors, {.descriptors = 4096}).level, Level::kOk);
}

TEST_F(HostChecksTest, ListenersSayWhetherTheyAreEverywhere) {
  const std::string titles = "  sl  local_address rem_address   st\n";
  Write("proc/net/tcp", titles +
                            "   0: 0100007F:1CE8 00000000:0000 0A 0\n"
                            "   1: 00000000:1D4C 00000000:0000 0A 0\n"
                            "   2: 0100007F:9999 0100007F:1CE8 01 0");
  Write("proc/net/tcp6", titles +
                             "   0: 00000000000000000000000000000000:1D4D "
                             "00000000000000000000000000000000:0000 0A 0");
  const auto listeners = Listeners(places_);
  ASSERT_EQ(listeners.size(), 3U);
  EXPECT_EQ(listeners[0].port, 7400);
  EXPECT_FALSE(listeners[0].everywhere);
  EXPECT_EQ(listeners[1].port, 7500);
  EXPECT_TRUE(listeners[1].everywhere);
  EXPECT_EQ(listeners[2].port, 7501);
  EXPECT_TRUE(listeners[2].everywhere);
}

TEST_F(HostChecksTest, AMachineThatSaysNothingIsNoReasonToEnd) {
  const HostPlaces nowhere{.proc = folder_ + "/none", .sys = folder_ + "/none"};
  EXPECT_EQ(CheckHugePages(nowhere, {}).level, Level::kWarn);
  EXPECT_EQ(CheckSwap(nowhere).level, Level::kOk);
  EXPECT_TRUE(DaemonLimits(nowhere).empty());
  EXPECT_TRUE(Listeners(nowhere).empty());
}

TEST(SealsTest, HoldOrSayThatServersShareNothing) {
  const Finding seals = CheckSeals();
  EXPECT_EQ(seals.level, seals.found == "hold" ? Level::kOk : Level::kWarn);
}

}  // namespace
}  // namespace ems::emsctl
