// What must hold: no lookup takes longer than its time, whatever the name servers do; what was
// found once serves until there is something newer; threads are bounded.
#include "fabric/net/name_lookup.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "common/check.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_resolver.h"

namespace ems::fabric {
namespace {

constexpr Duration kSoon = std::chrono::milliseconds(20);
constexpr Duration kPatience = std::chrono::seconds(20);

std::string TextOf(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address.get());
  ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  return std::string(text) + ":" + std::to_string(ntohs(v4->sin_port));
}

class NameLookupTest : public ::testing::Test {
 protected:
  ~NameLookupTest() override { asked_->end.Set(); }
  void Answer(std::string number) { resolver_.Answer(std::move(number)); }
  void BeSilent() { resolver_.BeSilent(); }
  std::string Find(const std::string& host, Duration timeout = kPatience) {
    const auto found = names_.Find(host, 7, timeout);
    return found.ok() ? TextOf((*found)->front()) : std::string(CodeName(found.status().code()));
  }

  testing::FakeResolver resolver_;
  testing::FakeResolver::Asked* const asked_ = &resolver_.asked();
  ManualClock clock_;
  NameLookup names_{clock_};
};

TEST_F(NameLookupTest, ANumberIsNotLookedUp) {
  BeSilent();
  EXPECT_EQ(Find("127.0.0.1", Duration::zero()), "127.0.0.1:7");
  EXPECT_EQ(asked_->times, 0);
}

TEST_F(NameLookupTest, WhatWasFoundIsNotLookedUpAgainSoon) {
  Answer("127.0.0.2");
  EXPECT_EQ(Find("server"), "127.0.0.2:7");
  EXPECT_EQ(Find("server"), "127.0.0.2:7");
  EXPECT_EQ(asked_->times, 1);
}

TEST_F(NameLookupTest, ASilentResolverTakesNoMoreThanTheTimeThatThereIs) {
  BeSilent();
  EXPECT_EQ(Find("server", kSoon), "DEADLINE_EXCEEDED");
  EXPECT_EQ(Find("server", kSoon), "DEADLINE_EXCEEDED");
  EXPECT_EQ(asked_->times, 1) << "one lookup for all who ask";
  asked_->end.Set();
  EXPECT_EQ(Find("server"), "127.0.0.9:7");
}

TEST_F(NameLookupTest, ANameThatDoesNotExistIsSaidAndAskedForAgain) {
  Answer("");
  EXPECT_EQ(Find("server"), "UNAVAILABLE");
  const auto found = names_.Find("server", 7, Duration::zero(), clock_.Now());
  EXPECT_EQ(found.status().code(), StatusCode::kUnavailable) << "as was asked for then";
  EXPECT_EQ(asked_->times, 1);
  Answer("127.0.0.3");
  EXPECT_EQ(Find("server"), "127.0.0.3:7");
}

TEST_F(NameLookupTest, WhatIsKnownServesWhileTheResolverIsSilentOrWrong) {
  Answer("127.0.0.4");
  EXPECT_EQ(Find("server"), "127.0.0.4:7");
  clock_.Advance(NameLookup::kFreshFor);
  Answer("");
  EXPECT_EQ(Find("server", Duration::zero()), "127.0.0.4:7");
  EXPECT_TRUE(testing::Eventually([&] { return asked_->times == 2; }));
  BeSilent();
  EXPECT_TRUE(testing::Eventually(
      [&] { return Find("server", Duration::zero()) == "127.0.0.4:7" && asked_->waiting == 1; }));
  asked_->end.Set();
  EXPECT_TRUE(testing::Eventually([&] { return Find("server") == "127.0.0.9:7"; }));
}

TEST_F(NameLookupTest, LookupsThatDoNotEndAreBounded) {
  BeSilent();
  for (size_t i = 0; i < NameLookup::kLookupsMax; ++i)
    EXPECT_EQ(Find("server-" + std::to_string(i), Duration::zero()), "DEADLINE_EXCEEDED");
  const TimePoint begin = Clock::System().Now();
  EXPECT_EQ(Find("one-more", kSoon), "RESOURCE_EXHAUSTED");
  EXPECT_GE(Clock::System().Now() - begin, kSoon) << "a place may become free";
  EXPECT_TRUE(testing::Eventually([&] { return asked_->waiting == int{NameLookup::kLookupsMax}; }));
  Thread waiting("one-more", [&] { EXPECT_EQ(Find("one-more"), "127.0.0.9:7"); });
  asked_->end.Set();
}

TEST_F(NameLookupTest, ACallThatConnectsKeepsItsTime) {
  BeSilent();
  static int run = 0;  // what all of the process share remembers names
  const std::string first = "ems-first-" + std::to_string(++run);
  const std::string second = "ems-second-" + std::to_string(run);
  const TimePoint begin = Clock::System().Now();
  const auto fd = Connect({.host = first, .port = 7, .unix_path = ""}, kSoon);
  EXPECT_EQ(fd.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(StartConnect({.host = second, .port = 7, .unix_path = ""}, 0).ok());
  EXPECT_LT(Clock::System().Now() - begin, kPatience / 2);
  asked_->end.Set();
  for (int i = 0; i < 2; ++i) {  // the second time joins the threads, too
    EXPECT_TRUE(NameLookup::Shared().Find(first, 7, kPatience).ok());
    EXPECT_TRUE(NameLookup::Shared().Find(second, 7, kPatience).ok());
  }
}

// A listener that takes no further connection and does not refuse any, so that those who ask wait.
class DeafListener final {
 public:
  explicit DeafListener(const char* number) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    EMS_CHECK(::inet_pton(AF_INET, number, &local.sin_addr) == 1 &&
              ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&local), sizeof(local)) == 0 &&
              ::listen(listener_.get(), 0) == 0);
    // Its queue has room for one.
    taken_ = *Connect({.host = number, .port = port(), .unix_path = ""}, kPatience);
  }
  uint16_t port() const { return BoundPort(listener_.get()); }

 private:
  const Fd listener_;
  Fd taken_;
};

TEST_F(NameLookupTest, AllAddressesOfANameShareTheTimeOfOneCall) {
  const DeafListener deaf("127.0.0.2");
  std::string numbers;
  for (int i = 0; i < 8; ++i) numbers += "127.0.0.2 ";
  Answer(numbers);
  const Duration timeout = std::chrono::milliseconds(200);
  const TimePoint begin = Clock::System().Now();
  const auto fd = Connect({.host = "ems-deaf", .port = deaf.port(), .unix_path = ""}, timeout);
  EXPECT_EQ(fd.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::System().Now() - begin, 4 * timeout) << "and not one timeout each";
}

TEST_F(NameLookupTest, AnAddressThatDoesNotAnswerLeavesTimeForTheNext) {
  const DeafListener deaf("127.0.0.2");
  const auto listener = ListenTcp({.host = "127.0.0.3", .port = deaf.port(), .unix_path = ""});
  ASSERT_TRUE(listener.ok()) << listener.status();
  Answer("127.0.0.2 127.0.0.3");
  const Duration timeout = std::chrono::seconds(1);
  const TimePoint begin = Clock::System().Now();
  EXPECT_TRUE(
      Connect({.host = "ems-half-deaf", .port = deaf.port(), .unix_path = ""}, timeout).ok());
  EXPECT_LT(Clock::System().Now() - begin, timeout);
}

}  // namespace
}  // namespace ems::fabric
