// What must hold: a process of the serving loop that is stopped or killed hangs nobody: what ran
// there ends with kUnavailable in time, and the process is used again once it goes on.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <filesystem>
#include <optional>

#include "pdc/rpc/remote_decode_peer.h"
#include "pdc/rpc/remote_prefill_peer.h"
#include "tests/support/daemon.h"
#include "tests/support/eventually.h"
#include "tests/support/prefill_log.h"
#include "tests/support/scripted_decode.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ServingProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = "/tmp/ems-serving-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    ASSERT_NO_FATAL_FAILURE(StartProcess());
    prefill_ = std::make_unique<pdc::RemotePrefillPeer>(
        pdc::RemotePrefillPeerOptions{.name = "p",
                                      .address = "unix:" + folder_ + "/prefill",
                                      .expected = {.fingerprint = "f1", .block_tokens = 16},
                                      .ring = {.entries = 2, .entry_bytes = 4 * kKiB},
                                      .watch = kWatch});
    decode_ = std::make_unique<pdc::RemoteDecodePeer>(pdc::RemoteDecodePeerOptions{
        .name = "d", .address = "unix:" + folder_ + "/decode", .expected = {}, .watch = kWatch});
    ASSERT_TRUE(AreUp());
  }
  void TearDown() override {
    prefill_.reset();
    decode_.reset();
    process_.reset();
    std::filesystem::remove_all(folder_);
  }
  void StartProcess() {
    auto started = Daemon::Start({.program = "../tests/bin/silent_instances",
                                  .folder = folder_,
                                  .name = "silent",
                                  .flags = {"--folder", folder_},
                                  .fd_limit = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    process_.emplace(*std::move(started));
    ASSERT_EQ(process_->WaitReady(seconds(20)), OkStatus());
  }
  bool AreUp() {
    return Eventually(
        [&] { return prefill_->health().status.ok() && decode_->health().status.ok(); },
        seconds(30));
  }
  // One task at each; nobody answers them.
  void StartTasks() {
    pdc::PrefillTask prefill;
    prefill.id = 1;
    prefill.prompt = {1};
    ASSERT_EQ(prefill_->Start(prefill, log_.events()), OkStatus());
    pdc::DecodeTask decode;
    decode.id = 1;
    decode.prompt = {1};
    ASSERT_EQ(decode_->Submit(decode, sink_), OkStatus());
  }
  void ExpectTasksUnavailable() {
    ASSERT_TRUE(Eventually([&] { return !log_.done().empty() && sink_->ended(); }, seconds(20)));
    ASSERT_EQ(log_.done().size(), 1U);
    EXPECT_EQ(log_.done()[0].status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(log_.sent().empty());
    const auto ends = sink_->log().ends;
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0].status().code(), StatusCode::kUnavailable);
  }

  static constexpr pdc::PeerWatchOptions kWatch{.pulse_every = milliseconds(50),
                                                .call_timeout = milliseconds(500),
                                                .dead_after = seconds(1),
                                                .stall_limit = seconds(30)};
  std::string folder_;
  std::optional<Daemon> process_;
  PrefillLog log_;
  const std::shared_ptr<LoggedSink> sink_ = std::make_shared<LoggedSink>();
  std::unique_ptr<pdc::RemotePrefillPeer> prefill_;
  std::unique_ptr<pdc::RemoteDecodePeer> decode_;
};

TEST_F(ServingProcessTest, AStoppedProcessIsGivenUpAndUsedAgainOnceItGoesOn) {
  StartTasks();
  const auto ring = prefill_->ring();
  process_->Signal(SIGSTOP);
  ExpectTasksUnavailable();
  EXPECT_TRUE(Eventually([&] { return prefill_->ring() == nullptr; }));
  EXPECT_FALSE(prefill_->health().status.ok());
  EXPECT_TRUE(Eventually([&] { return !decode_->health().status.ok(); }));
  process_->Signal(SIGCONT);
  ASSERT_TRUE(AreUp());
  ASSERT_NE(prefill_->ring(), nullptr);
  EXPECT_NE(prefill_->ring(), ring);
}

TEST_F(ServingProcessTest, AKilledProcessIsGivenUpAndItsNextStartIsUsed) {
  StartTasks();
  const auto ring = prefill_->ring();
  const uint64_t incarnation = prefill_->instance()->incarnation;
  std::array<std::byte, 8> into{};
  const auto posted = ring->Post(1, into);
  ASSERT_TRUE(posted.ok()) << posted.status();
  process_->Kill();
  ExpectTasksUnavailable();
  EXPECT_EQ((*posted)->Wait(seconds(20)).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(ring->peer_is_gone());
  ASSERT_TRUE(Eventually(
      [&] { return !prefill_->health().status.ok() && !decode_->health().status.ok(); }));
  ASSERT_NO_FATAL_FAILURE(StartProcess());
  ASSERT_TRUE(AreUp());
  EXPECT_NE(prefill_->instance()->incarnation, incarnation);
}

TEST_F(ServingProcessTest, PeersOfAStoppedProcessCanGo) {
  StartTasks();
  process_->Signal(SIGSTOP);
  const TimePoint begin = Clock::System().Now();
  prefill_.reset();
  decode_.reset();
  EXPECT_LT(Clock::System().Now() - begin, seconds(3));  // without its deadlines, of a minute
  ExpectTasksUnavailable();
}

}  // namespace
}  // namespace ems::testing
