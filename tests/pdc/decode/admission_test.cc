// What must hold: a task is admitted when it has room and a place in the batch, the oldest first;
// it is handed on, waits again, or ends, once; nothing stays held when all have ended.
#include "pdc/decode/admission.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pdc/prefill/local_prefill_peer.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/decode/recording_sink.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/pdc/prefill/flaky_prefill_peer.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using context::test::FakeBlockStore;
using ems::testing::Eventually;
using std::chrono::milliseconds;
using test::EngineRig;
using test::FlakyPrefillPeer;
using test::PrefillFault;
using test::RandomTokens;
using test::RecordingSink;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};
constexpr size_t kPrompt = 20;  // two blocks, with the first token

// One prefill worker behind a peer that fails as a test wants; the test is the decode loop.
class AdmissionTest : public ::testing::Test {
 protected:
  struct Told {
    std::vector<DecodeJobPtr> arrived;
    std::vector<std::pair<DecodeJobPtr, Result<FinishReason>>> ended;
    uint64_t room = 0;
  };

  void SetUp() override {
    prefill_memory_.resize(KvArena::BlockBytes(rig_.model->config(), kKv) * 64);
    auto worker = PrefillWorker::Create(rig_.model, prefill_memory_, &store_, {.kv = kKv});
    ASSERT_TRUE(worker.ok()) << worker.status();
    prefill_ = *std::move(worker);
    auto peer = LocalPrefillPeer::Create("prefill", prefill_.get(),
                                         {.ring = {.entries = 4, .entry_bytes = 4 * kKiB}});
    ASSERT_TRUE(peer.ok()) << peer.status();
    real_ = *std::move(peer);
    peer_ = std::make_unique<FlakyPrefillPeer>(real_.get(), [this](int n) { return fault_(n); });
  }
  void TearDown() override {
    admission_.reset();
    for (const auto& job : jobs_) job->generation.reset();
  }
  void Make(uint32_t blocks, const AdmissionOptions& options = {}) {
    memory_.resize(KvArena::BlockBytes(rig_.model->config(), kKv) * blocks);
    arena_ = *KvArena::Create(rig_.model->config(), kKv, memory_);
    admission_ = std::make_unique<Admission>(
        rig_.model->config(), arena_.get(), std::vector<PrefillPeer*>{peer_.get()}, options,
        AdmissionEvents{.on_arrived =
                            [this](const DecodeJobPtr& job) {
                              auto told = told_.Lock();
                              told->arrived.push_back(job);
                            },
                        .on_ended =
                            [this](const DecodeJobPtr& job, Result<FinishReason> how) {
                              auto told = told_.Lock();
                              told->ended.emplace_back(job, std::move(how));
                            },
                        .on_room =
                            [this] {
                              auto told = told_.Lock();
                              ++told->room;
                            }});
  }
  DecodeJobPtr Add(Duration time = std::chrono::minutes(1)) {
    const uint64_t id = jobs_.size() + 1;
    jobs_.push_back(std::make_shared<DecodeJob>(DecodeTask{.id = id,
                                                           .prompt = RandomTokens(kPrompt, id),
                                                           .tokens_max = 8,
                                                           .stop_at_end = false,
                                                           .deadline = Deadline::After(time)},
                                                std::make_shared<RecordingSink>()));
    jobs_.back()->order = id;
    EXPECT_TRUE(admission_->Add(jobs_.back()));
    return jobs_.back();
  }
  Told told() {
    auto told = told_.Lock();
    return *told;
  }
  bool HasArrived(const DecodeJobPtr& job) {
    return Eventually([&] { return std::ranges::count(told().arrived, job) > 0; });
  }
  StatusCode EndOf(const DecodeJobPtr& job) {
    const auto found = [&](const Told& now) {
      return std::ranges::find(now.ended, job, [](const auto& one) { return one.first; });
    };
    Told now;
    EXPECT_TRUE(Eventually([&] { return now = told(), found(now) != now.ended.end(); }));
    EXPECT_EQ(std::ranges::count(now.ended, job, [](const auto& one) { return one.first; }), 1);
    const auto& how = found(now)->second;
    return how.ok() ? StatusCode::kOk : how.status().code();
  }

