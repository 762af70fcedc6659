// What must hold: no client takes a namespace's memory from others by values that it does not send
// or answers that it does not read, or a thread's time by long requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "tests/mp_server/session_fixture.h"
#include "tests/support/self_verifying.h"

namespace ems::server {
namespace {

using fabric::Outcome;
using fabric::Session;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::MakeValue;
using wire::Op;
using wire::WireStatus;

constexpr uint64_t kBytes = 900 * kKiB;  // 16 fill the 16 MiB of the fixture

class DataServiceShareTest : public SessionFixture {
 protected:
  DataServiceShareTest() : SessionFixture("data_service_share") { Serve(&dram_alone_); }
  std::unique_ptr<Session> NewSession() {
    std::unique_ptr<Session> session = service_->NewSession();
    session->SetWaker([] {});
    return session;
  }
  // "0", "1", …
  static std::vector<std::string> Keys(int count) {
    std::vector<std::string> keys;
    keys.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) keys.push_back(std::to_string(i));
    return keys;
  }
  void Fill(const std::vector<std::string>& keys, size_t bytes) {
    for (const std::string& key : keys) {
      ASSERT_TRUE(Eventually([&] {  // memory may still be prepared
        return Put(key, MakeValue("kv", key, 1, bytes)) == WireStatus::kOk;
      })) << key;
    }
  }
  // A value that is announced, and of which no more comes for now.
  Outcome BeginPut(Session* session, std::string_view key) {
    const wire::FrameHeader header = Header(Op::kPut, 0);
    fabric::PutTarget target;
    return session->BeginPut({&header, key, kSlot, kBytes}, &target);
  }
  // One turn.
  Outcome Handle(Session* session, Op op, const std::vector<std::string>& keys,
                 uint16_t flags = 0) {
    answer_.Clear();
    // The same memory for all turns of a request.
    std::string& kept = bodies_[session];
    if (std::string body = BodyOf(keys); body != kept) kept = std::move(body);
    return session->Handle(MultiHeader(op, keys, flags), {}, AsBytes(kept), &answer_);
  }
  uint64_t Evicted() const { return dram_->Usage()[0].evicted_objects; }

  std::map<Session*, std::string> bodies_;
};

TEST_F(DataServiceShareTest, ValuesThatDoNotComeTakeAQuarterOfTheMemory) {
  Fill(Keys(8), kBytes);
  std::vector<std::unique_ptr<Session>> slow;
  Outcome outcome;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(NewSession());
    outcome = BeginPut(slow.back().get(), "slow" + std::to_string(i));
    EXPECT_EQ(outcome.status, i < 5 ? WireStatus::kOk : WireStatus::kRetryLater) << i;
  }
  EXPECT_GT(outcome.wait, Duration::zero()) << "they may go on or be given up";
  EXPECT_THAT(std::string(slow.back()->ErrorText()), HasSubstr("being received"));
  EXPECT_THAT(std::string(slow.back()->ErrorText()), HasSubstr("namespace kv"));
  EXPECT_GT(slow.back()->retry_ms(), 0U);
  EXPECT_EQ(Evicted(), 0U);
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_server_puts_held_back_total 15\n"));
  EXPECT_EQ(BeginPut(slow[7].get(), "slow7").status, WireStatus::kRetryLater);
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_server_puts_held_back_total 15\n"))
      << "a Put is counted once";
  slow[0]->AbortPut();
  EXPECT_EQ(Put("now there is room", "v"), WireStatus::kOk);
  EXPECT_EQ(BeginPut(slow[7].get(), "slow7").status, WireStatus::kOk);
  slow.clear();
  EXPECT_EQ(BeginPut(session_.get(), "again").status, WireStatus::kOk);
  session_->AbortPut();
}

