// What must hold: streams begin only while the peer may be used; an end reaches all that are open.
#include "pdc/rpc/internal/stream_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "common/thread_pool.h"

namespace ems::pdc::rpc {
namespace {

class Stream final : public OpenStream {
 public:
  void Interrupt(const Status& why) override { reasons.push_back(why); }
  std::vector<Status> reasons;
};

const Status kLost = Error(StatusCode::kUnavailable, "lost");

TEST(StreamTableTest, IsClosedUntilItIsOpened) {
  StreamTable table;
  const auto stream = std::make_shared<Stream>();
  EXPECT_EQ(table.Add(1, stream).code(), StatusCode::kUnavailable);
  table.Open();
  EXPECT_EQ(table.Add(1, stream), OkStatus());
  EXPECT_EQ(table.Add(1, stream).code(), StatusCode::kAlreadyExists);
  table.Close(kLost);
  EXPECT_EQ(table.Add(2, stream), kLost);
  EXPECT_EQ(stream->reasons, std::vector<Status>{kLost});
}

TEST(StreamTableTest, AForgottenStreamIsLeftAloneAndStillCounts) {
  StreamTable table;
  table.Open();
  const auto one = std::make_shared<Stream>(), other = std::make_shared<Stream>();
  ASSERT_EQ(table.Add(1, one), OkStatus());
  ASSERT_EQ(table.Add(2, other), OkStatus());
  table.Forget(1);
  table.Forget(99);
  table.Interrupt(1, kLost);
  table.Interrupt(2, kLost);
  EXPECT_TRUE(one->reasons.empty());
  EXPECT_EQ(other->reasons.size(), 1U);
  EXPECT_EQ(table.Add(1, one), OkStatus());  // the id is free
  for (uint64_t id = 3; id <= StreamTable::kStreamsMax - 1; ++id)
    ASSERT_EQ(table.Add(id, other), OkStatus()) << id;
  EXPECT_EQ(table.Add(5000, other).code(), StatusCode::kResourceExhausted);
  table.Gone();
  EXPECT_EQ(table.Add(5000, other), OkStatus());
  for (size_t i = 0; i < StreamTable::kStreamsMax; ++i) table.Gone();
  table.WaitUntilEmpty();
}

TEST(StreamTableTest, TellsOfStreamsThatBroke) {
  std::vector<Status> broken;
  const StreamTable table([&](const Status& why) { broken.push_back(why); });
  table.Broken(kLost);
  EXPECT_EQ(broken, std::vector<Status>{kLost});
  StreamTable().Broken(kLost);  // nobody listens
}

// Counts its interrupts, from any thread.
class CountingStream final : public OpenStream {
 public:
  void Interrupt(const Status&) override { interrupts.fetch_add(1); }
  std::atomic<int> interrupts{0};
};

TEST(StreamTableTest, AStreamThatBeganWhileItWasClosedIsInterruptedOrRefused) {
  StreamTable table;
  table.Open();
  constexpr uint64_t kStreams = 200;
  std::vector<std::shared_ptr<CountingStream>> streams(kStreams);
  std::vector<Status> added(kStreams);
  {
    const Thread adder("add", [&] {
      for (uint64_t i = 0; i < kStreams; ++i) {
        streams[i] = std::make_shared<CountingStream>();
        added[i] = table.Add(i, streams[i]);
      }
    });
    table.Close(kLost);
  }
  for (uint64_t i = 0; i < kStreams; ++i) {
    EXPECT_EQ(streams[i]->interrupts.load(), added[i].ok() ? 1 : 0) << i;
    if (added[i].ok()) table.Gone();
  }
  table.WaitUntilEmpty();
}

}  // namespace
}  // namespace ems::pdc::rpc
