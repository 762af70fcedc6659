// What must hold: counts of servers are added up by namespace, and what a server does not say, or
// says in another form, counts nothing.
#include "tools/emsctl/server_counts.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems::emsctl {
namespace {

constexpr const char* kStats =
    R"({"boot_id": "0b", "gets": 10, "hits": 7, "puts": 3, "read_bytes": 100,
  "stored_bytes": 50, "pool": {"bytes_max": 1000}, "namespaces": [
  {"name": "a", "objects": 2, "value_bytes": 20, "evicted_objects": 1, "evicted_bytes": 9,
   "gets": 4, "hits": 3},
  {"name": "b", "objects": 1, "value_bytes": 5}]})";

TEST(ServerCountsTest, OfAServerAreReadWithThoseOfItsNamespaces) {
  ServerCounts server;
  CountsByNamespace namespaces;
  ASSERT_TRUE(ReadCounts(kStats, &server, &namespaces));
  EXPECT_EQ(server.boot_id, "0b");
  EXPECT_EQ(server.gets, 10U);
  EXPECT_EQ(server.hits, 7U);
  EXPECT_EQ(server.puts, 3U);
  EXPECT_EQ(server.read_bytes, 100U);
  EXPECT_EQ(server.stored_bytes, 50U);
  EXPECT_EQ(server.pool_bytes, 1000U);
  EXPECT_EQ(server.objects, 3U);
  EXPECT_EQ(server.value_bytes, 25U);
  EXPECT_EQ(server.evicted_objects, 1U);
  EXPECT_EQ(namespaces["a"].gets, 4U);
  EXPECT_EQ(namespaces["a"].hits, 3U);
  EXPECT_EQ(namespaces["b"].value_bytes, 5U);
}

TEST(ServerCountsTest, OfNamespacesAreAddedUp) {
  const std::vector<ServerStats> servers = {
      {.name = "x", .json = std::string(kStats)},
      {.name = "y", .json = Error(StatusCode::kUnavailable, "gone")},
      {.name = "z", .json = std::string(kStats)}};
  const CountsByNamespace counts = CountsOf(servers);
  EXPECT_EQ(counts.at("a").objects, 4U);
  EXPECT_EQ(counts.at("a").evicted_bytes, 18U);
  EXPECT_EQ(counts.at("b").objects, 2U);
}

TEST(ServerCountsTest, WhatIsNoStatisticCountsNothing) {
  ServerCounts server;
  CountsByNamespace namespaces;
  EXPECT_FALSE(ReadCounts("", &server, &namespaces));
  EXPECT_FALSE(ReadCounts("[1]", &server, &namespaces));
  EXPECT_TRUE(
      ReadCounts(R"({"gets": -1, "hits": "x", "pool": 3, "namespaces": [1, {"objects": 1}]})",
                 &server, &namespaces));
  EXPECT_EQ(server.gets, 0U);
  EXPECT_EQ(server.objects, 0U);
  EXPECT_TRUE(namespaces.empty());
}

}  // namespace
}  // namespace ems::emsctl
