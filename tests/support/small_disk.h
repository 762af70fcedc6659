#pragma once
// A file system of its own that can be full: mounted by root alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/bytes.h"
#include "fabric/net/socket.h"

namespace ems::testing {

// Threading: one thread.
class SmallDisk final {
 public:
  explicit SmallDisk(uint64_t bytes) {
    std::string path = ::testing::TempDir() + "ems-disk-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return;
    path_ = path;
    const std::string size = "size=" + std::to_string(bytes);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }
  // Another user takes all that is left.
  void Fill() const {
    const fabric::Fd file(
        ::open((path_ + "/others").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_APPEND, 0600));
    const std::string block(64 * kKiB, 'x');
    while (::write(file.get(), block.data(), block.size()) > 0) {
    }
    while (::write(file.get(), block.data(), 1) > 0) {
    }
  }
  void Free() const { std::filesystem::remove(path_ + "/others"); }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace ems::testing
