#include "mp_controller/publish/encoded_update.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::controller {
namespace {

TEST(EncodedUpdateTest, IsMadeOnceAndOnlyWhenAskedFor) {
  int made = 0;
  const auto keeper = std::make_shared<int>();
  EncodedUpdate update([&made, keeper] {
    ++made;
    return std::make_shared<const std::string>("bytes");
  });
  EXPECT_EQ(made, 0);
  const EncodedUpdate::Bytes first = update.Get();
  EXPECT_EQ(*first, "bytes");
  EXPECT_EQ(update.Get(), first);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(keeper.use_count(), 1) << "what it was made of is not kept";
}

TEST(EncodedUpdateTest, ManyThreadsShareTheSameBytes) {
  std::atomic<int> made{0};
  EncodedUpdate update([&made] {
    ++made;
    return std::make_shared<const std::string>(1000, 'x');
  });
  Guarded<std::set<EncodedUpdate::Bytes>> seen;
  {
    std::vector<Thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back("get", [&] {
        const EncodedUpdate::Bytes bytes = update.Get();
        auto all = seen.Lock();
        all->insert(bytes);
      });
    }
  }
  EXPECT_EQ(made, 1);
  auto all = seen.Lock();
  EXPECT_EQ(all->size(), 1u);
}

}  // namespace
}  // namespace ems::controller
