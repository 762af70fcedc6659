// What must hold: whoever looks gets a state of now, streams end when the page does, and neither
// many readers nor slow ones cost more than the bounds say.
#include "mp_controller/page/cluster_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "tests/mp_controller/temp_dir.h"
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
// Longer than this machine has been up: what was never asked for is not fresh.
constexpr Duration kOnce = hours(24 * 3650);

// A page whose states are {"n": 1}, {"n": 2} …, or a failure.
class ClusterPageTest : public ::testing::Test {
 protected:
  void Open(Duration every) {
    page_ = std::make_unique<ClusterPage>([this] { return State(); }, every, password_);
    std::map<std::string, fabric::HttpHandler> pages;
    for (const auto& page : page_->pages()) pages[page.path] = page.show;
    HttpServerOptions options;
    options.unsent_bytes_max = 2 * kPadBytes;
    options.write_timeout = write_timeout_;
    server_ = testing::Serve(
        [this, pages](const auto& exchange) {
          pages.at(exchange->request().path)(exchange);
          auto exchanges = exchanges_.Lock();
          exchanges->push_back(exchange);
        },
        options, {.gone = gone_});
  }
  void TearDown() override {
    go_on_.Set();
    if (page_ != nullptr) page_->Close();
    server_.reset();
  }
  Result<std::string> State() {
    if (slow_) (void)go_on_.WaitFor(kPatience);
    if (fails_) return Error(StatusCode::kUnavailable, "no \"disk\"");
    return "{\"n\":" + std::to_string(++asked_) + "}" + std::string(padded_ ? kPadBytes : 0, ' ');
  }
  // `headers`: whole lines.
  std::string Ask(const std::string& request, const std::string& headers = "") {
    return testing::Ask(
        *server_, request + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + "\r\n");
  }
  WirePeer Follow() {
    WirePeer peer = WirePeer::Connect(server_->address());
    EXPECT_TRUE(peer.Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
    return peer;
  }
  // Asks for `path`, and leaves once the page has the request.
  void AskAndLeave(const std::string& path) {
    const size_t before = Requests();
    WirePeer peer = WirePeer::Connect(server_->address());
    EXPECT_TRUE(peer.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_TRUE(Eventually([&] { return Requests() > before; }));
  }
  size_t Requests() {
    auto exchanges = exchanges_.Lock();
    return exchanges->size();
  }
  // Exchanges that somebody keeps.
  ptrdiff_t KeptExchanges() {
    auto exchanges = exchanges_.Lock();
    return std::ranges::count_if(*exchanges, [](const auto& one) { return !one.expired(); });
  }
  // What has come when `text` has; all of it when the stream has ended before, or much has come.
  static std::string ReadTo(WirePeer* peer, const std::string& text) {
    std::string got;
    while (got.find(text) == std::string::npos && got.size() < kMiB) {
      const auto byte = peer->Receive(1, kPatience);
      if (!byte) break;
      got += *byte;
    }
    return got;
  }

  MetricsRegistry registry_;
  Counter gone_ = registry_.AddCounter("ems_test_gone", "Clients that left");
  std::atomic<int> asked_{0};
  std::atomic<bool> fails_{false}, padded_{false}, slow_{false};
  StopFlag go_on_;  // for slow_
  std::optional<PagePassword> password_;
  Duration write_timeout_ = kPatience;
  Guarded<std::vector<std::weak_ptr<fabric::HttpExchange>>> exchanges_;
  std::unique_ptr<ClusterPage> page_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ClusterPageTest, APasswordIsAskedForOnEachPathAndTellsNothingBefore) {
  const TempDir dir;
  const std::string file = dir.path() + "/password";
  std::ofstream(file) << "correct horse battery";
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  const auto password = PagePassword::Read(file);
  ASSERT_TRUE(password.ok()) << password.status();
  password_ = *password;
  Open(kOnce);
  for (const char* path : {"/", "/state", "/events"}) {
    for (const char* header : {"", "Authorization: Basic ZW1zOndyb25nIGhvcnNlIGJhdHRlcnk=\r\n"}) {
      for (const char* method : {"GET ", "HEAD "}) {
        const std::string refused = Ask(std::string(method) + path, header);
        EXPECT_THAT(refused, StartsWith("HTTP/1.1 401 Unauthorized")) << path;
        EXPECT_THAT(refused, HasSubstr("WWW-Authenticate: Basic realm=\"EMS cluster\""));
        EXPECT_THAT(refused, ::testing::Not(HasSubstr("EventSource")));
        EXPECT_THAT(refused, ::testing::Not(HasSubstr("\"n\"")));
      }
    }
  }
  EXPECT_EQ(asked_, 0) << "nobody who may look has looked";
  const std::string right = "Authorization: Basic ZW1zOmNvcnJlY3QgaG9yc2UgYmF0dGVyeQ==\r\n";
  EXPECT_THAT(Ask("GET /", right), HasSubstr("new EventSource('events')"));
  EXPECT_THAT(Ask("GET /state", right), HasSubstr("{\"n\":1}"));
  EXPECT_THAT(Ask("HEAD /events", right), StartsWith("HTTP/1.1 200"));
}

TEST_F(ClusterPageTest, ThePageAllowsItsOwnScriptAlone) {
  Open(kOnce);
  const std::string page = Ask("GET /");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  for (const char* header : {"X-Content-Type-Options: nosniff\r\n", "Cache-Control: no-store\r\n",
                             "Referrer-Policy: no-referrer\r\n", "X-Frame-Options: DENY\r\n"})
    EXPECT_THAT(page, HasSubstr(header));
  EXPECT_THAT(page, HasSubstr("<title>EMS cluster</title>"));
  EXPECT_EQ(asked_, 0) << "the page itself needs no state";
}

TEST_F(ClusterPageTest, TheStateIsAskedForOnceHoweverManyLook) {
  Open(kOnce);
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
  for (int i = 0; i < 2; ++i)  // later ones; which, depends on how soon each is taken
    EXPECT_THAT(ReadTo(&peer, "}\n\n"), HasSubstr("data: {\"n\":"));
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

TEST_F(ClusterPageTest, WhoLeavesBeforeThereIsAStateIsForgottenAtOnce) {
  slow_ = true;
  Open(milliseconds(1));
  for (size_t i = 0; i <= ClusterPage::kWaitingMax; ++i) AskAndLeave("/state");
  for (size_t i = 0; i <= ClusterPage::kStreamsMax; ++i) AskAndLeave("/events");
  EXPECT_TRUE(Eventually([&] { return KeptExchanges() == 0; })) << KeptExchanges();
  WirePeer peer = Follow();
  slow_ = false;
  go_on_.Set();
  EXPECT_THAT(ReadTo(&peer, "data: "), HasSubstr(" 200 "));
  EXPECT_THAT(Ask("GET /state"), StartsWith("HTTP/1.1 200"));
}

TEST_F(ClusterPageTest, NotMoreThanTheBoundWaitForAState) {
  slow_ = true;
  Open(milliseconds(1));
  std::deque<WirePeer> peers;
  for (size_t i = 0; i < ClusterPage::kWaitingMax; ++i) {
    peers.push_back(WirePeer::Connect(server_->address()));
    EXPECT_TRUE(peers.back().Send("GET /state HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  EXPECT_TRUE(Eventually([&] { return Requests() == ClusterPage::kWaitingMax; }));
  EXPECT_THAT(Ask("GET /state"), StartsWith("HTTP/1.1 503"));
  go_on_.Set();
  for (WirePeer& peer : peers) EXPECT_THAT(ReadTo(&peer, "\r\n"), HasSubstr(" 200 "));
}

TEST_F(ClusterPageTest, ASlowReaderMissesStatesAndKeepsItsStream) {
  padded_ = true;
  Open(milliseconds(1));
  WirePeer peer = Follow();
  // More than the buffers of the kernel and the bound of the stream hold.
  constexpr int kMissed = 500;
  EXPECT_TRUE(Eventually([&] { return asked_ > kMissed; }));
  std::string tail;
  for (int last = 0; last <= kMissed;) {
    const std::string part = peer.Receive(4 * kKiB).value_or("");
    ASSERT_FALSE(part.empty()) << "cut off after state " << last;
    tail += part;
    const size_t at = tail.rfind("{\"n\":");
    if (at != std::string::npos) last = std::atoi(tail.c_str() + at + 5);
    tail.erase(0, tail.size() - 20);  // may be the beginning of a state
  }
  EXPECT_EQ(gone_.value(), 0);
}

TEST_F(ClusterPageTest, AReaderThatDoesNotReadIsDropped) {
  padded_ = true;
  write_timeout_ = milliseconds(100);
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
  EXPECT_THAT(ReadTo(&peer, "data: {\"n\":"), HasSubstr("data: {\"n\":"));
}

TEST_F(ClusterPageTest, AHeadHoldsNoStream) {
  Open(milliseconds(1));
  const std::string head = Ask("HEAD /events");
  EXPECT_THAT(head, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(ClusterPageTest, AfterItsEndEachRequestIsRefused) {
  Open(kOnce);
  page_->Close();
  EXPECT_THAT(Ask("GET /state"), HasSubstr("the controller is stopping"));
  EXPECT_THAT(Ask("GET /events"), StartsWith("HTTP/1.1 503"));
}

}  // namespace
}  // namespace ems::controller
