// What must hold, of both kinds: every operation is called back once, with what was transferred or
// why not, whatever else is under way and on any thread.
#include "mp_server/ssd/disk/io_engine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace {
// What the kernel says to everything that is submitted; 0: it is asked.
std::atomic<int> submit_error{0};
}  // namespace

// In front of the library's.
extern "C" int io_uring_submit(io_uring* ring) {
  static const auto real =
      reinterpret_cast<int (*)(io_uring*)>(::dlsym(RTLD_NEXT, "io_uring_submit"));
  const int error = submit_error.load();
  return error != 0 ? -error : real(ring);
}

namespace ems::ssd {
namespace {

using testing::kPatience;

// Waits until so many operations have been called back.
class Countdown final {
 public:
  explicit Countdown(int left) : left_(std::in_place, left) {}
  void Tick() {
    auto left = left_.Lock();
    --*left;
    if (*left <= 0) zero_.notify_all();
  }
  bool Wait() {
    auto left = left_.Lock();
    return left.WaitFor(zero_, kPatience, [](int n) { return n <= 0; });
  }
  int left() {
    auto left = left_.Lock();
    return *left;
  }

 private:
  Guarded<int> left_;
  std::condition_variable zero_;
};

class TestOp final : public IoOp {
 public:
  void OnDone(int64_t got) override {
    result = got;
    ++calls;
    caller = ::gettid();
    if (then) return then();
    if (countdown != nullptr) countdown->Tick();
  }
  // One part.
  void Set(int file, bool writes, uint64_t at, MutableBytes bytes) {
    iov = {{bytes.data(), bytes.size()}};
    SetParts(file, writes, at);
  }
  void SetParts(int file, bool writes, uint64_t at) {
    fd = file;
    write = writes;
    offset = at;
    parts = iov;
  }

