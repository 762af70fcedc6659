// What must hold: a value ends where its session wants it, whole or not at all; one that is refused
// does not cost the connection; of a sender that goes nothing is stored.
#include "fabric/rpc/internal/put_receiver.h"

#include <gtest/gtest.h>

#include <string>

#include "common/thread_pool.h"
#include "tests/support/memory_session.h"
#include "tests/support/self_verifying.h"
#include "tests/support/socket_pair.h"

namespace ems::fabric::internal {
namespace {

using testing::MakeHeader;
using testing::MakeValue;
using testing::MemoryStore;
using testing::SocketPair;
using testing::WithTrailer;
using wire::WireStatus;

constexpr uint64_t kValueMax = 8 * kMiB;

struct Rig {
  explicit Rig(CopyCrew* crew = nullptr)
      : session(store.NewSession()),
        stream(pair.TakeSocket(), pair.turns()),
        wait(&stream.socket(), pair.turns()),
        receiver(&stream, &wait, session.get(), kValueMax, crew) {
    wait.Begin(std::chrono::seconds(5));
  }
  PutRequest Put(std::string_view key, uint64_t bytes) const {
    return {&header, key, SlotId(0), bytes};
  }
  // False: the connection broke.
  std::optional<bool> Receive(std::string_view key, uint64_t bytes, WireStatus* status) {
    return pair.Await(receiver.Receive(Put(key, bytes), status));
  }
  WireStatus Copy(std::string_view key, const wire::StagedValue& staged) {
    const auto status = pair.Await(receiver.Copy(Put(key, staged.bytes), staged));
    return status.value_or(WireStatus::kInternal);
  }

