// What must hold: no lookup takes longer than its time, whatever the name servers do; what was
// found once serves until there is something newer; threads are bounded.
#include "fabric/net/name_lookup.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"
#include "tests/support/eventually.h"

namespace {

// Answers for the resolver: numbers to be looked up instead, or none for "no such name".
using Numbers = std::vector<std::string>;
using Resolver = std::function<Numbers(const std::string&)>;
ems::Guarded<Resolver>& TheResolver() {
  static ems::Guarded<Resolver> resolver;
  return resolver;
}

}  // namespace

// In front of the library's.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  Resolver resolver;
  if (name != nullptr && hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    auto locked = TheResolver().Lock();
    resolver = *locked;
  }
  if (!resolver) return real(name, service, hints, found);
  const Numbers numbers = resolver(name);
  for (const std::string& number : numbers) {
    const int error = real(number.c_str(), service, hints, found);
    if (error != 0) return error;
    while (*found != nullptr) found = &(*found)->ai_next;
  }
  return numbers.empty() ? EAI_NONAME : 0;
}

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
  // What the resolver's threads touch: they may outlive the test.
  struct Asked {
    std::atomic<int> times{0}, waiting{0};
    StopFlag end;
  };

  ~NameLookupTest() override {
    Use({});
    asked_->end.Set();
  }
  static void Use(Resolver resolver) {
    auto locked = TheResolver().Lock();
    *locked = std::move(resolver);
  }
  void Answer(Numbers numbers) {
    Use([asked = asked_, numbers = std::move(numbers)](const std::string&) {
      ++asked->times;
      return numbers;
    });
  }
  // Until the end of the test, or until asked_->end is set.
  void BeSilent() {
    Use([asked = asked_](const std::string&) {
      ++asked->waiting;
      ++asked->times;
      asked->end.WaitFor(kPatience);
      return Numbers{"127.0.0.9"};
    });
  }
  std::string Find(const std::string& host, Duration timeout = kPatience) {
    const auto found = names_.Find(host, 7, timeout);
    return found.ok() ? TextOf((*found)->front()) : std::string(CodeName(found.status().code()));
  }

  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  ManualClock clock_;
  NameLookup names_{clock_};
};

TEST_F(NameLookupTest, ANumberIsNotLookedUp) {
  BeSilent();
  EXPECT_EQ(Find("127.0.0.1", Duration::zero()), "127.0.0.1:7");
  EXPECT_EQ(asked_->times, 0);
}

TEST_F(NameLookupTest, WhatWasFoundIsNotLookedUpAgainSoon) {
  Answer({"127.0.0.2"});
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
  Answer({});
  EXPECT_EQ(Find("server"), "UNAVAILABLE");
  Answer({"127.0.0.3"});
  EXPECT_EQ(Find("server"), "127.0.0.3:7");
}

TEST_F(NameLookupTest, WhatIsKnownServesWhileTheResolverIsSilentOrWrong) {
  Answer({"127.0.0.4"});
  EXPECT_EQ(Find("server"), "127.0.0.4:7");
  clock_.Advance(NameLookup::kFreshFor);
  Answer({});
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
  EXPECT_EQ(Find("one-more"), "UNAVAILABLE");
  EXPECT_TRUE(testing::Eventually([&] { return asked_->waiting == int{NameLookup::kLookupsMax}; }));
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
  Answer(Numbers(8, "127.0.0.2"));
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
  Answer({"127.0.0.2", "127.0.0.3"});
  const Duration timeout = std::chrono::seconds(1);
  const TimePoint begin = Clock::System().Now();
  EXPECT_TRUE(
      Connect({.host = "ems-half-deaf", .port = deaf.port(), .unix_path = ""}, timeout).ok());
  EXPECT_LT(Clock::System().Now() - begin, timeout);
}

}  // namespace
}  // namespace ems::fabric
