// What must hold: events are numbered and bounded, the oldest goes; a reader gets what came after
// its last one, and all of them from another process.
#include "mp_controller/events/cluster_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ClusterEventsTest : public ::testing::Test {
 protected:
  void Add(const std::string& text) { events_.Add({kNodeJoined, "a", "", text}); }
  std::vector<std::string> List(const v1::ListEventsRequest& request) {
    reply_.Clear();
    events_.List(request, &reply_);
    std::vector<std::string> texts;
    for (const v1::ClusterEvent& event : reply_.events()) texts.push_back(event.text());
    return texts;
  }

  int64_t now_ms_ = 1000;
  ClusterEvents events_{[this] { return now_ms_; }};
  v1::ListEventsReply reply_;
};

TEST_F(ClusterEventsTest, TheyAreNumberedTimedAndNamed) {
  Add("one");
  now_ms_ = 2000;
  events_.Add({kNamespaceDeleted, "", "kv", "two"});
  EXPECT_THAT(List({}), ElementsAre("one", "two"));
  EXPECT_EQ(reply_.events(0).kind(), "node_joined");
  EXPECT_EQ(reply_.events(0).node(), "a");
  EXPECT_EQ(reply_.events(1).sequence(), 2u);
  EXPECT_EQ(reply_.events(1).unix_ms(), 2000);
  EXPECT_EQ(reply_.events(1).name_space(), "kv");
}

TEST_F(ClusterEventsTest, AReaderGetsWhatCameAfterItsLastOne) {
  Add("one");
  Add("two");
  v1::ListEventsRequest request;
  EXPECT_THAT(List(request), SizeIs(2));
  request.set_run(reply_.run());
  request.set_after(2);
  EXPECT_THAT(List(request), IsEmpty());
  Add("three");
  EXPECT_THAT(List(request), ElementsAre("three"));
  request.set_run(reply_.run() + 1);  // of a process before
  EXPECT_THAT(List(request), SizeIs(3));
}

TEST_F(ClusterEventsTest, LimitsKeepTheNewest) {
  for (const char* text : {"one", "two", "three"}) {
    Add(text);
    now_ms_ += 1000;
  }
  v1::ListEventsRequest request;
  request.set_limit(2);
  EXPECT_THAT(List(request), ElementsAre("two", "three"));
  request.set_age_ms_max(1500);
  EXPECT_THAT(List(request), ElementsAre("three"));
  request.Clear();
  request.set_since_unix_ms(2000);
  EXPECT_THAT(List(request), ElementsAre("two", "three"));
  request.set_age_ms_max(UINT64_MAX);
  EXPECT_THAT(List(request), ElementsAre("two", "three"));
}

TEST_F(ClusterEventsTest, TheOldestGoes) {
  for (size_t i = 0; i < ClusterEvents::kEventsMax + 5; ++i) Add(std::to_string(i));
  v1::ListEventsRequest all;
  all.set_limit(2 * ClusterEvents::kEventsMax);  // what is kept, not what one answer may have
  const auto texts = List(all);
  ASSERT_THAT(texts, SizeIs(ClusterEvents::kEventsMax));
  EXPECT_EQ(texts.front(), "5");
  EXPECT_EQ(reply_.events(0).sequence(), 6u);
  Add(std::string(10000, 'x'));
  EXPECT_THAT(List({}).back(), SizeIs(ClusterEvents::kTextBytesMax));
}

}  // namespace
}  // namespace ems::controller