  MemoryStore store;
  SocketPair pair;
  const wire::FrameHeader header = MakeHeader(wire::Op::kPut, 1);
  std::unique_ptr<Session> session;
  FrameStream stream;
  SessionWait wait;
  PutReceiver receiver;
};

TEST(PutReceiverTest, AValueOfManyPartsIsStored) {
  Rig rig;
  const std::string value = MakeValue("ns", "k", 1, 3'000'001);
  Thread sender("sender",
                [&] { EXPECT_TRUE(rig.pair.peer().Send(WithTrailer(rig.header, value))); });
  WireStatus status = WireStatus::kInternal;
  EXPECT_EQ(rig.Receive("k", value.size(), &status), true);
  EXPECT_EQ(status, WireStatus::kOk);
  EXPECT_EQ(*rig.store.Find("k"), value);
}

TEST(PutReceiverTest, ARefusedValueIsDroppedAndTheNextOneComes) {
  Rig rig;
  rig.store.gate = [first = true](const wire::FrameHeader&, SlotId) mutable {
    return Outcome{.status =
                       std::exchange(first, false) ? WireStatus::kWrongOwner : WireStatus::kOk};
  };
  ASSERT_TRUE(rig.pair.peer().Send(WithTrailer(rig.header, std::string(100'000, 'x')) +
                                   WithTrailer(rig.header, "next")));
  WireStatus status = WireStatus::kOk;
  EXPECT_EQ(rig.Receive("refused", 100'000, &status), true);
  EXPECT_EQ(status, WireStatus::kWrongOwner);
  EXPECT_EQ(rig.Receive("next", 4, &status), true);
  EXPECT_EQ(status, WireStatus::kOk);
  EXPECT_EQ(rig.store.size(), 1U);
}

TEST(PutReceiverTest, AnotherChecksumThanTheSendersIsNotStored) {
  Rig rig;
  std::string damaged = WithTrailer(rig.header, "value");
  damaged[0] ^= 1;
  ASSERT_TRUE(rig.pair.peer().Send(damaged));
  WireStatus status = WireStatus::kOk;
  EXPECT_EQ(rig.Receive("k", 5, &status), true);
  EXPECT_EQ(status, WireStatus::kChecksumMismatch);
  EXPECT_EQ(rig.store.size(), 0U);
}

TEST(PutReceiverTest, AValueThatBelongsToAnotherKeyIsNotStored) {
  Rig rig;
  wire::FrameHeader other = rig.header;
  other.checksum++;
  ASSERT_TRUE(rig.pair.peer().Send(WithTrailer(other, "value") + WithTrailer(rig.header, "v", 1)));
  for (const uint64_t bytes : {5U, 1U}) {
    WireStatus status = WireStatus::kOk;
    EXPECT_EQ(rig.Receive("k", bytes, &status), true);
    EXPECT_EQ(status, WireStatus::kChecksumMismatch);
  }
  EXPECT_EQ(rig.store.size(), 0U);
}

TEST(PutReceiverTest, AConnectionThatBreaksAbortsThePut) {
  Rig rig;
  ASSERT_TRUE(rig.pair.peer().Send(std::string(100'000, 'x')));
  rig.pair.peer().Close();
  WireStatus status = WireStatus::kOk;
  EXPECT_EQ(rig.Receive("k", 200'000, &status), false);
  EXPECT_EQ(rig.store.counts().aborted, 1);
  EXPECT_EQ(rig.store.counts().ended, 0);
}

TEST(PutReceiverTest, OfASenderThatGoesNothingIsStored) {
  for (const uint64_t progress_at : {uint64_t{0}, wire::kAllThere}) {
    Rig rig;
    rig.store.staged = "0123456789";
    rig.store.on_staged = [&] { rig.pair.peer().Close(); };
    EXPECT_EQ(
        rig.Copy("k",
                 {.session = 1, .secret = 2, .offset = 0, .bytes = 10, .progress_at = progress_at}),
        WireStatus::kDeadline);
    // Room is made when some of it is there.
    EXPECT_EQ(rig.store.counts().aborted, progress_at == wire::kAllThere ? 1 : 0);
    EXPECT_EQ(rig.store.counts().begun, rig.store.counts().aborted.load());
    EXPECT_EQ(rig.store.size(), 0U);
  }
}

TEST(PutReceiverTest, ALargeStagedValueIsCopiedByAllWhoHelp) {
  for (const size_t helpers : {0U, 3U}) {
    CopyCrew crew("crew", helpers);
    Rig rig(&crew);
    const std::string value =
        MakeValue("ns", "k", 1, 7 * kMiB + 12345);  // no whole share, no whole piece
    rig.store.staged = "before" + value;
    EXPECT_EQ(rig.Copy("k", {.session = 1, .secret = 2, .offset = 6, .bytes = value.size()}),
              WireStatus::kOk);
    EXPECT_EQ(*rig.store.Find("k"), value);
    EXPECT_EQ(rig.store.counts().violations, 0) << "another checksum than that of its bytes";
  }
}

TEST(PutReceiverTest, OfALargeStagedValueWhoseSenderGoesNothingIsStored) {
  CopyCrew crew("crew", 2);
  Rig rig(&crew);
  rig.store.staged = MakeValue("ns", "k", 1, 5 * kMiB);
  rig.store.on_staged = [&] { rig.pair.peer().Close(); };
  EXPECT_EQ(rig.Copy("k", {.session = 1, .secret = 2, .offset = 0, .bytes = 5 * kMiB}),
            WireStatus::kDeadline);
  EXPECT_EQ(rig.store.counts().aborted, 1);
  EXPECT_EQ(rig.store.size(), 0U);
}

TEST(PutReceiverTest, NoRoomIsMadeForAValueBeforeItBegins) {
  for (const bool sends : {false, true}) {
    Rig rig;
    std::string text = WithTrailer(rig.header, "value");
    if (!sends) text.clear();
    asio::post(rig.pair.context(), [&] {
      asio::post(rig.pair.context(), [&] {  // it waits by now
        EXPECT_EQ(rig.store.counts().begun, 0) << "for a header alone";
        EXPECT_TRUE(rig.pair.peer().Send(text));
        if (!sends) rig.pair.peer().Close();
      });
    });
    WireStatus status = WireStatus::kInternal;
    EXPECT_EQ(rig.Receive("k", 5, &status), sends);
    EXPECT_EQ(rig.store.counts().begun, sends ? 1 : 0);
    EXPECT_EQ(rig.store.size(), sends ? 1U : 0U);
  }
}

TEST(PutReceiverTest, AStagedValueThatIsTooLargeOrNotThereIsRefused) {
  Rig rig;
  rig.store.staged = "0123456789";
  EXPECT_EQ(rig.Copy("k", {.session = 1, .secret = 2, .offset = 0, .bytes = kValueMax + 1}),
            WireStatus::kTooLarge);
  EXPECT_EQ(rig.Copy("k", {.session = 9, .secret = 2, .offset = 0, .bytes = 1}),
            WireStatus::kInvalid);
  EXPECT_EQ(rig.store.counts().begun, 0);
}

}  // namespace
}  // namespace ems::fabric::internal
