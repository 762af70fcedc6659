// What must hold: the bytes of a view stay as they are, however long what one side has stored takes
// to reach the other. Both sides are the real ones, ShmSession::Pin and Sharing::Retire; memory is
// a model in which a store is seen by the other side after a full fence, or at a random later
// moment. That the tester can tell is shown by fences that do nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/full_fence.h"
#include "common/object_key.h"
#include "mp_sdk/internal/shm_session.h"
#include "mp_server/index/sharing.h"
#include "tests/support/pool_image.h"
#include "tests/support/reordering_memory.h"
#include "tests/support/self_verifying.h"
#include "tests/support/shm_peer.h"

namespace ems {
namespace {

// Who takes the place of the CPU's fence; none: nobody does. Of the test's thread.
class FenceModel {
 public:
  virtual ~FenceModel() = default;
  virtual void OnFence() = 0;
};
thread_local FenceModel* fence_model = nullptr;

}  // namespace

// In place of common/full_fence.cc, which is not linked then.
void FullFence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (fence_model != nullptr) fence_model->OnFence();
}

namespace internal {
namespace {

using shm::ChunkState;
using testing::MakeValue;
using testing::PoolImage;
using testing::ReorderingMemory;
using testing::ShmPeer;
using testing::VerifyValue;
using namespace std::chrono_literals;

constexpr std::string_view kKey = "key";
constexpr uint64_t kAt = 128;
constexpr size_t kValueBytes = 200;

enum class Broken : uint8_t { kNothing, kClientsFence, kServersFence };

// A server with one chunk, which holds one value of the key after the other, and a client. What
// either has stored lies in its own copy of the memory until it is carried over to the other's.
// Threading: one thread; the server takes its turns between the loads of the client.
class World final : FenceModel {
 public:
  World(uint64_t seed, Broken broken) : random_(seed), broken_(broken) {
    image_.Put(kAt, kKey, MakeValue("ns", kKey, generation_, kValueBytes), generation_);
    CarryServersStores();
    image_.seen_table = &table_;
    image_.seen_segment = &segment_;
    peer_.Start();
    session_ = *ShmSession::Attach(peer_.address(), {.ns = PoolImage::kNs, .token = {}}, 5s, [] {});
    EMS_CHECK(sharing_.Start(PoolImage::kNs, PoolImage::kBootId, true).ok());
    sharing_.AddSession(1, hazards_seen_);
    fence_model = this;
  }
  ~World() override { fence_model = nullptr; }

  struct Tally {
    int views = 0;
    int waited = 0;  // the server, for a view to go
    int reused = 0;  // views whose bytes became another value's
  };
  Tally Play(int rounds) {
    const PoolIdentity identity = image_.identity();
    const ObjectReader reader(&image_, &identity, PoolImage::kView);
    for (int i = 0; i < rounds; ++i) {
      one_in_ = 1 + random_() % 20;
      FoundObject found;
      ObjectView view;
      if (reader.Find(kKey, KeyHash(kKey), &found) != ReadOutcome::kHit ||
          session_->Pin(found, reader, &view) != ShmSession::Pinned::kYes) {
        Turn();
        continue;
      }
      ++tally_.views;
      for (uint64_t turns = random_() % 60; turns > 0; --turns) Turn();
      CarryServersStores();
      const auto put_id = VerifyValue("ns", kKey, AsText(view.bytes()));
      if (put_id != found.entry_word >> 8) ++tally_.reused;
    }
    return tally_;
  }

 private:
  static constexpr uint64_t kStands = 8;  // an object stands for so many times as long as a step
  static constexpr uint64_t kCarried =
      30;  // in one of so many turns stores get there by themselves

