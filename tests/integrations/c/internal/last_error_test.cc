#include "integrations/c/internal/last_error.h"

#include <gtest/gtest.h>

#include <exception>
#include <new>
#include <string>

#include "common/thread_pool.h"

namespace ems::capi {
namespace {

TEST(LastErrorTest, AFailureKeepsItsTextAndOkDoesNotTouchIt) {
  EXPECT_EQ(Report(Error(StatusCode::kUnavailable, "server-1 is gone")), EMS_UNAVAILABLE);
  EXPECT_STREQ(LastError(), "server-1 is gone");
  EXPECT_EQ(Report(OkStatus()), EMS_OK);
  EXPECT_STREQ(LastError(), "server-1 is gone");
}

TEST(LastErrorTest, AMissAndAnErrorWithoutATextHaveOneAllTheSame) {
  EXPECT_EQ(Report(Miss()), EMS_NOT_FOUND);
  EXPECT_STREQ(LastError(), "no such key");
  EXPECT_EQ(Report(Status(StatusCode::kDataLoss, "")), EMS_DATA_LOSS);
  EXPECT_STREQ(LastError(), "DATA_LOSS");
}

TEST(LastErrorTest, ALongTextIsCut) {
  EXPECT_EQ(Fail(EMS_INTERNAL, std::string(2000, 'x')), EMS_INTERNAL);
  EXPECT_EQ(std::string(LastError()), std::string(kTextMax, 'x'));
}

TEST(LastErrorTest, EachThreadHasItsOwn) {
  Fail(EMS_INTERNAL, "mine");
  std::string seen = "unset";
  Thread("other", [&] {
    seen = LastError();
    Fail(EMS_INTERNAL, "theirs");
  }).Join();
  EXPECT_EQ(seen, "");
  EXPECT_STREQ(LastError(), "mine");
}

TEST(LastErrorTest, NoExceptionGetsPastTheBoundary) {
  // Past the end of a string, and no memory.
  EXPECT_EQ(AtBoundary([]() -> ems_status {
              return std::string("x").at(5) == 'y' ? EMS_OK : EMS_UNKNOWN;
            }),
            EMS_INTERNAL);
  EXPECT_NE(std::string(LastError()), "");
  const std::exception_ptr no_memory = std::make_exception_ptr(std::bad_alloc());
  EXPECT_EQ(AtBoundary([&]() -> ems_status { std::rethrow_exception(no_memory); }),
            EMS_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(LastError(), "out of memory");
}

}  // namespace
}  // namespace ems::capi
