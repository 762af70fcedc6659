// What must hold: a server is built whole or not at all, says why it is not ready, serves what
// falls to it under a controller, and gives its slots up when it stops.
#include "mp_server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cluster/controller_client.h"
#include "common/config.h"
#include "proto/config.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/wire_peer.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using wire::Op;
using wire::WireStatus;

class ServerTest : public ::testing::Test {
 protected:
  config::ServerConfig Config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> settings = {"listen=127.0.0.1:0",
                                         "http_listen=127.0.0.1:0",
                                         "dram.bytes=64MiB",
                                         "dram.huge_pages=off",
                                         "shm.share=off",
                                         "controller=" + controller_address_,
                                         "data_dir=" + folder_.path() + "/server"};
    settings.insert(settings.end(), more.begin(), more.end());
    config::ServerConfig config;
    EXPECT_EQ(config::LoadText("name: a\n", "server.yaml", settings, &config), OkStatus());
    return config;
  }
  void StartController(Duration lease = seconds(1)) {
    controller::ControllerOptions options = controller::FastOptions(folder_.path() + "/controller");
    options.membership.lease = lease;
    controller_ = std::make_unique<controller::Controller>(options);
    ASSERT_EQ(controller_->Start(), OkStatus());
    controller_address_ = controller_->address();
  }
  // A request to the namespace that each controller makes.
  testing::WireReply Ask(testing::WirePeer* peer, const std::string& frame) {
    EXPECT_TRUE(peer->Send(frame));
    const auto reply = testing::ReadReply(peer);
    EXPECT_TRUE(reply.has_value());
    return reply.value_or(testing::WireReply());
  }

  controller::TempDir folder_;
  std::unique_ptr<controller::Controller> controller_;
  std::string controller_address_ = "127.0.0.1:1";
};

TEST_F(ServerTest, WithoutAControllerItServesAndSaysThatItIsNotReady) {
  const auto server = Server::Start(Config());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->Ready().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message((*server)->Ready())), HasSubstr("not registered"));
  testing::WirePeer peer = testing::WirePeer::Connect((*server)->data_address());
  EXPECT_EQ(Ask(&peer, testing::KeyFrame(Op::kPing, 1, "")).header.status, WireStatus::kOk);
  EXPECT_EQ(Ask(&peer, testing::KeyFrame(Op::kGet, 2, "k")).header.status,
            WireStatus::kStaleNamespace);
}

TEST_F(ServerTest, AFolderInUseAnAddressInUseAndAWrongOptionAreRefused) {
  const auto server = Server::Start(Config());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Server::Start(Config()).status().code(), StatusCode::kFailedPrecondition);
  const std::string folder = "data_dir=" + folder_.path() + "/other";
  EXPECT_EQ(Server::Start(Config({folder, "listen=" + (*server)->data_address()})).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(Server::Start(Config({folder, "listen=0.0.0.0:0"})).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(Server::Start(Config({folder})).ok()) << "what was refused has left nothing behind";
}

TEST_F(ServerTest, UnderAControllerItServesAllSlotsUntilItStops) {
  StartController();
  auto server = Server::Start(Config());
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(testing::Eventually([&] { return (*server)->Ready().ok(); }));
  testing::WirePeer peer = testing::WirePeer::Connect((*server)->data_address());
  ControllerClient client(controller_->address(), "test");
  const auto made = client.GetNamespace("default", Deadline::After(seconds(5)));
  ASSERT_TRUE(made.ok()) << made.status();
  // The namespaces come with the watch, which the view need not wait for.
  ASSERT_TRUE(testing::Eventually([&] {
    return Ask(&peer, testing::PutFrame(1, "k", "value", 0, made->ref)).header.status ==
           WireStatus::kOk;
  }));
  const testing::WireReply got = Ask(&peer, testing::KeyFrame(Op::kGet, 2, "k", made->ref));
  EXPECT_EQ(got.header.status, WireStatus::kOk);
  EXPECT_EQ(got.body, "value");
  const auto stats =
      nlohmann::json::parse(Ask(&peer, testing::KeyFrame(Op::kStats, 3, "")).body, nullptr, false);
  EXPECT_EQ(stats["owned_slots"], kSlotCount);
  EXPECT_EQ(stats["hits"], 1);

  (*server)->Stop(seconds(5));
  ViewCache views;
  EXPECT_TRUE(testing::Eventually([&] {
    (void)client.Refresh(&views, Deadline::After(seconds(1)));
    return views.view() != nullptr && views.view()->nodes().empty();
  })) << "it has left";
}

// Nothing of the next process shows that this one is dead, and its lease is long.
TEST_F(ServerTest, OneWithAnSsdTierSaysWhenItStopsThatItTakesNoPutsAnyMore) {
  StartController(seconds(600));
  const auto made = ControllerClient(controller_->address(), "test")
                        .GetNamespace("default", Deadline::After(seconds(5)));
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string tier = "ssd.capacity_bytes=512MiB";
  {
    const auto first = Server::Start(Config({tier}));
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(testing::Eventually([&] { return (*first)->Ready().ok(); }));
    (*first)->Stop(seconds(5));
  }
  const auto next = Server::Start(Config({tier, "data_dir=" + folder_.path() + "/other"}));
  ASSERT_TRUE(next.ok()) << next.status();
  testing::WirePeer peer = testing::WirePeer::Connect((*next)->data_address());
  EXPECT_TRUE(testing::Eventually([&] {
    return Ask(&peer, testing::PutFrame(1, "k", "value", 0, made->ref)).header.status ==
           WireStatus::kOk;
  }));
}

TEST_F(ServerTest, OneThatComesBackUnderTheControllerServesAgain) {
  StartController();
  for (int life = 0; life < 2; ++life) {
    const auto server = Server::Start(Config());
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_TRUE(testing::Eventually([&] { return (*server)->Ready().ok(); })) << life;
  }
}

// A controller must not pay for a server whose folder is full, read-only or gone.
TEST_F(ServerTest, OneThatCannotKeepAViewAsksAsRarelyAsOthers) {
  StartController(seconds(2));
  const auto server = Server::Start(Config());
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(testing::Eventually([&] { return (*server)->Ready().ok(); }));
  std::filesystem::rename(folder_.path() + "/server", folder_.path() + "/gone");
  const auto other = Server::Start(Config({"data_dir=" + folder_.path() + "/other", "name=b"}));
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE(testing::Eventually([&] {
    return std::string(Message((*server)->Ready())).find("cannot be kept") != std::string::npos;
  }));
  const auto beats = [&] {
    const auto page = testing::HttpGet((*server)->http_address(), "/metrics");
    EXPECT_TRUE(page.ok()) << page.status();
    const std::string name = "ems_server_heartbeats_total{result=\"ok\"} ";
    const size_t at = page.value_or("").find(name);
    EXPECT_NE(at, std::string::npos);
    return at == std::string::npos ? 0.0 : std::stod(page->substr(at + name.size()));
  };
  const double before = beats();
  ::poll(nullptr, 0, 1000);
  EXPECT_LE(beats() - before, 40) << "heartbeats in a second";
}

}  // namespace
}  // namespace ems::server