  void OnFence() override {
    if (servers_turn_) {
      if (broken_ != Broken::kServersFence) CarryServersStores();
      return;
    }
    Turn();
    if (broken_ != Broken::kClientsFence) CarryClientsStores();
    Turn();
  }
  void Turn() {
    if (random_() % kCarried == 0) CarryClientsStores();
    if (random_() % kCarried == 0) CarryServersStores();
    if (random_() % (step_ == 0 ? kStands * one_in_ : one_in_) != 0) return;
    servers_turn_ = true;
    Step();
    servers_turn_ = false;
  }
  // In the order of NamespaceStore: unlinked, retired, kept if a client looks at it, used again.
  void Step() {
    switch (step_) {
      case 0:
        image_.Unlink(kKey, generation_);
        break;
      case 1:
        image_.SetState(kAt, generation_, ChunkState::kRetired);
        entry_.generation = generation_;
        kept_ = sharing_.Retire(&entry_);
        tally_.waited += kept_ ? 1 : 0;
        break;
      case 2:
        if (kept_ && sharing_.TakeUnnamed().empty()) return;
        ++generation_;
        image_.Write(kAt, kKey, MakeValue("ns", kKey, generation_, kValueBytes), generation_);
        break;
      default:
        image_.Link(kKey, kAt, generation_);
        step_ = 0;
        return;
    }
    ++step_;
  }
  void CarryServersStores() {
    std::ranges::copy(image_.table_file().bytes(), table_seen_.begin());
    std::ranges::copy(image_.segment_file().bytes(), segment_seen_.begin());
  }
  void CarryClientsStores() {
    auto& seen = *reinterpret_cast<shm::SessionPage*>(hazards_seen_->bytes().data());
    const uint32_t end = peer_.page().hazard_end;
    for (uint32_t i = 0; i < end; ++i) seen.hazards[i] = peer_.page().hazards[i].load();
    seen.hazard_end = end;
  }
  static std::shared_ptr<const fabric::ShmSegment> NewPage() {
    auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    EMS_CHECK(made.ok(), "{}", ToString(made.status()));
    new (made->bytes().data()) shm::SessionPage;
    return std::make_shared<const fabric::ShmSegment>(*std::move(made));
  }

  std::mt19937_64 random_;
  const Broken broken_;
  uint64_t one_in_ = 1;
  bool servers_turn_ = false;
  Tally tally_;

  // The server's.
  PoolImage image_{4 * kKiB};
  server::Sharing sharing_;
  server::ObjectEntry entry_;
  const std::shared_ptr<const fabric::ShmSegment> hazards_seen_ = NewPage();
  uint64_t generation_ = 1;
  int step_ = 0;
  bool kept_ = false;

  // The client's.
  std::vector<std::byte> table_seen_ = std::vector<std::byte>(image_.table_file().size_bytes());
  std::vector<std::byte> segment_seen_ = std::vector<std::byte>(image_.segment_file().size_bytes());
  const ReorderingMemory table_{table_seen_, &random_, [this] { Turn(); }};
  const ReorderingMemory segment_{segment_seen_, &random_, [this] { Turn(); }, true};
  ShmPeer peer_{&image_};
  std::shared_ptr<ShmSession> session_;
};

class HazardReorderTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(HazardReorderTest, TheBytesOfAViewStayAsTheyAre) {
  const World::Tally tally = World(GetParam(), Broken::kNothing).Play(20'000);
  EXPECT_GT(tally.views, 2000) << "the test has to get through at times";
  EXPECT_GT(tally.waited, 200) << "and the server to find hazards";
  EXPECT_EQ(tally.reused, 0);
}

TEST_P(HazardReorderTest, AClientWithoutItsFenceIsCaught) {
  EXPECT_GT(World(GetParam(), Broken::kClientsFence).Play(5'000).reused, 0);
}

TEST_P(HazardReorderTest, AServerWithoutItsFenceIsCaught) {
  EXPECT_GT(World(GetParam(), Broken::kServersFence).Play(5'000).reused, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HazardReorderTest, ::testing::Values(1, 2, 3, 20240817),
                         [](const auto& one) { return "seed" + std::to_string(one.param); });

}  // namespace
}  // namespace internal
}  // namespace ems
