// What must hold without a pool or a controller: every call says so, at once or in time. With them:
// tests/ems_model/model_cache_test.cc.
#include "ems_model/internal/client_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems::model::internal {
namespace {

using ::testing::HasSubstr;

constexpr Duration kSoon = std::chrono::seconds(1);

TEST(ClientPoolTest, WithoutAClientEachItemSaysWhy) {
  ClientPool pool(Error(StatusCode::kNotFound, "no such namespace"));
  const std::vector<GetItem> items(3);
  const auto read = pool.Read(items, kSoon);
  ASSERT_EQ(read.size(), 3u);
  for (const auto& one : read) {
    EXPECT_EQ(one.status().code(), StatusCode::kUnavailable) << "that there is none may pass";
    EXPECT_THAT(std::string(Message(one.status())), HasSubstr("no such namespace"));
  }
  const std::vector<RangeItem> ranges(2);
  const auto parts = pool.ReadRanges(ranges, kSoon);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].code(), StatusCode::kUnavailable);
  EXPECT_EQ(pool.Probe({}, kSoon).code(), StatusCode::kUnavailable);
  EXPECT_EQ(pool.view(), 0u);
}

TEST(ClientPoolTest, WithoutAControllerTheCatalogSaysSoInTime) {
  ModelsClient models("127.0.0.1:1");
  ControllerCatalog catalog(&models, 7);
  EXPECT_EQ(RefOf(7).id(), 7u);
  const Deadline deadline = Deadline::After(kSoon);
  const Status digests = catalog.Digests(0, Duration(0), deadline).status();
  EXPECT_TRUE(digests.code() == StatusCode::kUnavailable ||
              digests.code() == StatusCode::kDeadlineExceeded)
      << digests;
  const Status job = catalog.StartJob(0, Deadline::After(kSoon)).status();
  EXPECT_TRUE(job.code() == StatusCode::kUnavailable || job.code() == StatusCode::kDeadlineExceeded)
      << job;
}

}  // namespace
}  // namespace ems::model::internal