  EngineRig rig_{TinyConfig()};
  FakeBlockStore store_;
  std::vector<std::byte> prefill_memory_, memory_;
  std::unique_ptr<PrefillWorker> prefill_;
  std::unique_ptr<LocalPrefillPeer> real_;
  std::function<PrefillFault(int)> fault_ = [](int) { return PrefillFault::kNone; };
  std::unique_ptr<FlakyPrefillPeer> peer_;
  std::unique_ptr<KvArena> arena_;
  Guarded<Told> told_;
  std::vector<DecodeJobPtr> jobs_;
  std::unique_ptr<Admission> admission_;
};

TEST_F(AdmissionTest, ATaskArrivesWithItsKvItsFirstTokenAndRoomForIt) {
  Make(8);
  const DecodeJobPtr job = Add();
  ASSERT_TRUE(HasArrived(job));
  ASSERT_TRUE(admission_->HandOn(job));
  EXPECT_EQ(job->generation->kv().tokens(), kPrompt);
  EXPECT_EQ(job->generation->kv().blocks().size(), 2U);
  EXPECT_EQ(job->answer.size(), 1U);
  EXPECT_EQ(job->answer.front(), job->first.first);
  EXPECT_EQ(admission_->stats().admitted, 1U);
  EXPECT_EQ(admission_->stats().first_tokens, 1U);
  admission_->Leave(job);
  EXPECT_EQ(admission_->stats().admitted, 0U);
  EXPECT_EQ(arena_->pool().free_blocks(), 8U);
  EXPECT_GT(told().room, 0U);
  EXPECT_TRUE(told().ended.empty()) << "the decode loop knows";
}

TEST_F(AdmissionTest, TheBatchHasABoundAndTheOldestIsNext) {
  Make(32, {.batch_max = 1});
  const DecodeJobPtr first = Add();
  ASSERT_TRUE(HasArrived(first));
  const DecodeJobPtr second = Add(), third = Add();
  ASSERT_TRUE(admission_->HandOn(first));
  EXPECT_EQ(admission_->stats().waiting, 2U);
  EXPECT_EQ(peer_->starts(), 1);
  admission_->Leave(first);
  ASSERT_TRUE(HasArrived(second));
  EXPECT_EQ(admission_->stats().waiting, 1U);
  ASSERT_TRUE(admission_->HandOn(second));
  admission_->GiveWay(second);  // it is older than the third
  ASSERT_TRUE(Eventually([&] { return std::ranges::count(told().arrived, second) == 2; }));
  EXPECT_EQ(std::ranges::count(told().arrived, third), 0);
}

TEST_F(AdmissionTest, RoomIsTakenBeforeAPeerIsAsked) {
  Make(3);  // two for the first, and one is not enough for another
  const DecodeJobPtr first = Add(), second = Add();
  ASSERT_TRUE(HasArrived(first));
  ASSERT_TRUE(admission_->HandOn(first));
  EXPECT_EQ(admission_->stats().waiting, 1U);
  EXPECT_EQ(peer_->starts(), 1);
  admission_->Leave(first);
  EXPECT_TRUE(HasArrived(second));
}

TEST_F(AdmissionTest, TheYoungestThatArrivesGivesItsBlocksBackAndWaitsAgain) {
  fault_ = [](int n) { return n < 2 ? PrefillFault::kSilentSend : PrefillFault::kNone; };
  Make(16);
  const DecodeJobPtr older = Add(), younger = Add();
  ASSERT_TRUE(Eventually([&] { return admission_->stats().first_tokens == 2; }));
  EXPECT_FALSE(admission_->AskForBlocks(younger->order)) << "none is younger";
  EXPECT_TRUE(admission_->AskForBlocks(0));
  EXPECT_TRUE(HasArrived(younger)) << "at its second try";
  EXPECT_EQ(admission_->stats().preempted, 1U);
  EXPECT_EQ(admission_->stats().lost, 0U);
  EXPECT_EQ(std::ranges::count(told().arrived, older), 0);
}

