// What must hold: what changes something is not carried out twice, and its caller hears when it is
// not known whether it was carried out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/scripted_server.h"

namespace ems::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AnswerTo;
using testing::ReadRequest;
using testing::ServeHello;
using testing::WirePeer;
using testing::WireRequest;
using wire::Op;
using wire::WireStatus;

// Done, and gone before the answer; or the answer comes damaged.
TEST(RouterOutcomeTest, WhatChangesSomethingIsNotAskedAgainWhenItsAnswerIsLost) {
  struct Case {
    Op op;
    uint16_t flags;
    bool immutable;
    StatusCode code;
  };
  for (const bool damaged : {false, true}) {
    for (const Case& c :
         {Case{Op::kRemove, 0, false, StatusCode::kAborted},
          Case{Op::kPut, 0, false, StatusCode::kAborted},
          Case{Op::kPut, wire::kFlagOverwrite, false, StatusCode::kAborted},
          Case{Op::kRemove, 0, true, StatusCode::kAborted},
          Case{Op::kPut, 0, true, damaged ? StatusCode::kDataLoss : StatusCode::kOk}}) {
      for (const size_t count : {size_t{1}, size_t{2}}) {
        std::atomic<int> requests{0};
        Scripted s([&](WirePeer* peer, int) {
          if (!ServeHello(peer)) return;
          const std::optional<WireRequest> request = ReadRequest(peer);
          if (!request) return;
          const std::string results(count == 1 ? 0 : count * sizeof(wire::ItemResult), '\0');
          std::string answer = AnswerTo(request->header, results);
          if (++requests == 1 && !damaged) return;
          if (requests == 1) answer[50] ^= 1;
          (void)peer->Send(answer);
          (void)peer->WaitClosed(milliseconds(200));
        });
        Call call(c.op,
                  count == 1 ? std::vector<std::string>{"k"} : std::vector<std::string>{"k", "l"});
        call.batch.flags = c.flags;
        call.batch.immutable = c.immutable;
        if (c.op == Op::kPut) {
          for (size_t i = 0; i < count; ++i) call.Value(i, "value");
        }
        call.Run(&s.router);
        for (size_t i = 0; i < count; ++i) EXPECT_EQ(call.code(i), c.code) << call.text(i);
        EXPECT_EQ(requests, c.code == StatusCode::kOk ? 2 : 1) << wire::OpName(c.op);
        if (c.code == StatusCode::kAborted) {
          EXPECT_THAT(call.text(), ::testing::HasSubstr("outcome unknown"));
        }
      }
    }
  }
}

// Others have seen it, and may have changed the key again.
TEST(RouterOutcomeTest, WhatIsDoneInMemoryAloneIsNotAskedAgain) {
  struct Case {
    Op op;
    bool immutable;
    StatusCode code;
  };
  for (const Case& c :
       {Case{Op::kRemove, false, StatusCode::kAborted}, Case{Op::kPut, false, StatusCode::kAborted},
        Case{Op::kRemove, true, StatusCode::kAborted}, Case{Op::kPut, true, StatusCode::kOk}}) {
    for (const bool multi : {false, true}) {
      std::atomic<int> requests{0};
      Scripted s([&](WirePeer* peer, int) {
        if (!ServeHello(peer)) return;
        while (const std::optional<WireRequest> request = ReadRequest(peer)) {
          const WireStatus status = ++requests == 1 ? WireStatus::kNotDurable : WireStatus::kOk;
          std::string results;
          if (wire::IsMulti(request->header.op)) {
            const wire::ItemResult items[2] = {{.status = WireStatus::kOk}, {.status = status}};
            for (size_t i = 2 - request->header.item_count; i < 2; ++i)
              testing::AppendRaw(&results, wire::RawBytes(items[i]));
          }
          if (!peer->Send(AnswerTo(request->header, results, multi ? WireStatus::kOk : status)))
            return;
        }
      });
      Call call(c.op, multi ? std::vector<std::string>{"k", "l"} : std::vector<std::string>{"l"});
      call.batch.immutable = c.immutable;
      if (c.op == Op::kPut) {
        for (size_t i = 0; i < call.batch.items.size(); ++i) call.Value(i, "value");
      }
      call.Run(&s.router);
      EXPECT_EQ(call.code(multi ? 1 : 0), c.code) << call.text(multi ? 1 : 0);
      if (multi) {
        EXPECT_EQ(call.code(0), StatusCode::kOk) << call.text(0);
      }
      EXPECT_EQ(requests, c.code == StatusCode::kOk ? 2 : 1) << wire::OpName(c.op);
      if (c.code == StatusCode::kAborted) {
        EXPECT_THAT(call.text(multi ? 1 : 0), ::testing::HasSubstr("memory"));
      }
    }
  }
}