TEST_F(DataServiceShareTest, AnswersThatNobodyReadsPinHalfOfTheMemory) {
  const std::vector<std::string> keys = Keys(12);
  Fill(keys, kBytes);
  std::vector<std::unique_ptr<Session>> slow;
  for (const size_t whole : {4U, 4U, 2U}) {  // a quarter of the memory an answer, half over all
    slow.push_back(NewSession());
    EXPECT_EQ(Handle(slow.back().get(), Op::kMultiGet, keys).wait, Duration::zero());
    for (size_t i = 0; i < keys.size(); ++i)
      EXPECT_EQ(Results()[i].status, i < whole ? WireStatus::kOk : WireStatus::kBatchFull) << i;
  }
  const Outcome late = Handle(session_.get(), Op::kMultiGet, keys);
  EXPECT_GT(late.wait, Duration::zero());
  EXPECT_EQ(Results()[0].status, WireStatus::kRetryLater);
  EXPECT_EQ(Results()[1].status, WireStatus::kBatchFull);
  EXPECT_GT(session_->retry_ms(), 0U);
  const std::unique_ptr<Session> other = NewSession();
  answer_.Clear();
  const wire::RangeBody range{.offset = 5, .length = 1};
  EXPECT_EQ(
      other->Handle(Header(Op::kGetRange, 0), keys[0], wire::RawBytes(range), &answer_).status,
      WireStatus::kRetryLater)
      << "a short range pins the whole value";
  EXPECT_THAT(std::string(other->ErrorText()), HasSubstr("pin"));
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_server_reads_held_back_total 2\n"));
  slow.front()->Sent();
  EXPECT_EQ(Handle(session_.get(), Op::kMultiGet, keys).wait, Duration::zero());
  EXPECT_EQ(Results()[0].status, WireStatus::kOk);
  EXPECT_TRUE(Payload() == MakeValue("kv", keys[0], 1, kBytes));
  slow.clear();
  session_->Sent();
  EXPECT_EQ(Ask(Op::kGet, keys[3]), WireStatus::kOk);
}

TEST_F(DataServiceShareTest, PutsGoOnWhileAnswersPinAllTheyMay) {
  const std::vector<std::string> keys = Keys(16);
  Fill(keys, kBytes);
  std::vector<std::unique_ptr<Session>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(NewSession());
    const auto from = keys.begin() + ptrdiff_t{3} * i;
    (void)Handle(slow.back().get(), Op::kMultiGet, {from, from + 4});
  }
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Put("more" + std::to_string(i), MakeValue("kv", "", 1, kBytes)), WireStatus::kOk)
        << i;
}

TEST_F(DataServiceShareTest, ManyKeysTakeTheirTurns) {
  const std::vector<std::string> keys = Keys(3000);
  for (const std::string& key : keys) ASSERT_EQ(Put(key, "value " + key), WireStatus::kOk);
  for (const Op op : {Op::kMultiExists, Op::kMultiGet, Op::kMultiRemove}) {
    int turns = 1;
    while (Handle(session_.get(), op, keys).again) {
      ASSERT_LT(++turns, 100);
      EXPECT_TRUE(answer_.body.empty());
    }
    EXPECT_GE(turns, 5) << wire::OpName(op);
    ASSERT_EQ(Results().size(), keys.size());
    for (const wire::ItemResult& result : Results()) ASSERT_EQ(result.status, WireStatus::kOk);
    if (op == Op::kMultiGet) {
      std::string all;
      for (const std::string& key : keys) all += "value " + key;
      EXPECT_EQ(Payload(), all);
    }
    session_->Sent();
  }
}

TEST_F(DataServiceShareTest, LargeValuesAreCheckedInTurns) {
  const std::vector<std::string> keys = {"a", "none", "b", "c"};
  for (const char* key : {"a", "b", "c"}) Fill({key}, 3 * kMiB);
  const ObjectPin pin = dram_->Get(kNs, "b", false);
  *const_cast<std::byte*>(pin.value().data() + 2 * kMiB) ^= std::byte{8};
  int turns = 1;
  for (; Handle(session_.get(), Op::kMultiGet, keys, wire::kFlagCheck).again; ++turns)
    ASSERT_LT(turns, 100);
  EXPECT_GE(turns, 9);
  EXPECT_EQ(Results()[0].status, WireStatus::kOk);
  EXPECT_EQ(Results()[1].status, WireStatus::kMiss);
  EXPECT_EQ(Results()[2].status, WireStatus::kMiss) << "damaged";
  EXPECT_EQ(Results()[3].status, WireStatus::kBatchFull) << "6 MiB are more than a quarter";
  EXPECT_TRUE(Payload() == MakeValue("kv", "a", 1, 3 * kMiB));
}

TEST_F(DataServiceShareTest, ARequestThatEndsBetweenTwoTurnsLeavesNothingToTheNext) {
  Fill({"a"}, 3 * kMiB);
  ASSERT_EQ(Put("b", "value"), WireStatus::kOk);
  ASSERT_TRUE(Handle(session_.get(), Op::kMultiGet, {"a", "b"}, wire::kFlagCheck).again);
  session_->Sent();  // its connection broke
  EXPECT_EQ(dram_->Usage()[0].pinned_objects, 0U);
  EXPECT_EQ(Ask(Op::kGet, "b", wire::kFlagCheck), WireStatus::kOk);
  EXPECT_EQ(Payload(), "value");
}

}  // namespace
}  // namespace ems::server
