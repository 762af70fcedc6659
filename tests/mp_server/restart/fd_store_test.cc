// What must hold: systemd is told to store descriptors in its own words, and nothing counts on it
// before it has said that it has them; of what it gives back only what is ours is taken.
#include "mp_server/restart/fd_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "common/thread_pool.h"
#include "tests/support/temp_path.h"

namespace ems::server {
namespace {

struct stat FileOf(int fd) {
  struct stat file {};
  EXPECT_EQ(::fstat(fd, &file), 0);
  return file;
}

SystemdWords Words(const std::string& socket, uint32_t store_max) {
  SystemdWords words;
  words.notify_socket = socket;
  words.store_max = store_max;
  return words;
}

fabric::Fd MakeFile() { return fabric::Fd(::memfd_create("test", MFD_CLOEXEC)); }

// The service manager's end of a notify socket.
class Manager final {
 public:
  explicit Manager(bool answers) : path_("notify"), answers_(answers) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.path().c_str(), path_.path().size());
    socket_ = fabric::Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    thread_ = Thread("manager", [this] { Run(); });
  }
  ~Manager() {
    stop_ = true;
    thread_.Join();
  }
  const std::string& path() const { return path_.path(); }
  std::string text() {
    stop_ = true;
    thread_.Join();
    return text_;
  }
  size_t stored() const { return stored_.size(); }

 private:
  void Run() {
    while (true) {
      const bool stops = stop_;  // then what has come by now is the last
      pollfd ready{socket_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 10) <= 0) {
        if (stops) return;
        continue;
      }
      std::array<char, 256> text{};
      iovec part{text.data(), text.size()};
      alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(253 * sizeof(int))> control{};
      msghdr header{};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
      if (got <= 0) continue;
      const std::string line(text.data(), static_cast<size_t>(got));
      std::vector<fabric::Fd> fds;
      for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
        const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof(int));
          fds.emplace_back(fd);
        }
      }
      text_ += line + "|";
      if (line.starts_with("FDSTORE=1"))
        for (fabric::Fd& fd : fds) stored_.push_back(std::move(fd));
      // A barrier's end is closed with `fds`, or not at all.
      if (line == "BARRIER=1" && !answers_) kept_ = std::move(fds);
    }
  }

  const testing::TempPath path_;
  const bool answers_;
  std::atomic<bool> stop_{false};
  fabric::Fd socket_;
  Thread thread_;
  std::string text_;
  std::vector<fabric::Fd> stored_, kept_;
};

TEST(FdStoreTest, SystemdIsToldInItsWordsAndWaitedFor) {
  Manager manager(true);
  const auto store = SystemdStore(Words(manager.path(), 300));
  ASSERT_NE(store, nullptr);
  std::vector<fabric::Fd> files;
  std::vector<int> fds;
  for (int i = 0; i < 200; ++i) {
    files.push_back(MakeFile());
    fds.push_back(files.back().get());
  }
  EXPECT_EQ(store->Put(fds), OkStatus());
  EXPECT_EQ(manager.text(),
            "FDSTORE=1\nFDNAME=ems-restart|FDSTORE=1\nFDNAME=ems-restart|BARRIER=1|");
  EXPECT_EQ(manager.stored(), 200u);
}

TEST(FdStoreTest, OneThatDoesNotSayThatItHasThemIsNotCountedOn) {
  Manager manager(false);
  const auto store = SystemdStore(Words(manager.path(), 300));
  const fabric::Fd file = MakeFile();
  const int fd = file.get();
  EXPECT_EQ(store->Put({&fd, 1}).code(), StatusCode::kUnavailable);
}

TEST(FdStoreTest, MoreThanItStoresIsNotTried) {
  Manager manager(true);
  const auto store = SystemdStore(Words(manager.path(), 1));
  const fabric::Fd file = MakeFile();
  const std::array<int, 2> fds = {file.get(), file.get()};
  EXPECT_EQ(store->Put(fds).code(), StatusCode::kUnavailable);
  EXPECT_EQ(manager.text(), "");
}

TEST(FdStoreTest, WithoutAStoreThereIsNone) {
  EXPECT_EQ(SystemdStore({}), nullptr);
  EXPECT_EQ(SystemdStore(Words("/run/x", 0)), nullptr);  // FileDescriptorStoreMax=0
  EXPECT_EQ(HolderStore(""), nullptr);
  EXPECT_EQ(HolderStore("/nonexistent/holder.sock"), nullptr);
}

// In a process of its own, as the descriptors' numbers are given.
TEST(FdStoreTest, OnlyWhatIsOursIsTakenAndTheManagerKeepsNothing) {
  Manager manager(true);
  const fabric::Fd others = MakeFile(), ours = MakeFile();
  const pid_t child = ::fork();
  if (child == 0) {
    const int first = ::fcntl(others.get(), F_DUPFD, 100),
              second = ::fcntl(ours.get(), F_DUPFD, 100);
    ::dup2(first, 3);
    ::dup2(second, 4);
    const auto store = SystemdStore({.notify_socket = manager.path(),
                                     .store_max = 10,
                                     .listen_pid = std::to_string(::getpid()),
                                     .listen_fds = 2,
                                     .listen_names = "web:ems-restart"});
    const auto taken = store->Take();
    struct stat file {
    }, wanted{};
    const bool right = taken.size() == 1 && ::fstat(taken[0].get(), &file) == 0 &&
                       ::fstat(second, &wanted) == 0 && file.st_ino == wanted.st_ino &&
                       (::fcntl(taken[0].get(), F_GETFD) & FD_CLOEXEC) != 0 &&
                       store->Take().empty();
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(manager.text().starts_with("FDSTOREREMOVE=1\nFDNAME=ems-restart|"));
  EXPECT_NE(FileOf(others.get()).st_ino, FileOf(ours.get()).st_ino);
}

TEST(FdStoreTest, WhatIsForAnotherProcessIsNotTaken) {
  Manager manager(true);
  const auto store = SystemdStore({.notify_socket = manager.path(),
                                   .store_max = 10,
                                   .listen_pid = "1",
                                   .listen_fds = 1,
                                   .listen_names = "ems-restart"});
  EXPECT_TRUE(store->Take().empty());
}

}  // namespace
}  // namespace ems::server
