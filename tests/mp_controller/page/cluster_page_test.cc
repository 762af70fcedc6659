// What must hold: whoever looks gets a state of now, streams end when the page does, and neither
// many readers nor slow ones cost more than the bounds say.
#include "mp_controller/page/cluster_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <string>

#include "tests/support/eventually.h"
#include "tests/support/http_desk.h"

namespace ems::controller {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpServer;
using testing::HttpServerOptions;
using testing::kPatience;
using ::testing::StartsWith;
using testing::WirePeer;

constexpr size_t kPadBytes = 64 * kKiB;

// A page whose states are {"n": 1}, {"n": 2} …, or a failure.
class ClusterPageTest : public ::testing::Test {
 protected:
  void Open(Duration every) {
    page_ = std::make_unique<ClusterPage>([this] { return State(); }, every);
    std::map<std::string, fabric::HttpHandler> pages;
    for (const auto& page : page_->pages()) pages[page.path] = page.show;
    HttpServerOptions options;
    options.unsent_bytes_max = 2 * kPadBytes;
    server_ = testing::Serve(
        [pages](const auto& exchange) { pages.at(exchange->request().path)(exchange); }, options,
        {.gone = gone_});
  }
  void TearDown() override {
    if (page_ != nullptr) page_->Close();
    server_.reset();
  }
  Result<std::string> State() {
    if (fails_) return Error(StatusCode::kUnavailable, "no \"disk\"");
    return "{\"n\":" + std::to_string(++asked_) + "}" + std::string(padded_ ? kPadBytes : 0, ' ');
  }
  std::string Ask(const std::string& request) {
    return testing::Ask(*server_, request + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  WirePeer Follow() {
    WirePeer peer = WirePeer::Connect(server_->address());
    EXPECT_TRUE(peer.Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
    return peer;
  }
  // What has come when `text` has; all of it when the stream has ended before.
  static std::string ReadTo(WirePeer* peer, const std::string& text) {
    std::string got;
    while (got.find(text) == std::string::npos) {
      const auto byte = peer->Receive(1, kPatience);
      if (!byte) break;
      got += *byte;
    }
    return got;
  }

  MetricsRegistry registry_;
  Counter gone_ = registry_.AddCounter("ems_test_gone", "Clients that left");
  std::atomic<int> asked_{0};
  std::atomic<bool> fails_{false}, padded_{false};
  std::unique_ptr<ClusterPage> page_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ClusterPageTest, ThePageAllowsItsOwnScriptAlone) {
  Open(hours(1));
  const std::string page = Ask("GET /");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(page, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(page, HasSubstr("<title>EMS cluster</title>"));
  EXPECT_EQ(asked_, 0) << "the page itself needs no state";
}

TEST_F(ClusterPageTest, TheStateIsAskedForOnceHoweverManyLook) {
  Open(hours(1));
  for (int i = 0; i < 3; ++i) {
    const std::string state = Ask("GET /state");
    EXPECT_THAT(state, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(state, HasSubstr("{\"n\":1}\n"));
    EXPECT_THAT(state, HasSubstr("Cache-Control: no-store\r\n"));
  }
  EXPECT_EQ(asked_, 1);
}

TEST_F(ClusterPageTest, NobodyIsGivenAnOldState) {
  Open(milliseconds(1));
  EXPECT_THAT(Ask("GET /state"), HasSubstr("{\"n\":1}"));
  EXPECT_TRUE(Eventually([&] { return Ask("GET /state").find("{\"n\":1}") == std::string::npos; }));
}

TEST_F(ClusterPageTest, AStreamTellsEachStateAndEndsWithThePage) {
  Open(milliseconds(1));
  WirePeer peer = Follow();
  const std::string head = ReadTo(&peer, "data: {\"n\":1}\n\n");
  EXPECT_THAT(head, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_THAT(ReadTo(&peer, "data: {\"n\":3}\n\n"), HasSubstr("data: {\"n\":2}\n\n"));
  page_->Close();
  EXPECT_THAT(ReadTo(&peer, "\r\n0\r\n\r\n"), HasSubstr("\r\n0\r\n\r\n")) << "ended, not cut off";
}

TEST_F(ClusterPageTest, StreamsBeyondTheBoundAreRefusedUntilOneEnds) {
  Open(milliseconds(1));
  std::deque<WirePeer> peers;
  for (size_t i = 0; i < ClusterPage::kStreamsMax; ++i) peers.push_back(Follow());
  for (WirePeer& peer : peers) EXPECT_THAT(ReadTo(&peer, "data: "), HasSubstr("data: "));
  const std::string refused = Ask("GET /events");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(refused, HasSubstr("32 streams are open"));
  EXPECT_THAT(Ask("GET /state"), StartsWith("HTTP/1.1 200"));
  peers.pop_front();
  EXPECT_TRUE(Eventually([&] {
    WirePeer peer = Follow();
    return ReadTo(&peer, "\r\n").find(" 200 ") != std::string::npos;
  }));
}

TEST_F(ClusterPageTest, AReaderThatDoesNotReadIsDropped) {
  padded_ = true;
  Open(milliseconds(1));
  const WirePeer peer = Follow();
  EXPECT_TRUE(Eventually([&] { return gone_.value() == 1; }));
}

TEST_F(ClusterPageTest, SaysWhyThereIsNoStateAndGoesOn) {
  fails_ = true;
  Open(milliseconds(1));
  WirePeer peer = Follow();
  EXPECT_THAT(
      ReadTo(&peer, "event: trouble\ndata: {\"error\":\"UNAVAILABLE: no \\\"disk\\\"\"}\n\n"),
      HasSubstr("event: trouble"));
  const std::string refused = Ask("GET /state");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(refused, HasSubstr("no \\\"disk\\\""));
  fails_ = false;
  EXPECT_THAT(ReadTo(&peer, "data: {\"n\":1}\n\n"), HasSubstr("{\"n\":1}"));
}

TEST_F(ClusterPageTest, AHeadHoldsNoStream) {
  Open(milliseconds(1));
  const std::string head = Ask("HEAD /events");
  EXPECT_THAT(head, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(ClusterPageTest, AfterItsEndEachRequestIsRefused) {
  Open(hours(1));
  page_->Close();
  EXPECT_THAT(Ask("GET /state"), HasSubstr("the controller is stopping"));
  EXPECT_THAT(Ask("GET /events"), StartsWith("HTTP/1.1 503"));
}

}  // namespace
}  // namespace ems::controller