  std::vector<iovec> iov;
  int64_t result = INT64_MIN;
  int calls = 0;
  pid_t caller = 0;
  Countdown* countdown = nullptr;
  std::function<void()> then;  // instead of the countdown
};

class IoEngineTest : public ::testing::TestWithParam<IoKind> {
 protected:
  void SetUp() override { Make(16); }
  void Make(uint32_t depth) {
    std::string why;
    Result<std::unique_ptr<IoEngine>> made = MakeIoEngine(GetParam(), depth, &why);
    if (!made.ok() && GetParam() == IoKind::kRing) {
      EXPECT_EQ(made.status().code(), StatusCode::kUnavailable) << made.status();
      GTEST_SKIP() << "the kernel refuses: " << made.status();
    }
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(why, "");
    engine_ = *std::move(made);
    EXPECT_EQ(engine_->name(), GetParam() == IoKind::kRing ? "io_uring" : "threads");
  }
  fabric::Fd Open(const std::string& path, int flags) {
    return fabric::Fd(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  }
  fabric::Fd FileOf(const std::string& text) {
    std::ofstream(folder_ / "file", std::ios::binary) << text;
    return Open(folder_ / "file", O_RDWR);
  }
  // Submits it and waits.
  int64_t Run(TestOp* op) {
    Countdown countdown(1);
    op->countdown = &countdown;
    engine_->Submit(op);
    EXPECT_TRUE(countdown.Wait());
    return op->result;
  }

  testing::TempFolder folder_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(IoEngineTest, WritesAndReadsManyAtOnceFromSeveralThreads) {
  constexpr size_t kThreads = 4;
  constexpr size_t kEach = 64;
  constexpr uint64_t kBytes = 3 * kBlockBytes;
  RegionFiles files;
  bool direct = false;
  const auto file = files.Open(folder_ / "direct", true, &direct);
  ASSERT_TRUE(file.ok()) << file.status();
  struct Slot {
    AlignedBuffer memory;
    MutableBytes bytes;
    TestOp op;
  };
  std::vector<Slot> slots(kThreads * kEach);
  for (const bool writes : {true, false}) {
    Countdown countdown(static_cast<int>(slots.size()));
    for (size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      slot.bytes = slot.memory.Take(kBytes);
      std::fill(slot.bytes.begin(), slot.bytes.end(), std::byte{0});
      if (writes) testing::FillValue("io", std::to_string(i), i, slot.bytes);
      // Two parts, so that the second one must go on where the first one ends.
      slot.op.iov = {{slot.bytes.data(), kBlockBytes},
                     {slot.bytes.data() + kBlockBytes, kBytes - kBlockBytes}};
      slot.op.SetParts(file->get(), writes, i * kBytes);
      slot.op.countdown = &countdown;
    }
    {
      std::vector<Thread> threads;
      for (size_t t = 0; t < kThreads; ++t) {
        threads.emplace_back("submit", [&, t] {
          for (size_t i = 0; i < kEach; ++i) engine_->Submit(&slots[i * kThreads + t].op);
        });
      }
    }
    ASSERT_TRUE(countdown.Wait());
    for (size_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(slots[i].op.result, static_cast<int64_t>(kBytes)) << i;
      ASSERT_EQ(testing::VerifyValue("io", std::to_string(i), AsText(slots[i].bytes)), i);
    }
  }
  for (Slot& slot : slots) EXPECT_EQ(slot.op.calls, 2);
}

TEST_P(IoEngineTest, AReadAcrossTheEndOfAFileIsShort) {
  const std::string text(5000, 'x');
  const fabric::Fd file = FileOf(text);
  std::vector<std::byte> memory(8192);
  TestOp op;
  op.Set(file.get(), false, 0, memory);
  EXPECT_EQ(Run(&op), 5000);
  EXPECT_EQ(AsText(memory).substr(0, 5000), text);
  op.Set(file.get(), false, 4096, memory);
  EXPECT_EQ(Run(&op), 904);
  op.Set(file.get(), false, 5000, memory);
  EXPECT_EQ(Run(&op), 0);
  op.Set(file.get(), false, uint64_t{1} << 40, memory);
  EXPECT_EQ(Run(&op), 0);
}

TEST_P(IoEngineTest, AReadInPartsEndsInsideOneOfThem) {
  const fabric::Fd file = FileOf("abcdefgh");
  std::string memory(12, '.');
  TestOp op;
  op.iov = {{&memory[0], 3}, {&memory[3], 3}, {&memory[6], 6}};
  op.SetParts(file.get(), false, 0);
  EXPECT_EQ(Run(&op), 8);
  EXPECT_EQ(memory, "abcdefgh....");
}

TEST_P(IoEngineTest, TakesAsManyPartsAsItSays) {
  const fabric::Fd file = FileOf("");
  std::vector<std::byte> memory(size_t{1024} * 16);
  testing::FillValue("io", "parts", 3, memory);
  TestOp op;
  for (size_t i = 0; i < 1024; ++i) op.iov.push_back({&memory[i * 16], 16});
  op.SetParts(file.get(), true, 0);
  EXPECT_EQ(Run(&op), static_cast<int64_t>(memory.size()));
  std::vector<std::byte> back(memory.size());
  op.Set(file.get(), false, 0, back);
  EXPECT_EQ(Run(&op), static_cast<int64_t>(memory.size()));
  EXPECT_EQ(memory, back);
}

TEST_P(IoEngineTest, WhatTheKernelRefusesIsANegativeErrno) {
  const fabric::Fd file = FileOf("text");
  const fabric::Fd read_only = Open(folder_ / "file", O_RDONLY);
  const fabric::Fd write_only = Open(folder_ / "file", O_WRONLY);
  const fabric::Fd full = Open("/dev/full", O_RDWR);
  ASSERT_TRUE(read_only.valid() && write_only.valid() && full.valid());
  std::vector<std::byte> memory(kBlockBytes);
  TestOp op;
  op.Set(-1, false, 0, memory);
  EXPECT_EQ(Run(&op), -EBADF);
  op.Set(-1, true, 0, memory);
  EXPECT_EQ(Run(&op), -EBADF);
  op.Set(1 << 20, false, 0, memory);
  EXPECT_EQ(Run(&op), -EBADF) << "a descriptor that nobody has";
  op.Set(read_only.get(), true, 0, memory);
  EXPECT_EQ(Run(&op), -EBADF);
  op.Set(write_only.get(), false, 0, memory);
  EXPECT_EQ(Run(&op), -EBADF);
  op.Set(full.get(), true, 0, memory);
  EXPECT_EQ(Run(&op), -ENOSPC);
  op.iov.assign(1025, {memory.data(), 1});
  op.SetParts(file.get(), false, 0);
  EXPECT_EQ(Run(&op), -EINVAL) << "one part too many";
  op.Set(file.get(), false, 0, memory);
  EXPECT_EQ(Run(&op), 4) << "an error is of its operation alone";
}

TEST_P(IoEngineTest, CallsBackOnAThreadOfItsOwn) {
  const fabric::Fd file = FileOf("text");
  std::vector<std::byte> memory(16);
  TestOp op;
  op.Set(file.get(), false, 0, memory);
  EXPECT_EQ(Run(&op), 4);
  EXPECT_NE(op.caller, ::gettid());
  op.Set(-1, false, 0, memory);
  EXPECT_EQ(Run(&op), -EBADF);
  EXPECT_NE(op.caller, ::gettid()) << "errors, too";
}

TEST_P(IoEngineTest, AnOperationMaySubmitItselfAgain) {
  const fabric::Fd file = FileOf(std::string(200, 'a'));
  std::vector<std::byte> memory(16);
  Countdown countdown(1);
  TestOp op;
  op.Set(file.get(), false, 0, memory);
  op.then = [&] {
    EXPECT_EQ(op.result, op.calls <= 185 ? 16 : 201 - op.calls);
    if (op.calls > 200) return countdown.Tick();
    ++op.offset;
    engine_->Submit(&op);
  };
  engine_->Submit(&op);
  ASSERT_TRUE(countdown.Wait());
  EXPECT_EQ(op.calls, 201);
  EXPECT_EQ(op.result, 0) << "the last one began at the end";
}

TEST_P(IoEngineTest, AnOperationMayBeDestroyedWhenItIsDone) {
  const fabric::Fd file = FileOf("text");
  std::vector<std::byte> memory(16);
  constexpr int kOps = 50;
  Countdown countdown(kOps);
  Guarded<std::map<int, std::unique_ptr<TestOp>>> ops;
  for (int i = 0; i < kOps; ++i) {
    auto op = std::make_unique<TestOp>();
    op->Set(file.get(), false, 100, memory);  // beyond the end: the memory is shared
    op->then = [&ops, &countdown, i] {
      std::unique_ptr<TestOp> self;
      {
        auto all = ops.Lock();
        self = std::move(all->at(i));
        all->erase(i);
      }
      Countdown* waits = &countdown;  // what this captures goes with the operation
      self.reset();
      waits->Tick();
    };
    TestOp* submitted = op.get();
    {
      auto all = ops.Lock();
      all->emplace(i, std::move(op));
    }
    engine_->Submit(submitted);
  }
  ASSERT_TRUE(countdown.Wait());
  auto all = ops.Lock();
  EXPECT_TRUE(all->empty());
}

TEST_P(IoEngineTest, DestructionWaitsForWhatIsUnderWayAndWhatThatSubmits) {
  const fabric::Fd file = FileOf(std::string(4096, 'a'));
  constexpr int kRounds = 20;
  struct Chain {
    TestOp op;
    std::vector<std::byte> memory{4096};
  };
  std::vector<Chain> chains(16);
  for (Chain& chain : chains) {
    chain.op.Set(file.get(), false, 0, chain.memory);
    chain.op.then = [&chain, engine = engine_.get()] {
      if (chain.op.calls < kRounds) engine->Submit(&chain.op);
    };
  }
  for (Chain& chain : chains) engine_->Submit(&chain.op);
  engine_.reset();
  for (const Chain& chain : chains) {
    EXPECT_EQ(chain.op.calls, kRounds);
    EXPECT_EQ(chain.op.result, 4096);
  }
}

TEST_P(IoEngineTest, MoreThanItsDepthWaitTheirTurnAndNoneIsRefused) {
  Make(1);
  if (IsSkipped()) return;
  const fabric::Fd file = FileOf(std::string(4096, 'a'));
  constexpr int kOps = 3000;
  std::vector<TestOp> ops(kOps);
  std::vector<std::byte> memory(16);
  Countdown countdown(kOps);
  StopFlag all_submitted;
  for (TestOp& op : ops) {
    op.Set(file.get(), false, 5000, memory);  // beyond the end: the memory is shared
    op.countdown = &countdown;
  }
  for (size_t i = 0; i < 8; ++i) {  // nobody reaps meanwhile, however many threads there are
    ops[i].then = [&] {
      EXPECT_TRUE(all_submitted.WaitFor(kPatience));
      countdown.Tick();
    };
  }
  for (TestOp& op : ops) engine_->Submit(&op);
  all_submitted.Set();
  ASSERT_TRUE(countdown.Wait()) << countdown.left() << " never came back";
  for (const TestOp& op : ops) {
    ASSERT_EQ(op.calls, 1);
    ASSERT_EQ(op.result, 0);
  }
}

// Checking what was read takes a while: others are called back meanwhile, whether they were
// submitted before it began or after.
TEST_P(IoEngineTest, ACallbackThatTakesLongHoldsUpNoOther) {
  constexpr size_t kLongBytes = 64 << 10;
  const fabric::Fd file = FileOf(std::string(kLongBytes, 'a'));
  StopFlag one_at_work, two_at_once;
  std::atomic<int> at_work{0};
  std::vector<TestOp> ops(16);
  std::vector<std::vector<std::byte>> memory(ops.size(), std::vector<std::byte>(kLongBytes));
  Countdown countdown(static_cast<int>(ops.size()));
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].Set(file.get(), false, 0, memory[i]);
    ops[i].then = [&] {
      one_at_work.Set();
      if (at_work.fetch_add(1) > 0) two_at_once.Set();
      EXPECT_TRUE(two_at_once.WaitFor(kPatience));
      countdown.Tick();
    };
  }
  engine_->Submit(ops.data());
  ASSERT_TRUE(one_at_work.WaitFor(kPatience));
  for (size_t i = 1; i < ops.size(); ++i) engine_->Submit(&ops[i]);
  EXPECT_TRUE(countdown.Wait());
}

TEST_P(IoEngineTest, WhatTheKernelDoesNotTakeNowIsDoneLater) {
  if (GetParam() != IoKind::kRing) GTEST_SKIP() << "there is no ring";
  const fabric::Fd file = FileOf("text");
  std::vector<std::byte> memory(16);
  for (const int error : {EAGAIN, EBUSY, ENOMEM}) {
    Make(4);
    if (IsSkipped()) return;
    std::vector<TestOp> ops(100);  // more than the ring has places
    Countdown countdown(static_cast<int>(ops.size()));
    submit_error.store(error);
    for (TestOp& op : ops) {
      op.Set(file.get(), false, 100, memory);  // beyond the end: the memory is shared
      op.countdown = &countdown;
      engine_->Submit(&op);
    }
    EXPECT_EQ(countdown.left(), 100);
    submit_error.store(0);
    ASSERT_TRUE(countdown.Wait()) << countdown.left() << " never came back";
    for (const TestOp& op : ops) EXPECT_EQ(op.result, 0);
  }
}

// More than the ring has places, too.
TEST_P(IoEngineTest, ManySubmittedTogetherAreAllDone) {
  Make(4);
  if (IsSkipped()) return;
  std::string text(1000, '-');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
  const fabric::Fd file = FileOf(text);
  std::string read(text.size(), '?');
  std::vector<TestOp> ops(text.size());
  std::vector<IoOp*> all;
  all.reserve(ops.size());
  Countdown countdown(static_cast<int>(ops.size()));
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].iov = {{&read[i], 1}};
    ops[i].SetParts(file.get(), false, i);
    ops[i].countdown = &countdown;
    all.push_back(&ops[i]);
  }
  engine_->SubmitAll(all);
  ASSERT_TRUE(countdown.Wait());
  EXPECT_EQ(read, text);
  for (const TestOp& op : ops) EXPECT_EQ(op.calls, 1);
}

