#include "common/fail_point.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/parse_number.h"

namespace ems {
namespace {

constexpr size_t kPlacesMax = 64;

enum class Action : uint8_t { kKill, kSleep, kError };
struct Armed {
  Action action = Action::kKill;
  uint64_t sleep_ms = 0;
  uint64_t at_hit = 0;  // 0: at each
  uint64_t hits = 0;
};
using Places = std::map<std::string, Armed, std::less<>>;

// One for the process: places are named in code that knows nobody.
Guarded<Places>& AllPlaces() {
  static Guarded<Places> places;
  return places;
}

Result<uint64_t> ParseCount(std::string_view text) {
  if (const auto value = ParseNumber<uint64_t>(text)) return *value;
  return Error(StatusCode::kInvalidArgument, "\"{}\" is no number", Printable(text));
}

Result<Armed> ParseAction(std::string_view text) {
  Armed armed;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    EMS_ASSIGN_OR_RETURN(armed.at_hit, ParseCount(text.substr(at + 1)));
    text = text.substr(0, at);
  }
  if (text == "kill") return armed;
  armed.action = Action::kError;
  if (text == "error") return armed;
  armed.action = Action::kSleep;
  if (text.starts_with("sleep(") && text.ends_with(")")) {
    EMS_ASSIGN_OR_RETURN(armed.sleep_ms, ParseCount(text.substr(6, text.size() - 7)));
    return armed;
  }
  return Error(StatusCode::kInvalidArgument, "\"{}\": kill, error and sleep(MS) are known",
               Printable(text));
}

}  // namespace

std::atomic<bool> internal::fail_points_armed{false};

Status ArmFailPoints(std::string_view text) {
  Places wanted;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 || wanted.size() >= kPlacesMax)
      return Error(StatusCode::kInvalidArgument, "fail point \"{}\": name=action[@hit], {} at most",
                   Printable(word), kPlacesMax);
    Result<Armed> armed = ParseAction(std::string_view(word).substr(equals + 1));
    if (!armed.ok()) return Prefixed(armed.status(), "fail point " + word.substr(0, equals));
    wanted[word.substr(0, equals)] = *armed;
  }
  const bool any = !wanted.empty();
  {
    auto places = AllPlaces().Lock();
    places->swap(wanted);
  }
  internal::fail_points_armed.store(any, std::memory_order_relaxed);
  return OkStatus();
}

Status internal::HitFailPoint(std::string_view name) {
  Armed armed;
  {
    auto places = AllPlaces().Lock();
    const auto place = places->find(name);
    if (place == places->end()) return OkStatus();
    ++place->second.hits;
    armed = place->second;
  }
  if (armed.at_hit != 0 && armed.hits != armed.at_hit) return OkStatus();
  switch (armed.action) {
    case Action::kKill:
      ::kill(::getpid(), SIGKILL);
      ::pause();  // until the signal arrives
      break;
    case Action::kSleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(armed.sleep_ms));
      break;
    case Action::kError:
      return Error(StatusCode::kUnavailable, "fail point {}", name);
  }
  return OkStatus();
}

}  // namespace ems
