// What must hold: the lease counts from when a heartbeat was sent and only when admitted; the
// controller's answers NOT_FOUND and ABORTED mean register again, and stop.
#include "mp_server/lease/heartbeat.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "cluster/dht_view.h"
#include "common/guarded.h"
#include "proto/controller.grpc.pb.h"
#include "tests/support/memory_server.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;

// A controller that answers as it is told. Threading: thread-safe.
class FakeController final : public v1::Controller::Service {
 public:
  struct State {
    int registered = 0, beats = 0, left = 0;
    uint32_t heartbeat_ms = 20;
    bool admitted = true, renewed = true, keeps_slots = false;
    uint64_t active_epoch = 0;
    bool may_stop = false;
    TimePoint last_beat_at;                               // when it came in
    grpc::StatusCode next_beat = grpc::StatusCode::OK;    // of the next beat alone
    grpc::StatusCode later_beats = grpc::StatusCode::OK;  // of those after it
    v1::RegisterRequest last_register;
    v1::HeartbeatRequest last_beat;
    ViewVersion newest{1, 1};
  };
  FakeController() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeController() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterReply* reply) override {
    auto s = state.Lock();
    ++s->registered;
    s->last_register = *request;
    reply->set_node_id(6);
    reply->set_lease_ms(5000);
    reply->set_heartbeat_ms(s->heartbeat_ms);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override {
    auto s = state.Lock();
    ++s->beats;
    s->last_beat_at = Clock::System().Now();
    s->last_beat = *request;
    reply->set_term(s->newest.term());
    reply->set_epoch(s->newest.epoch());
    reply->set_admitted(s->admitted);
    reply->set_renewed(s->admitted && s->renewed);
    reply->set_active_epoch(s->active_epoch);
    reply->set_may_stop(s->may_stop);
    return {std::exchange(s->next_beat, s->later_beats), ""};
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request,
                     v1::LeaveReply*) override {
    auto s = state.Lock();
    ++s->left;
    s->keeps_slots = request->keeps_slots();
    return grpc::Status::OK;
  }
  State Read() {
    auto s = state.Lock();
    return *s;
  }
  void AnswerNextBeat(grpc::StatusCode code) {
    auto s = state.Lock();
    s->next_beat = code;
  }
  void AskForBeatsEvery(uint32_t heartbeat_ms) {
    auto s = state.Lock();
    s->heartbeat_ms = heartbeat_ms;
  }
  void Refuse() {
    auto s = state.Lock();
    s->admitted = false;
  }
  Guarded<State> state;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class HeartbeatTest : public ::testing::Test {
 protected:
  Heartbeat::Options Options() {
    Heartbeat::Options options;
    options.self.name = "a";
    options.self.boot_id = 99;
    options.self.data_address = "127.0.0.1:7500";
    options.self.capacity_bytes = 1 << 20;
    options.controller = &client_;
    options.ownership = &ownership_;
    options.views = &views_;
    options.usage = [] {
      return NodeUsage{.dram_used_bytes = 11, .dram_total_bytes = 22, .objects = 33};
    };
    options.on_beat = [this](bool ok) { ok ? ++beats_ok_ : ++beats_failed_; };
    options.highest_view = [] { return ViewIdentity{{3, 4}, 5}; };
    options.events = {.on_registered = [this] { ++registered_; },
                      .on_behind = [this](ViewVersion version) { behind_ = version.packed(); },
                      .on_older = [this](ViewVersion version) { older_ = version.packed(); },
                      .on_expelled = [this] { ++expelled_; },
                      .on_replaced = [this] { ++replaced_; },
                      .on_active = [this](uint64_t epoch) { active_ = epoch; },
                      .on_stranger = [](const Status&) {}};
    return options;
  }
  int Beats() { return controller_.Read().beats; }

  FakeController controller_;
  ControllerClient client_{controller_.address(), "test"};
  Ownership ownership_{&Clock::System()};
  ViewCache views_;
  std::atomic<int> beats_ok_{0}, beats_failed_{0}, registered_{0}, replaced_{0}, expelled_{0};
  std::atomic<uint64_t> behind_{0}, older_{0}, active_{0};
};

TEST_F(HeartbeatTest, SaysFromWhomItStillPullsAndWhomThoseAskWhoPullFromIt) {
  Heartbeat::Options options = Options();
  options.pulling_from = [] { return std::vector{NodeId(3), NodeId(6), NodeId(8)}; };
  options.vouching_for = [] { return std::vector{NodeId(5)}; };
  Heartbeat heartbeat(options);
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() >= 1; }));
  const v1::HeartbeatRequest beat = controller_.Read().last_beat;
  EXPECT_EQ(std::vector<uint32_t>(beat.pulling_from().begin(), beat.pulling_from().end()),
            (std::vector<uint32_t>{3, 8}))
      << "itself is 6";
  EXPECT_EQ(std::vector<uint32_t>(beat.vouching_for().begin(), beat.vouching_for().end()),
            std::vector<uint32_t>{5});
}

