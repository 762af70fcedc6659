// What must hold while a client announces values that it does not send, or asks for values that it
// does not read: nothing of others is evicted for it, their Puts and Gets succeed, and what it
// holds is free again soon.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "proto/data_plane.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/self_verifying.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);
constexpr int kKeys = 60;  // of 1 MiB, in a pool of 256 MiB
constexpr int kGreedy = 300;
constexpr uint64_t kAnnounced = 4 * kMiB;

class GreedyClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    auto client = cluster_->Connect(TransportChoice::kTcp, 20 * kSecond);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    for (int i = 0; i < kKeys; ++i) PutOne(i);
  }
  void PutOne(int i) {
    const std::string key = Key(i);
    const std::string value = MakeValue("default", key, 1, kMiB);
    EXPECT_EQ(client_->Put(key, std::string_view(value)), OkStatus()) << key;
  }
  void GetOne(int i) {
    const std::string key = Key(i);
    const Result<std::string> value = client_->Get(key);
    ASSERT_TRUE(value.ok()) << key << ": " << value.status();
    EXPECT_TRUE(VerifyValue("default", key, *value)) << key;
  }
  static std::string Key(int i) { return "key-" + std::to_string(i); }
  // Of the server; without its labels.
  double Metric(std::string_view name) {
    const Result<std::string> page = HttpGet(cluster_->server(0).ready().http_address, "/metrics");
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) return -1;
    const size_t at = page->find("\n" + std::string(name));
    if (at == std::string::npos) return -1;
    return std::strtod(page->c_str() + page->find(' ', at), nullptr);
  }
  wire::FrameHeader Header(wire::Op op) {
    wire::FrameHeader header = MakeHeader(op, 1);
    header.namespace_id = client_->name_space().ref.id.value();
    header.namespace_generation = client_->name_space().ref.generation;
    header.view = client_->views().view()->version().packed();
    return header;
  }
  RawConnection Send(const std::string& bytes) {
    auto connection = RawConnection::Open(cluster_->server(0).ready().address);
    EXPECT_TRUE(connection.ok()) << connection.status();
    EXPECT_TRUE(connection->Send(bytes));
    return *std::move(connection);
  }
  // Connections that announce values and send so many bytes of each.
  std::vector<RawConnection> Announce(size_t sent) {
    const double before = Metric("ems_server_received_bytes_total");
    std::vector<RawConnection> all;
    for (int i = 0; i < kGreedy; ++i) {
      wire::FrameHeader header = Header(wire::Op::kPut);
      const std::string key = "greedy-" + std::to_string(i);
      header.key_bytes = static_cast<uint16_t>(key.size());
      header.body_bytes = kAnnounced + wire::kTrailerBytes;
      wire::SealRequest(AsBytes(key), &header);
      all.push_back(
          Send(std::string(AsText(wire::RawBytes(header))) + key + std::string(sent, 'g')));
    }
    EXPECT_TRUE(Eventually([&] {  // the server has seen all headers
      return Metric("ems_server_received_bytes_total") - before >= double{kGreedy} * kAnnounced;
    }));
    return all;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

TEST_F(GreedyClientTest, AFloodOfPutHeadersEvictsNothingAndDelaysNobody) {
  const std::vector<RawConnection> greedy = Announce(0);
  for (int i = kKeys; i < kKeys + 20; ++i) PutOne(i);
  for (int i = 0; i < kKeys + 20; ++i) GetOne(i);
  EXPECT_EQ(Metric("ems_server_evicted_objects_total"), 0);
  EXPECT_EQ(Metric("ems_server_puts_held_back_total"), 0);
  EXPECT_TRUE(
      Eventually([&] { return Metric("ems_server_slow_puts_total") == kGreedy; }, 20 * kSecond));
}

TEST_F(GreedyClientTest, ValuesThatStopTakeAShareAndAreGivenUpSoon) {
  const std::vector<RawConnection> greedy = Announce(128 * kKiB);
  ASSERT_TRUE(Eventually([&] { return Metric("ems_server_puts_held_back_total") > 0; }));
  for (int i = kKeys; i < kKeys + 20; ++i) PutOne(i);
  for (int i = 0; i < kKeys + 20; ++i) GetOne(i);
  EXPECT_EQ(Metric("ems_server_evicted_objects_total"), 0);
  EXPECT_TRUE(
      Eventually([&] { return Metric("ems_server_slow_puts_total") == kGreedy; }, 20 * kSecond));
  EXPECT_TRUE(Eventually([&] {
    return Metric("ems_server_value_bytes") == (kKeys + 20) * double{kMiB};
  })) << "something of them is left";
}

TEST_F(GreedyClientTest, ReadersThatDoNotReadLeaveRoomForPuts) {
  const int full = 300;  // more than the pool has
  for (int i = kKeys; i < full; ++i) PutOne(i);
  wire::FrameHeader header = Header(wire::Op::kMultiGet);
  std::vector<RawConnection> greedy;
  for (int from = full - 240; from < full; from += 30) {
    std::string heads, keys;
    for (int i = from; i < from + 30; ++i) {
      wire::ItemHead head;
      head.key_bytes = static_cast<uint16_t>(Key(i).size());
      AppendRaw(&heads, wire::RawBytes(head));
      keys += Key(i);
    }
    header.item_count = 30;
    greedy.push_back(Send(MakeFrame(header, {}, heads + keys)));
  }
  ASSERT_TRUE(Eventually([&] { return Metric("ems_server_reads_held_back_total") > 0; }))
      << "they pin less than they may";
  for (int i = full; i < full + 150; ++i) PutOne(i);
  for (int i = full + 100; i < full + 150; ++i) GetOne(i);
  EXPECT_TRUE(Eventually([&] { return Metric("ems_server_connection_timeouts_total") >= 4; },
                         20 * kSecond));
}

}  // namespace
}  // namespace ems::testing
