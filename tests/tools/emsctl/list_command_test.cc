// What must hold: keys of all servers and both tiers are listed, each once and in order; what is
// missing is said.
#include <chrono>
#include <csignal>
#include <optional>
#include <set>
#include <string>

#include "cluster/controller_client.h"
#include "cluster/view_cache.h"
#include "proto/controller.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_server.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Three servers, each with an SSD tier and little DRAM.
class ListCommandTest : public EmsctlTest {
 protected:
  static void SetUpTestSuite() {
    auto started = testing::Cluster::Start(
        {.servers = 3,
         .controller_flags = {},
         .server_flags = {"--set", "dram.bytes=64MiB", "--set", "ssd.capacity_bytes=512MiB"}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  static std::string Key(const std::string& prefix, int i) {
    return fmt::format("{}{:04}", prefix, i);
  }
  static void PutMany(const std::string& prefix, int count, size_t bytes) {
    const auto client = cluster_->Connect();
    ASSERT_TRUE(client.ok());
    const std::string value(bytes, 'v');
    for (int i = 0; i < count; ++i) {
      const Status put = (*client)->Put(Key(prefix, i), std::string_view(value),
                                        {.timeout = std::chrono::seconds(20)});
      ASSERT_TRUE(put.ok()) << ToString(put);
    }
  }
};

TEST_F(ListCommandTest, ListsTheKeysOfAllServersOnceAndInOrder) {
  PutMany("doc/", 300, 10);
  PutMany("other/", 10, 10);
  std::string expected;
  for (int i = 0; i < 300; ++i) expected += Key("doc/", i) + "\n";
  const auto ran = Run({"ls", "default", "doc/"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, expected);
  const auto json = RunJson({"ls", "default", "other/"});
  ASSERT_EQ(json["keys"].size(), 10U);
  EXPECT_EQ(json["keys"][3]["key"], "other/0003");
  EXPECT_EQ(json["keys"][3]["bytes"], 10);
  EXPECT_EQ(json["keys"][3]["tier"], "dram");
  EXPECT_GE(json["keys"][3]["age_seconds"], 0.0);
  EXPECT_EQ(json["complete"], true);
}

TEST_F(ListCommandTest, KeysOfTheSsdAloneAreListedToo) {
  constexpr int kCount = 600;  // of 512 KiB: more than the DRAM of all servers
  PutMany("big/", kCount, 512 << 10);
  const auto json = RunJson({"ls", "default", "big/", "--limit", "2000"});
  std::set<std::string> tiers, listed;
  for (const auto& one : json["keys"]) {
    tiers.insert(one["tier"].get<std::string>());
    listed.insert(one["key"].get<std::string>());
  }
  // What the SSD did not take in time has been evicted for good.
  const auto client = cluster_->Connect();
  ASSERT_TRUE(client.ok());
  for (int i = 0; i < kCount; ++i) {
    const Result<bool> exists = (*client)->Exists(Key("big/", i));
    ASSERT_TRUE(exists.ok());
    EXPECT_EQ(listed.contains(Key("big/", i)), *exists) << i;
  }
  EXPECT_EQ(tiers, (std::set<std::string>{"dram", "ssd"}));
  const std::string text = Run({"ls", "default", "big/", "--limit", "2000", "--long"}).out;
  EXPECT_NE(text.find("  524288  ssd   "), std::string::npos);
  EXPECT_NE(text.find("  524288  dram  "), std::string::npos);
}

TEST_F(ListCommandTest, MoreThanTheLimitIsSaid) {
  PutMany("many/", 20, 10);
  const auto ran = Run({"ls", "default", "many/", "--limit", "5"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, HasSubstr("more than 5 keys"));
  int keys = 0;
  for (size_t at = 0; (at = ran.out.find("many/", at)) != std::string::npos; ++at) ++keys;
  EXPECT_EQ(keys, 5) << ran.out;
  EXPECT_EQ(RunJson({"ls", "default", "no-such/"})["keys"].size(), 0U);
}

TEST_F(ListCommandTest, UnknownNamespaceAndLongPrefixAreSaid) {
  EXPECT_EQ(Run({"--timeout", "1", "ls", "nowhere"}).exit_code, 3);
  const auto long_prefix = Run({"ls", "default", std::string(513, 'p')});
  EXPECT_EQ(long_prefix.exit_code, 1);
  EXPECT_THAT(long_prefix.out, HasSubstr("512 bytes at most"));
}

// The last one: a server is gone after it.
TEST_F(ListCommandTest, AServerThatDoesNotAnswerIsNamedAndTheOthersAreListed) {
  PutMany("left/", 60, 10);
  cluster_->server(1).Signal(SIGSTOP);
  const auto ran = Run({"--timeout", "1", "ls", "default", "left/"});
  cluster_->server(1).Signal(SIGCONT);
  EXPECT_NE(ran.exit_code, 0);
  EXPECT_THAT(ran.out, HasSubstr("keys of server-1 are missing"));
  EXPECT_THAT(ran.out, HasSubstr("left/"));
}

// Beside a real server one that answers as version 0.2.0 did, in the same view.
class OldServerTest : public EmsctlTest {
 protected:
  static void SetUpTestSuite() {
    auto started = testing::Cluster::Start(
        {.servers = 1,
         .controller_flags = {"--set", "damping_ms=0", "--set", "lease_ms=60000"},
         .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  OldServerTest() {
    old_.store.error_text = "op 18 is not known here";
    old_.store.peer_words = std::nullopt;
  }
  // Registers it, and says that it has the view until that shows it.
  void Join(const std::string& name) const {
    NodeInfo node;
    node.name = name;
    node.boot_id = old_.store.boot_id;
    node.data_address = old_.address();
    node.host_id = "elsewhere";
    node.capacity_bytes = kGiB;
    v1::RegisterRequest request;
    ToProto(node, request.mutable_node());
    v1::RegisterReply reply;
    const auto soon = [] { return Deadline::After(std::chrono::seconds(10)); };
    ControllerClient controller(cluster_->controller_address(), "test");
    const Status registered = controller.Register(request, &reply, soon());
    ASSERT_TRUE(registered.ok()) << ToString(registered);
    ViewCache cache;
    EXPECT_TRUE(testing::Eventually([&] {
      if (!controller.Refresh(&cache, soon()).ok()) return false;
      const ViewCache::View view = cache.view();
      if (view->Find(NodeId(reply.node_id())) != nullptr) return true;
      v1::HeartbeatRequest beat;
      beat.set_node_id(reply.node_id());
      beat.set_boot_id(node.boot_id);
      beat.set_term(view->version().term());
      beat.set_epoch(view->version().epoch());
      beat.set_fingerprint(view->Fingerprint());
      v1::HeartbeatReply answer;
      (void)controller.Heartbeat(beat, &answer, soon());
      return false;
    }));
  }

 private:
  testing::MemoryServer old_;
};

TEST_F(OldServerTest, AServerThatKnowsNoScanIsNamedAndTheOthersAreListed) {
  const auto client = cluster_->Connect();
  ASSERT_TRUE(client.ok()) << ToString(client.status());
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE((*client)->Put(fmt::format("kept/{}", i), std::string_view("value")).ok());
  Join("left-behind");
  const auto ran = Run({"ls", "default", "kept/"});
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("keys of left-behind are missing"));
  EXPECT_THAT(ran.out, HasSubstr("left-behind runs an older version, which cannot list keys"));
  EXPECT_THAT(ran.out, HasSubstr("kept/"));
  EXPECT_THAT(ran.out, Not(HasSubstr("keys of server-0")));

  const auto json = Run({"--json", "ls", "default", "kept/"});
  EXPECT_EQ(json.exit_code, 1) << json.out;
  EXPECT_THAT(json.out, HasSubstr("\"complete\": false"));
  EXPECT_THAT(json.out, HasSubstr("left-behind runs an older version"));
}

}  // namespace
}  // namespace ems::emsctl