// The deadline passes when all has been sent: whether it was done is not known either, whatever was
// said of an earlier try.
TEST(RouterOutcomeTest, WhatIsNotAnsweredByTheDeadlineHasAnUnknownOutcome) {
  Scripted s([](WirePeer* peer, int) {
    if (!ServeHello(peer)) return;
    const std::optional<WireRequest> request = ReadRequest(peer);
    if (request) (void)peer->Send(AnswerTo(request->header, "full", WireStatus::kRetryLater));
    (void)peer->WaitClosed();
  });
  Call put(Op::kPut, {"k"}, milliseconds(100));
  put.Value(0, "value").Run(&s.router);
  EXPECT_EQ(put.code(), StatusCode::kDeadlineExceeded) << put.text();
  EXPECT_THAT(put.text(), ::testing::HasSubstr("outcome unknown"));
}

// Of a batch whose connection breaks on its way: what arrived whole may be done, the rest is not.
TEST(RouterOutcomeTest, WhatWasNotSentWholeIsAskedAgain) {
  const std::string small(1000, 's');
  const std::string large(32 * kMiB, 'l');  // more than sockets hold
  std::atomic<int> items{0};
  Scripted s([&](WirePeer* peer, int connection) {
    if (!ServeHello(peer)) return;
    if (connection == 0) {
      (void)peer->Receive(2000);
      return peer->Reset();
    }
    const std::optional<WireRequest> request = ReadRequest(peer, seconds(20));
    if (!request) return;
    items = request->header.item_count;
    EXPECT_EQ(request->key, "large");
    (void)peer->Send(AnswerTo(request->header, ""));
    (void)peer->WaitClosed(milliseconds(200));
  });
  Call put(Op::kPut, {"small", "large"}, seconds(20));
  put.Value(0, small).Value(1, large).Run(&s.router);
  EXPECT_EQ(put.code(0), StatusCode::kAborted) << put.text(0);
  EXPECT_EQ(put.code(1), StatusCode::kOk) << put.text(1);
  EXPECT_EQ(items, 0) << "the one that is left goes alone";
}

TEST(RouterOutcomeTest, ARequestThatCameDamagedIsSentOnceMore) {
  for (const Op op : {Op::kPut, Op::kRemove, Op::kGet, Op::kExists}) {
    std::atomic<int> requests{0};
    Scripted s([&](WirePeer* peer, int) {
      if (!ServeHello(peer)) return;
      while (const std::optional<WireRequest> request = ReadRequest(peer)) {
        const bool damaged = ++requests == 1;
        if (!peer->Send(AnswerTo(request->header, "",
                                 damaged ? WireStatus::kChecksumMismatch : WireStatus::kOk)))
          return;
      }
    });
    Call call(op, {"k"});
    if (op == Op::kPut) call.Value(0, "value");
    call.Run(&s.router);
    EXPECT_EQ(call.code(), StatusCode::kOk) << call.text();
    EXPECT_EQ(requests, 2);
    EXPECT_EQ(s.server.connections(), 1) << "the connection is good";
  }
}

}  // namespace
}  // namespace ems::internal