TEST_F(HeartbeatTest, RegistersBeatsAndLeaves) {
  Heartbeat heartbeat(Options());
  const TimePoint before = Clock::System().Now();
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() >= 3; }));
  EXPECT_EQ(ownership_.self(), NodeId(6));
  EXPECT_EQ(registered_, 1);
  EXPECT_TRUE(ownership_.LeaseValid());
  EXPECT_GE(ownership_.lease_until(), before + UsableLease(seconds(5)));
  EXPECT_LE(ownership_.lease_until(), Clock::System().Now() + UsableLease(seconds(5)));
  EXPECT_EQ(behind_, ViewVersion(1, 1).packed()) << "the controller has a view, this server none";
  EXPECT_EQ(older_, 0U);
  {
    auto s = controller_.state.Lock();
    EXPECT_EQ(s->last_register.node().name(), "a");
    EXPECT_EQ(s->last_register.node().boot_id(), 99U);
    EXPECT_EQ(s->last_register.node().capacity_bytes(), 1U << 20);
    EXPECT_EQ(s->last_beat.node_id(), 6U);
    EXPECT_EQ(s->last_beat.usage().objects(), 33U);
    EXPECT_EQ(s->last_beat.highest_term(), 3U);
    EXPECT_EQ(s->last_beat.highest_epoch(), 4U);
  }
  heartbeat.Leave(/*keeps_slots=*/true, seconds(2));
  const int beats = Beats();
  EXPECT_EQ(controller_.Read().left, 1);
  EXPECT_TRUE(controller_.Read().keeps_slots);
  EXPECT_EQ(Beats(), beats);
}

// The controller counts from when a heartbeat came in, and may answer late: counted from the answer
// the lease would end here after it had ended there, and two servers would own a slot.
TEST_F(HeartbeatTest, TheLeaseEndsHereBeforeItEndsAtTheController) {
  controller_.AskForBeatsEvery(3'600'000);  // the first one alone
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return beats_ok_ == 2; })) << "registered, and one heartbeat";
  EXPECT_EQ(Beats(), 1);
  EXPECT_LE(ownership_.lease_until(), controller_.Read().last_beat_at + UsableLease(seconds(5)));
}

TEST_F(HeartbeatTest, AControllerThatHasOnlyAnOlderViewIsNoticed) {
  (void)ownership_.Install(**DhtView::Make(ViewVersion(1, 2), {}, SlotTable(), false));
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  EXPECT_TRUE(Eventually([&] { return older_ == ViewVersion(1, 1).packed(); }));
  EXPECT_EQ(behind_, 0U);
}

TEST_F(HeartbeatTest, WithoutAdmissionThereIsNoLease) {
  controller_.Refuse();
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return beats_ok_ >= 4; }));
  EXPECT_FALSE(ownership_.LeaseValid());
}

// It is in the view, but has not installed it: its lease ends, and nothing else does.
TEST_F(HeartbeatTest, WithoutRenewalTheLeaseGoesOnAsItWas) {
  {
    auto s = controller_.state.Lock();
    s->renewed = false;
    s->active_epoch = 7;
  }
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return beats_ok_ >= 4; }));
  EXPECT_FALSE(ownership_.LeaseValid());
  EXPECT_EQ(expelled_, 0);
  EXPECT_EQ(active_, 7U);
}