TEST_F(AdmissionTest, OneThatHasArrivedMeanwhileGivesWayInsteadOfBeingHandedOn) {
  Make(16);
  const DecodeJobPtr job = Add();
  ASSERT_TRUE(HasArrived(job));
  EXPECT_TRUE(admission_->AskForBlocks(0));
  EXPECT_FALSE(admission_->HandOn(job));
  EXPECT_EQ(admission_->stats().preempted, 1U);
  ASSERT_TRUE(Eventually([&] { return std::ranges::count(told().arrived, job) == 2; }));
  EXPECT_TRUE(admission_->HandOn(job));
  EXPECT_EQ(job->answer.size(), 2U) << "the answer so far is part of the new prompt";
  EXPECT_FALSE(admission_->AskForBlocks(0)) << "the decode loop has it";
}

TEST_F(AdmissionTest, TriesThatBringNothingHaveABoundFullQueuesDoNotCount) {
  fault_ = [](int n) { return n < 5 ? PrefillFault::kQueueFull : PrefillFault::kFailed; };
  Make(16, {.attempts_max = 2});
  EXPECT_EQ(EndOf(Add()), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->starts(), 7);
  EXPECT_EQ(admission_->stats().lost, 2U);
  EXPECT_EQ(arena_->pool().free_blocks(), 16U);
}

TEST_F(AdmissionTest, WithoutAPeerThatIsWellPatienceEnds) {
  peer_->SetHealth(Error(StatusCode::kUnavailable, "unplugged"));
  Make(16, {.peer_patience = milliseconds(40)});
  EXPECT_EQ(admission_->admits().code(), StatusCode::kUnavailable);
  EXPECT_EQ(EndOf(Add()), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->starts(), 0);
}

TEST_F(AdmissionTest, ATaskEndsWithItsTimeOrItsCancelWhereverItIs) {
  fault_ = [](int) { return PrefillFault::kSilent; };
  Make(16, {.batch_max = 1});
  const DecodeJobPtr under_way = Add(), waiting = Add(), late = Add(milliseconds(30));
  ASSERT_TRUE(Eventually([&] { return peer_->starts() == 1; }));
  EXPECT_EQ(EndOf(late), StatusCode::kDeadlineExceeded);
  for (const DecodeJobPtr& job : {waiting, under_way}) {
    job->cancelled.store(true);
    admission_->OnCancelled(job);
    EXPECT_EQ(EndOf(job), StatusCode::kCancelled);
  }
  EXPECT_EQ(admission_->stats().admitted, 0U);
}

TEST_F(AdmissionTest, StopEndsWhatWaitsAndArrivesAndWhatComesBackLater) {
  fault_ = [](int n) { return n == 0 ? PrefillFault::kNone : PrefillFault::kSilent; };
  Make(16, {.batch_max = 2});
  const DecodeJobPtr decoding = Add();
  ASSERT_TRUE(HasArrived(decoding));
  ASSERT_TRUE(admission_->HandOn(decoding));
  const DecodeJobPtr arriving = Add(), waiting = Add();
  ASSERT_TRUE(Eventually([&] { return peer_->starts() == 2; }));
  admission_->Stop();
  EXPECT_EQ(EndOf(arriving), StatusCode::kUnavailable);
  EXPECT_EQ(EndOf(waiting), StatusCode::kUnavailable);
  EXPECT_EQ(told().ended.size(), 2U);
  admission_->GiveWay(decoding);
  EXPECT_EQ(EndOf(decoding), StatusCode::kUnavailable);
  EXPECT_FALSE(admission_->Add(waiting));
  EXPECT_EQ(arena_->pool().free_blocks(), 16U);
}

}  // namespace
}  // namespace ems::pdc
