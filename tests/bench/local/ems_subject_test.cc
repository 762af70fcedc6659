// What must hold: EMS as a side of the comparison does every operation on real daemons, tells a
// miss from wrong bytes, and leaves nothing behind.
#include "bench/local/ems_subject.h"

#include <gtest/gtest.h>

#include "tests/support/cluster.h"

namespace ems::bench {
namespace {

using ems::testing::Cluster;
constexpr uint64_t kBytes = 20'000;

class EmsSubjectTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  static inline std::unique_ptr<Cluster> cluster_;
};

TEST_F(EmsSubjectTest, EveryOperationWorksOnStoredValuesAndMissesAfterwards) {
  const auto client = cluster_->Connect();
  ASSERT_TRUE(client.ok()) << ToString(client.status());
  const ValueSet values("salt", kBytes, 6);
  const auto made = EmsSubject::Make(client->get(), {cluster_->server(0).pid()}, kMiB, &values);
  ASSERT_TRUE(made.ok()) << ToString(made.status());
  EmsSubject& ems = **made;
  ASSERT_GE(ems.PutMemory(SideOp::kPut).size(), kMiB);
  EXPECT_TRUE(ems.PutMemory(SideOp::kPutOrdinary).empty());

  const std::vector<uint64_t> objects = {0, 1, 2, 3, 4, 5};
  std::vector<std::byte> memory(6 * kBytes);
  std::vector<std::string_view> keys;
  for (const uint64_t object : objects) keys.push_back(values.key(object));
  const Stretch into{
      .objects = objects, .keys = keys, .buffers = memory.data(), .value_bytes = kBytes};
  uint32_t version = 0;
  for (const SideOp put : {SideOp::kPut, SideOp::kPutBatch, SideOp::kPutOrdinary}) {
    Stretch from = into;
    if (put != SideOp::kPutOrdinary) from.buffers = ems.PutMemory(put).data();
    ++version;
    for (uint64_t i = 0; i < 6; ++i) values.Fill(i, version, from.Buffer(i));
    const uint64_t batch = put == SideOp::kPutBatch ? 6 : 1;
    for (uint64_t i = 0; i < 6; i += batch) {
      const Status status = ems.Call(put, 0, from, i, batch);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    for (const SideOp get : {SideOp::kGet, SideOp::kGetChecked}) {
      memory.assign(memory.size(), std::byte{0});
      for (uint64_t i = 0; i < 6; ++i) {
        ASSERT_TRUE(ems.Call(get, 0, into, i, 1).ok());
        EXPECT_TRUE(values.Matches(i, version, into.Buffer(i)));
      }
    }
    bool right = false;
    const auto look = [&](ConstBytes bytes) { right = values.Matches(3, version, bytes); };
    ASSERT_TRUE(ems.View(3, look).ok());
    EXPECT_TRUE(right);
  }
  for (const SideOp op : {SideOp::kGetView, SideOp::kExists, SideOp::kLookup}) {
    const Status status = ems.Call(op, 0, into, 2, 1);
    EXPECT_TRUE(status.ok()) << OpName(op) << ": " << ToString(status);
  }

  const Status removed = ems.RemoveAll();
  ASSERT_TRUE(removed.ok()) << ToString(removed);
  for (const SideOp op : {SideOp::kGet, SideOp::kGetView, SideOp::kExists, SideOp::kLookup}) {
    EXPECT_EQ(ems.Call(op, 0, into, 0, 1).code(), StatusCode::kNotFound) << OpName(op);
  }
}

}  // namespace
}  // namespace ems::bench
