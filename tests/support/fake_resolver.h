#pragma once
// The system's resolver under a test's control. Included by one source of a program: the
// getaddrinfo here stands in front of the library's. Whatever is a number is none of its business.
#include <dlfcn.h>
#include <netdb.h>

#include <atomic>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::testing {

// The numbers of a name, with spaces in between; none: there is no such name.
using Resolver = std::function<std::string(const std::string& name)>;

inline Guarded<Resolver>& TheResolver() {
  static Guarded<Resolver> resolver;
  return resolver;
}

// Answers for names while it exists. Threading: one thread; its counts are for any.
class FakeResolver final {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(20);
  // What the resolver's threads touch: they may outlive the test.
  struct Asked {
    std::atomic<int> times{0}, waiting{0};
    StopFlag end;
  };

  FakeResolver() = default;
  ~FakeResolver() {
    Use({});
    asked_->end.Set();
  }
  FakeResolver(const FakeResolver&) = delete;
  FakeResolver& operator=(const FakeResolver&) = delete;

  // Every name has these numbers.
  void Answer(std::string numbers) {
    Use([asked = asked_, numbers = std::move(numbers)](const std::string&) {
      ++asked->times;
      return numbers;
    });
  }
  // No answer until the end of the test, or until asked().end is set: these numbers then.
  void BeSilent(std::string numbers = "127.0.0.9") {
    Use([asked = asked_, numbers = std::move(numbers)](const std::string&) {
      ++asked->waiting;
      ++asked->times;
      asked->end.WaitFor(kPatience);
      return numbers;
    });
  }
  Asked& asked() { return *asked_; }

 private:
  static void Use(Resolver resolver) {
    auto locked = TheResolver().Lock();
    *locked = std::move(resolver);
  }
  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
};

}  // namespace ems::testing

extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  ems::testing::Resolver resolver;
  if (name != nullptr && hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    auto locked = ems::testing::TheResolver().Lock();
    resolver = *locked;
  }
  if (!resolver) return real(name, service, hints, found);
  std::istringstream numbers(resolver(name));
  int error = EAI_NONAME;
  std::string number;
  for (addrinfo** end = found; numbers >> number;) {
    error = real(number.c_str(), service, hints, end);
    if (error != 0) break;
    while (*end != nullptr) end = &(*end)->ai_next;
  }
  return error;
}