TEST_P(IoEngineTest, AnEngineThatWasNeverUsedEnds) {
  engine_.reset();
  Make(0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, IoEngineTest, ::testing::Values(IoKind::kRing, IoKind::kThreads),
                         [](const auto& kind) {
                           return kind.param == IoKind::kRing ? "Ring" : "Threads";
                         });

TEST(MakeIoEngineTest, AutoSaysWhyItIsNotTheRing) {
  std::string why;
  const auto made = MakeIoEngine(IoKind::kAuto, 8, &why);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->name() == "threads", !why.empty()) << why;
  EXPECT_TRUE(MakeIoEngine(IoKind::kAuto, 8, nullptr).ok()) << "nobody has to ask";
}

// No kernel has a ring of so many entries.
TEST(MakeIoEngineTest, ARingThatTheKernelRefusesIsUnavailableAndAutoFallsBackToThreads) {
  constexpr uint32_t kTooDeep = 1U << 30;
  EXPECT_EQ(MakeIoEngine(IoKind::kRing, kTooDeep, nullptr).status().code(),
            StatusCode::kUnavailable);
  std::string why;
  const auto made = MakeIoEngine(IoKind::kAuto, kTooDeep, &why);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->name(), "threads");
  EXPECT_NE(why, "");
}

}  // namespace
}  // namespace ems::ssd
