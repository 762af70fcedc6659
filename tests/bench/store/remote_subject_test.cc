// What must hold: EMS as a remote side keeps and returns every value over TCP, reads nothing
// through shared memory, tells a miss, and leaves nothing behind.
#include "bench/store/remote_subject.h"

#include <gtest/gtest.h>

#include "tests/support/cluster.h"

namespace ems::bench {
namespace {

using ems::testing::Cluster;
constexpr uint64_t kRemoteBytes = 20'000;

TEST(RemoteSubjectTest, ValuesComeBackOverTcpAndAreGoneAfterwards) {
  const auto cluster = Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << ToString(cluster.status());
  const auto client = (*cluster)->Connect(TransportChoice::kTcp);
  ASSERT_TRUE(client.ok()) << ToString(client.status());
  const ValueSet values("salt", kRemoteBytes, 3);
  RemoteSubject ems(client->get(), {(*cluster)->server(0).pid()});

  const std::vector<uint64_t> objects = {2, 0, 1};
  std::vector<std::byte> memory(3 * kRemoteBytes);
  const std::vector<std::string_view> keys = {values.key(2), values.key(0), values.key(1)};
  const Stretch stretch{
      .objects = objects, .keys = keys, .buffers = memory.data(), .value_bytes = kRemoteBytes};
  for (uint64_t i = 0; i < 3; ++i) values.Fill(objects[i], 1, stretch.Buffer(i));
  const Status put = ems.Call(SideOp::kPutOrdinary, 0, stretch, 0, 3);
  ASSERT_TRUE(put.ok()) << ToString(put);
  memory.assign(memory.size(), std::byte{0});
  ASSERT_TRUE(ems.Call(SideOp::kGet, 1, stretch, 0, 3).ok());
  for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(values.Matches(objects[i], 1, stretch.Buffer(i)));
  EXPECT_EQ((*client)->stats().one_sided, 0U);

  const Status removed = ems.RemoveAll(values);
  ASSERT_TRUE(removed.ok()) << ToString(removed);
  EXPECT_EQ(ems.Call(SideOp::kGet, 0, stretch, 0, 1).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
