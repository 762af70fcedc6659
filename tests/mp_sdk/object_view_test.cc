// What must hold: an empty view is harmless; what holds bytes in place is tested with the session
// (internal/shm_session_test.cc) and with a server (client_one_sided_test.cc).
#include "mp_sdk/object_view.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

TEST(ObjectViewTest, AnEmptyViewHasNoBytes) {
  ObjectView view;
  EXPECT_FALSE(view);
  EXPECT_FALSE(view.mapped());
  EXPECT_TRUE(view.bytes().empty());
  EXPECT_TRUE(view.Verify().ok());
  ObjectView moved = std::move(view);
  moved.Release();
  moved.Release();
  EXPECT_FALSE(moved);
}

}  // namespace
}  // namespace ems
