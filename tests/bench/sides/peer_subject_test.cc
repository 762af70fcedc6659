// What must hold: a peer as a side of the comparison keeps and returns every value, for each
// caller.
#include "bench/sides/peer_subject.h"

#include <gtest/gtest.h>

#include "bench/sides/peer_server.h"

namespace ems::bench {
namespace {

TEST(PeerSubjectTest, EachCallerGetsWhatWasPut) {
  if (FindPeerProgram(PeerKind::kRedis).empty()) GTEST_SKIP() << "redis-server is not installed";
  const auto server = PeerServer::Start({.kind = PeerKind::kRedis,
                                         .transport = PeerTransport::kUnix,
                                         .memory_bytes = 64 * kMiB,
                                         .value_bytes_max = kMiB});
  ASSERT_TRUE(server.ok()) << ToString(server.status());
  const ValueSet values("salt", 5000, 4);
  const auto peer = PeerSubject::Connect("redis unix", PeerKind::kRedis, (*server)->address(),
                                         (*server)->pid(), 2);
  ASSERT_TRUE(peer.ok()) << ToString(peer.status());
  EXPECT_EQ((*peer)->name(), "redis unix");
  EXPECT_EQ((*peer)->server_pids(), std::vector<pid_t>{(*server)->pid()});

  const std::vector<uint64_t> objects = {3, 1};
  std::vector<std::byte> buffers(10'000);
  const std::vector<std::string_view> keys = {values.key(3), values.key(1)};
  const Stretch stretch{
      .objects = objects, .keys = keys, .buffers = buffers.data(), .value_bytes = 5000};
  for (uint64_t i = 0; i < 2; ++i) values.Fill(objects[i], 1, stretch.Buffer(i));
  ASSERT_TRUE((*peer)->Call(SideOp::kPutOrdinary, 0, stretch, 0, 2).ok());
  for (const uint32_t caller : {0U, 1U}) {
    buffers.assign(buffers.size(), std::byte{0});
    ASSERT_TRUE((*peer)->Call(SideOp::kGet, caller, stretch, 0, 2).ok());
    for (uint64_t i = 0; i < 2; ++i) EXPECT_TRUE(values.Matches(objects[i], 1, stretch.Buffer(i)));
  }
  const std::vector<uint64_t> absent = {0};
  const std::vector<std::string_view> absent_keys = {values.key(0)};
  const Stretch nothing{
      .objects = absent, .keys = absent_keys, .buffers = buffers.data(), .value_bytes = 5000};
  EXPECT_EQ((*peer)->Call(SideOp::kGet, 0, nothing, 0, 1).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
