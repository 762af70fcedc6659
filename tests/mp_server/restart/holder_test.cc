// What must hold: a holder gives a set out once and whole; what came in part, or waits for too
// long, is nobody's.
#include "mp_server/restart/holder.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "common/thread_pool.h"
#include "mp_server/restart/fd_store.h"
#include "mp_server/restart/hold_session.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_path.h"

namespace ems::server {
namespace {

Deadline SoonEnough() { return Deadline::After(std::chrono::seconds(10)); }

class HolderTest : public ::testing::Test {
 protected:
  void Begin(Duration keep = FdHolder::kKeep) {
    auto opened = FdHolder::Open(path_.path(), keep);
    ASSERT_TRUE(opened.ok()) << opened.status();
    auto holder = std::make_shared<FdHolder>(*std::move(opened));
    thread_ = Thread("holder", [this, holder] {
      while (!stop_) {
        holder->Step(std::chrono::milliseconds(5));
        held_ = holder->held();
      }
    });
  }
  ~HolderTest() override {
    stop_ = true;
    thread_.Join();
  }
  std::vector<int> MakeFiles(int count) {
    std::vector<int> fds;
    for (int i = 0; i < count; ++i) {
      files_.emplace_back(::memfd_create("test", MFD_CLOEXEC));
      fds.push_back(files_.back().get());
    }
    return fds;
  }
  static std::multiset<uint64_t> InodesOf(const std::vector<fabric::Fd>& fds) {
    std::multiset<uint64_t> inodes;
    for (const fabric::Fd& fd : fds) {
      struct stat file {};
      EXPECT_EQ(::fstat(fd.get(), &file), 0);
      inodes.insert(file.st_ino);
    }
    return inodes;
  }

  const testing::TempPath path_{"holder.sock"};
  std::vector<fabric::Fd> files_;
  std::atomic<bool> stop_{false};
  std::atomic<size_t> held_{0};
  Thread thread_;
};

TEST_F(HolderTest, GivesOnceWhatItWasGiven) {
  Begin();
  const auto store = HolderStore(path_.path());
  ASSERT_NE(store, nullptr);
  ASSERT_EQ(store->Put(MakeFiles(33)), OkStatus());
  EXPECT_EQ(InodesOf(store->Take()), InodesOf(files_));
  EXPECT_TRUE(store->Take().empty());
}

TEST_F(HolderTest, ANewSetTakesThePlaceOfTheOneBefore) {
  Begin();
  const auto store = HolderStore(path_.path());
  ASSERT_EQ(store->Put(MakeFiles(5)), OkStatus());
  files_.clear();
  ASSERT_EQ(store->Put(MakeFiles(2)), OkStatus());
  EXPECT_EQ(InodesOf(store->Take()), InodesOf(files_));
}

TEST_F(HolderTest, ASetThatEndsInTheMiddleCountsForNothing) {
  Begin();
  ASSERT_EQ(PutHeld(path_.path(), MakeFiles(1), SoonEnough()), OkStatus());
  {
    fabric::Address address;
    address.unix_path = path_.path();
    const auto socket = fabric::Connect(address, std::chrono::seconds(5));
    ASSERT_TRUE(socket.ok());
    ASSERT_EQ(SendHold(socket->get(), {.op = HoldOp::kPut, .count = 8}, {}, SoonEnough()),
              OkStatus());
    ASSERT_EQ(SendHeld(socket->get(), MakeFiles(4), SoonEnough()), OkStatus());
  }
  const auto taken = TakeHeld(path_.path(), SoonEnough());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->size(), 1u);
}

TEST_F(HolderTest, WhatNobodyComesForGoes) {
  Begin(std::chrono::milliseconds(300));
  ASSERT_EQ(PutHeld(path_.path(), MakeFiles(3), SoonEnough()), OkStatus());
  EXPECT_TRUE(testing::Eventually([this] { return held_ == 3; }));
  EXPECT_TRUE(testing::Eventually([this] { return held_ == 0; }));
  const auto taken = TakeHeld(path_.path(), SoonEnough());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(taken->empty());
}

TEST_F(HolderTest, OnlyOneHoldsAtASocket) {
  Begin();
  EXPECT_EQ(FdHolder::Open(path_.path()).status().code(), StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace ems::server
