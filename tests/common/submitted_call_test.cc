// What must hold: a call is over exactly once, by its work or by a refusal before that began; who
// waits is told in time; a gate that closes lets nothing begin and waits for what has.
#include "common/submitted_call.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "common/thread_pool.h"

namespace ems {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = CallState<std::string>;

constexpr Duration kLong = seconds(60);

// Threads that begin nothing until the test does.
class Held {
 public:
  explicit Held(size_t most = 100) : most_(most) {}
  auto Taker() {
    return [this](std::function<void()>&& task) {
      if (tasks_.size() == most_) return false;
      tasks_.push_back(std::move(task));
      return true;
    };
  }
  void RunAll() {
    for (; !tasks_.empty(); tasks_.pop_front()) tasks_.front()();
  }

 private:
  const size_t most_;
  std::deque<std::function<void()>> tasks_;
};

std::shared_ptr<State> Make(CallGate* gate, Duration timeout = kLong, State::OnOver on_over = {}) {
  return std::make_shared<State>(
      Deadline::After(timeout), gate,
      [](const Status& why) { return std::string(CodeName(why.code())); }, std::move(on_over));
}

template <typename Threads>
void Submit(const std::shared_ptr<State>& state, const Threads& threads) {
  State::Submit(state, threads, Error(StatusCode::kResourceExhausted, "full"),
                [](const std::shared_ptr<State>& mine) { mine->Finish("done"); });
}

TEST(SubmittedCallTest, ACallEndsWithWhatItsWorkSays) {
  CallGate gate;
  Held threads;
  std::string told;
  const auto state = Make(&gate, kLong, [&](const std::string& outcome) { told += outcome; });
  Submit(state, threads.Taker());
  const SubmittedCall<std::string> call(state);
  EXPECT_FALSE(call.Done());
  threads.RunAll();
  EXPECT_TRUE(call.Done());
  EXPECT_EQ(call.Result(), "done");
  EXPECT_EQ(told, "done");
}

TEST(SubmittedCallTest, ACallWhoseTimePassesWhileItWaitsIsOverForWhoeverWaits) {
  CallGate gate;
  Held threads;
  const auto state = Make(&gate, milliseconds(5));
  Submit(state, threads.Taker());
  EXPECT_EQ(SubmittedCall<std::string>(state).Result(), "DEADLINE_EXCEEDED");
  threads.RunAll();  // finds nothing left to do
  EXPECT_EQ(state->WaitForOutcome(), "DEADLINE_EXCEEDED");
}

TEST(SubmittedCallTest, AThreadThatComesTooLateDoesNotBegin) {
  CallGate gate;
  Held threads;
  const auto state = Make(&gate, Duration{0});
  Submit(state, threads.Taker());
  threads.RunAll();
  EXPECT_EQ(state->WaitForOutcome(), "DEADLINE_EXCEEDED");
}

TEST(SubmittedCallTest, TooManyAreOverAtOnce) {
  CallGate gate;
  Held threads(1);
  const auto first = Make(&gate), second = Make(&gate);
  Submit(first, threads.Taker());
  Submit(second, threads.Taker());
  EXPECT_EQ(SubmittedCall<std::string>(second).Result(), "RESOURCE_EXHAUSTED");
  threads.RunAll();
  EXPECT_EQ(first->WaitForOutcome(), "done");
}

TEST(SubmittedCallTest, CancelEndsWhatWaitsAndIsSeenByWhatRuns) {
  CallGate gate;
  Held threads;
  const auto waiting = Make(&gate), running = Make(&gate);
  Submit(waiting, threads.Taker());
  SubmittedCall<std::string>(waiting).Cancel();
  EXPECT_EQ(waiting->WaitForOutcome(), "CANCELLED");
  ASSERT_TRUE(running->Begin());
  Thread other("cancel", [&] { SubmittedCall<std::string>(running).Cancel(); });
  while (!running->cancelled()) {
  }
  running->Finish("stopped");
  other.Join();
  EXPECT_EQ(running->WaitForOutcome(), "stopped");
}

TEST(SubmittedCallTest, AShutGateLetsNothingBegin) {
  CallGate gate(Error(StatusCode::kAborted, "shut"));
  Held threads;
  const auto before = Make(&gate);
  Submit(before, threads.Taker());
  gate.Shut();
  EXPECT_TRUE(gate.IsClosing());
  const auto behind = Make(&gate);
  Submit(behind, threads.Taker());
  EXPECT_EQ(SubmittedCall<std::string>(behind).Result(), "ABORTED") << "at once, on no thread";
  threads.RunAll();
  EXPECT_EQ(before->WaitForOutcome(), "ABORTED");
  const CallPass pass(&gate);
  EXPECT_FALSE(pass.is_open());
}

TEST(SubmittedCallTest, CloseWaitsForWhatHasBegun) {
  CallGate gate;
  const auto state = Make(&gate);
  ASSERT_TRUE(state->Begin());
  std::atomic<bool> closed{false};
  Thread closer("closer", [&] {
    gate.Close();
    closed = true;
  });
  while (!gate.IsClosing()) {
  }
  EXPECT_FALSE(closed);
  state->Finish("done");
  closer.Join();
  EXPECT_TRUE(closed);
  gate.Close();  // again: nothing
}

TEST(SubmittedCallTest, ACallThatWasNeverSubmittedKeepsNoGateOpen) {
  CallGate gate;
  Make(&gate);
  gate.Close();
}

// Deadlines, threads, cancels and the end race; each call is over once.
TEST(SubmittedCallTest, EveryCallIsOverOnceWhateverComesFirst) {
  constexpr size_t kCalls = 3000;
  std::vector<std::atomic<int>> ends(kCalls);
  std::vector<std::shared_ptr<State>> states;
  {
    CallGate gate;
    ThreadPool pool("calls", 2, kCalls / 2);
    for (size_t i = 0; i < kCalls; ++i) {
      states.push_back(Make(&gate, std::chrono::microseconds(i % 7 * 100),
                            [&ends, i](const std::string&) { ++ends[i]; }));
      Submit(states.back(),
             [&](std::function<void()>&& task) { return pool.TrySubmit(std::move(task)); });
      if (i % 3 == 0) states.back()->WithdrawIfLate();
      if (i % 5 == 0) states.back()->Cancel();
    }
    gate.Close();
  }
  for (size_t i = 0; i < kCalls; ++i) {
    EXPECT_EQ(ends[i], 1) << i;
    EXPECT_FALSE(states[i]->WaitForOutcome().empty());
  }
}

}  // namespace
}  // namespace ems
