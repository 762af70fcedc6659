// What must hold: an event is a line for people and an object for scripts, whatever its texts are;
// --since takes ages and times, and nothing else.
#include "tools/emsctl/events_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "proto/controller.pb.h"

namespace ems::emsctl {
namespace {

v1::ClusterEvent Event() {
  v1::ClusterEvent event;
  event.set_sequence(3);
  event.set_unix_ms(1'795'782'078'788);
  event.set_kind("node_lost");
  event.set_node("a");
  event.set_text("gone\n\x1b");
  return event;
}

TEST(EventsTextTest, ALineHasTimeKindAndSentence) {
  EXPECT_EQ(EventText(Event()), "2026-11-27T12:21:18.788Z  node_lost           gone\\x0a\\x1b\n");
}

TEST(EventsTextTest, AnObjectHasAllOfIt) {
  EXPECT_EQ(EventJson(Event()).dump(),
            R"({"sequence":3,"time":"2026-11-27T12:21:18.788Z","kind":"node_lost","node":"a",)"
            R"("namespace":"","text":"gone\n\u001b"})");
}

TEST(EventsTextTest, SinceIsAnAgeOrATime) {
  EXPECT_EQ(ParseSince("90s")->age_ms, 90'000u);
  EXPECT_EQ(ParseSince("10m")->age_ms, 600'000u);
  EXPECT_EQ(ParseSince("2h")->age_ms, 7'200'000u);
  EXPECT_EQ(ParseSince("1d")->age_ms, 86'400'000u);
  EXPECT_EQ(ParseSince("2026-11-27T13:21:18.788+01:00")->unix_ms, 1'795'782'078'788);
  for (const char* text : {"", "s", "10", "0s", "-1h", "10w", "1h2", "yesterday", "1000000000d"})
    EXPECT_FALSE(ParseSince(text).has_value()) << text;
}

}  // namespace
}  // namespace ems::emsctl
