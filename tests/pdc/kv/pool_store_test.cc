// What must hold: without a controller all is a miss, at once; when one comes, blocks come and go.
#include "pdc/kv/pool_store.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/cluster.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PoolStoreTest, WithoutAControllerAllIsAbsentUntilOneComes) {
  const auto cluster =
      testing::Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  (*cluster)->controller().Kill();
  ClientOptions client;
  client.controller = (*cluster)->controller_address();
  client.start_timeout = seconds(1);
  PoolStore store(
      {.client = client, .retry_every = milliseconds(20), .first_patience = Duration(0)});
  const KeyItem key{"block"};
  const std::string value = "the bytes of a block";
  EXPECT_EQ(store.MultiExists({&key, 1}, {}).at(0).status().code(), StatusCode::kUnavailable);
  const PutItem put{"block", ConstBuffers(std::string_view(value))};
  EXPECT_EQ(store.MultiPut({&put, 1}, {}).at(0).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(store.Submit([] {}));
  EXPECT_EQ(store.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.stats().puts, 0U);

  ASSERT_EQ((*cluster)->RestartController(), OkStatus());
  ASSERT_TRUE(ems::testing::Eventually([&] { return store.status().ok(); }, seconds(30)))
      << store.status();
  Status stored;
  ASSERT_TRUE(ems::testing::Eventually(
      [&] {
        stored = store.MultiPut({&put, 1}, {}).at(0);
        return stored.ok();
      },
      seconds(30)))
      << stored;
  EXPECT_TRUE(*store.MultiExists({&key, 1}, {}).at(0));
  std::string read(value.size(), ' ');
  const GetItem get{"block", MutableBuffers(std::as_writable_bytes(std::span(read)))};
  EXPECT_EQ(*store.MultiGet({&get, 1}, {}).at(0), value.size());
  EXPECT_EQ(read, value);
  EXPECT_EQ(store.stats().hits, 1U);
  std::string part(5, ' ');
  const RangeItem range{"block", 4, MutableBuffers(std::as_writable_bytes(std::span(part)))};
  EXPECT_EQ(store.MultiGetRange({&range, 1}, {}).at(0), OkStatus());
  EXPECT_EQ(part, "bytes");
  StopFlag ran;
  EXPECT_TRUE(store.Submit([&] { ran.Set(); }));
  EXPECT_TRUE(ran.WaitFor(seconds(10)));
}

TEST(PoolStoreTest, APoolThatHangsCostsOneReadAndIsReadAgainOnceItAnswers) {
  const auto cluster =
      testing::Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ClientOptions client;
  client.controller = (*cluster)->controller_address();
  client.transport = TransportChoice::kTcp;  // shared memory would be read all the same
  PoolStore store({.client = client});
  ASSERT_EQ(store.status(), OkStatus());
  const KeyItem key{"block"};
  ASSERT_TRUE(store.MultiExists({&key, 1}, {}).at(0).ok());

  (*cluster)->server(0).Signal(SIGSTOP);
  GetOptions patient;
  patient.timeout = milliseconds(300);
  ASSERT_TRUE(testing::Eventually([&] {  // the signal takes a moment
    const Status read = store.MultiExists({&key, 1}, patient).at(0).status();
    return read.code() == StatusCode::kDeadlineExceeded;
  }));
  // Nobody asks the pool itself any more: that would be the same again.
  std::string read(8, ' ');
  const GetItem get{"block", MutableBuffers(std::as_writable_bytes(std::span(read)))};
  const RangeItem range{"block", 4, MutableBuffers(std::as_writable_bytes(std::span(read)))};
  EXPECT_EQ(store.MultiExists({&key, 1}, {}).at(0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.MultiGet({&get, 1}, {}).at(0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.MultiGetRange({&range, 1}, {}).at(0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.hangs(), 1U);

  (*cluster)->server(0).Signal(SIGCONT);
  EXPECT_TRUE(testing::Eventually([&] { return store.status().ok(); }, seconds(30)));
  EXPECT_TRUE(store.MultiExists({&key, 1}, {}).at(0).ok());
  EXPECT_EQ(store.hangs(), 1U);
}

}  // namespace
}  // namespace ems::pdc