TEST_F(HeartbeatTest, APokeBeatsAtOnce) {
  controller_.AskForBeatsEvery(3'600'000);
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() == 1; }));
  heartbeat.Poke();
  EXPECT_TRUE(Eventually([&] { return Beats() == 2; }));
}

TEST_F(HeartbeatTest, RegistersAgainWhenItIsNotKnown) {
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() >= 1; }));
  controller_.AnswerNextBeat(grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Eventually([&] { return registered_.load() == 2; }));
  const int beats = Beats();
  EXPECT_TRUE(Eventually([&] { return Beats() > beats; }));
  EXPECT_EQ(replaced_, 0);
}

TEST_F(HeartbeatTest, AnotherProcessOfThisNameEndsIt) {
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return ownership_.LeaseValid(); }));
  controller_.AnswerNextBeat(grpc::StatusCode::ABORTED);
  ASSERT_TRUE(Eventually([&] { return replaced_.load() == 1; }));
  EXPECT_FALSE(ownership_.LeaseValid());
  EXPECT_TRUE(Eventually([&] { return controller_.Read().left == 1; }))
      << "it tells that it takes no Puts any more";
  heartbeat.Leave(/*keeps_slots=*/false, seconds(1));
  EXPECT_EQ(controller_.Read().left, 1) << "once";
  EXPECT_FALSE(controller_.Read().keeps_slots);
}

TEST_F(HeartbeatTest, GoesOnAfterErrors) {
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() >= 1; }));
  controller_.AnswerNextBeat(grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(Eventually([&] { return beats_failed_.load() == 1; }));
  const int beats = Beats();
  EXPECT_TRUE(Eventually([&] { return Beats() > beats; }));
  EXPECT_EQ(registered_, 1);
}

TEST_F(HeartbeatTest, ItAnnouncesThatItStopsAtOnceAndUntilItMay) {
  controller_.AskForBeatsEvery(3'600'000);
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() == 1; }));
  EXPECT_FALSE(controller_.Read().last_beat.stopping());
  EXPECT_EQ(heartbeat.stop_answer(), StopAnswer::kNone);
  heartbeat.AnnounceStop();
  EXPECT_TRUE(Eventually([&] { return heartbeat.stop_answer() == StopAnswer::kServeOn; }));
  EXPECT_TRUE(controller_.Read().last_beat.stopping());
  controller_.AnswerNextBeat(grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(Eventually([&] { return beats_failed_.load() == 1; }));
  EXPECT_EQ(heartbeat.stop_answer(), StopAnswer::kServeOn) << "it was there a moment ago";
  {
    auto s = controller_.state.Lock();
    s->may_stop = true;
  }
  EXPECT_TRUE(Eventually([&] { return heartbeat.stop_answer() == StopAnswer::kMayStop; }));
}

TEST_F(HeartbeatTest, ItHearsThatThereIsNoControllerToAnnounceItTo) {
  controller_.AskForBeatsEvery(3'600'000);
  Heartbeat heartbeat(Options());
  heartbeat.Start();
  ASSERT_TRUE(Eventually([&] { return Beats() == 1; }));
  {
    auto s = controller_.state.Lock();
    s->next_beat = s->later_beats = grpc::StatusCode::UNAVAILABLE;
  }
  heartbeat.AnnounceStop();
  EXPECT_TRUE(Eventually([&] { return heartbeat.stop_answer() == StopAnswer::kUnreachable; }));
}

TEST_F(HeartbeatTest, StopsQuicklyWithoutAController) {
  ControllerClient nobody("127.0.0.1:1", "test");
  Heartbeat::Options options = Options();
  options.controller = &nobody;
  const TimePoint start = Clock::System().Now();
  {
    Heartbeat heartbeat(std::move(options));
    heartbeat.Start();
    ASSERT_TRUE(Eventually([&] { return beats_failed_.load() >= 1; }));
    heartbeat.Leave(/*keeps_slots=*/false, milliseconds(100));
  }
  EXPECT_LT(Clock::System().Now() - start, seconds(5));
  EXPECT_EQ(registered_, 0);
}

}  // namespace
}  // namespace ems::server
