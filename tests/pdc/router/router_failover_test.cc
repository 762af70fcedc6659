// What must hold when workers fail: a request goes on elsewhere with its prompt and its answer so
// far, its client sees one answer without a gap or a doubled token, and there is an end to trying.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/pdc/router/router_testing.h"

namespace ems::pdc {
namespace {

using testing::RecordedGeneration;

class RouterFailoverTest : public RouterTestBase {
 protected:
  // The next task, whichever worker it came to.
  Attempt TakeAny() {
    for (int round = 0; round < 1000; ++round) {
      for (const auto& peer : peers)
        if (peer->untaken() > 0) return peer->Take();
      if (!peers.front()->WaitLooks(1)) return nullptr;
    }
    return nullptr;
  }
};

TEST_F(RouterFailoverTest, AnAnswerGoesOnElsewhereFromWhereItWas) {
  Make({0, 0});
  api::GenerateRequest request = Asking("Hi", 10);
  request.sampling.seed = 99;
  const RouterClient client = Ask(request);
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->Prompt(1);
  first->Tokens(Tokens("abc"));
  first->Tokens(Tokens("d"));
  first->End(Gone());
  const Attempt second = peers[1]->Take();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->task.prompt, Prompt("Hi", "abcd"));
  EXPECT_EQ(second->task.tokens_max, 6U);
  EXPECT_EQ(second->task.sampler.seed, 99U);
  EXPECT_NE(second->task.id, first->task.id);
  second->Prompt(5);
  second->Tokens(Tokens("efghij"));
  second->End(FinishReason::kLength);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kLength);
  EXPECT_EQ(heard.bytes, "abcdefghij");
  EXPECT_EQ(heard.tokens, 10U);
  ASSERT_TRUE(heard.prompt.has_value());
  EXPECT_EQ(heard.prompt->prompt_tokens, 3U);
  EXPECT_EQ(heard.prompt->cached_tokens, 1U);
  const RequestRouterStats stats = router->stats();
  EXPECT_EQ(stats.attempts, 2U);
  EXPECT_EQ(stats.failovers, 1U);
  EXPECT_EQ(stats.recomputed_tokens, 7U);
  EXPECT_EQ(stats.finished, 1U);
  EXPECT_FALSE(first->cancelled.IsSet()) << "it had ended there";
}

TEST_F(RouterFailoverTest, TheFirstPromptThatIsComputedIsTheOneThatIsTold) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi", 10));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->End(Gone());
  const Attempt second = peers[1]->Take();
  ASSERT_NE(second, nullptr);
  second->Prompt(2);
  second->End(FinishReason::kStop);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kStop);
  ASSERT_TRUE(heard.prompt.has_value());
  EXPECT_EQ(heard.prompt->cached_tokens, 2U);
}

TEST_F(RouterFailoverTest, AWorkerThatFailedIsLeftOutAlsoWhenItsHealthIsLookedAtJustThen) {
  Make({0, 0});
  RouterClient client;
  // The router is busy for longer than a heartbeat, so a look is due with the end of the attempt.
  client.sink->SetOnEvent([] {
    const Deadline busy = Deadline::After(std::chrono::milliseconds(5));
    while (!busy.Passed()) {
    }
  });
  Start(Asking("Hi"), &client);
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->Prompt();
  first->End(Gone());
  EXPECT_NE(peers[1]->Take(), nullptr);
  EXPECT_EQ(peers[0]->submits(), 1U);
}

TEST_F(RouterFailoverTest, AWorkerThatStandsStillLosesItsRequestsWithoutAnEvent) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi", 4));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->Prompt();
  first->Tokens(Tokens("ab"));
  ASSERT_EQ(client.sink->AwaitTokens(2).tokens, 2U);
  peers[0]->SetHealth(Error(StatusCode::kUnavailable, "it stands still"));
  const Attempt second = peers[1]->Take();
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(first->WaitCancelled());
  EXPECT_EQ(second->task.prompt, Prompt("Hi", "ab"));
  second->Tokens(Tokens("cd"));
  second->End(FinishReason::kLength);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kLength);
  EXPECT_EQ(heard.bytes, "abcd");
  EXPECT_TRUE(router->Ready().ok());
}

TEST_F(RouterFailoverTest, LateEventsOfALostAttemptAreIgnored) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi", 4));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  peers[0]->SetHealth(Gone());
  const Attempt second = peers[1]->Take();
  ASSERT_NE(second, nullptr);
  first->Prompt(1);
  first->Tokens(Tokens("zz"));
  first->End(FinishReason::kStop);
  second->Prompt(2);
  second->Tokens(Tokens("ab"));
  ASSERT_EQ(client.sink->AwaitTokens(2).tokens, 2U);
  first->Tokens(Tokens("z"));
  first->End(Gone());
  second->End(FinishReason::kStop);
  second->End(FinishReason::kStop);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kStop);
  EXPECT_EQ(heard.bytes, "ab");
  EXPECT_EQ(heard.prompt->cached_tokens, 2U);
  EXPECT_EQ(router->stats().attempts, 2U);
}

TEST_F(RouterFailoverTest, AnAnswerThatIsWholeNeedsNoOtherWorker) {
  Make({0, 0});
  const RouterClient by_length = Ask(Asking("Hi", 2));
  Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->Tokens(Tokens("ab"));
  attempt->End(Gone());
  ExpectFinish(by_length.sink->AwaitEnd(), api::FinishReason::kLength);

  const RouterClient by_end = Ask(Asking("Hi", 9));
  attempt = TakeAny();
  ASSERT_NE(attempt, nullptr);
  attempt->Tokens({'a', kTurnEndToken});
  attempt->End(Gone());
  const RecordedGeneration::Heard heard = by_end.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kStop);
  EXPECT_EQ(heard.bytes, "a");
  EXPECT_EQ(heard.tokens, 2U);
  EXPECT_EQ(router->stats().failovers, 0U);
}

TEST_F(RouterFailoverTest, AWorkerThatStopsCancelsAndTheRequestGoesOn) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->End(Error(StatusCode::kCancelled, "stopping"));
  EXPECT_NE(peers[1]->Take(), nullptr);
}

TEST_F(RouterFailoverTest, OtherErrorsAreTheEnd) {
  Make({0, 0});
  for (const StatusCode code : {StatusCode::kInvalidArgument, StatusCode::kInternal}) {
    const RouterClient client = Ask(Asking("Hi"));
    const Attempt attempt = TakeAny();
    ASSERT_NE(attempt, nullptr);
    attempt->End(Error(code, "no"));
    ExpectError(client.sink->AwaitEnd(), code);
  }
  EXPECT_EQ(router->stats().failovers, 0U);
  EXPECT_EQ(router->stats().failed, 2U);
}

// A worker in another process can say so only when the request is there.
TEST_F(RouterFailoverTest, AWorkerThatTurnsOutToBeFullIsAskedAgain) {
  Make({0});
  const RouterClient client = Ask(Asking("Hi"));
  for (int i = 0; i < 10; ++i) {
    const Attempt attempt = peers[0]->Take();
    ASSERT_NE(attempt, nullptr) << i;
    attempt->End(Error(StatusCode::kResourceExhausted, "full"));
  }
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  EXPECT_FALSE(client.sink->heard().ended());
  attempt->End(FinishReason::kStop);
  ExpectFinish(client.sink->AwaitEnd(), api::FinishReason::kStop);
}

TEST_F(RouterFailoverTest, AWholeAnswerIsGivenHoweverItsWorkerEnds) {
  Make({0});
  const RouterClient client = Ask(Asking("Hi", 2));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->Tokens({'o', 'k'});
  attempt->End(Error(StatusCode::kDeadlineExceeded, "late"));
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kLength);
  EXPECT_EQ(heard.bytes, "ok");
}

TEST_F(RouterFailoverTest, AWorkerThatIsLateToAnswerKeepsWhatItHas) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi"));
  const Attempt first = TakeAny();
  ASSERT_NE(first, nullptr);
  const size_t one = peers[0]->submits() > 0 ? 0 : 1;
  peers[one]->SetHealth(Error(StatusCode::kDeadlineExceeded, "a pulse was missed"));
  ASSERT_TRUE(peers[one]->WaitLooks(3));
  EXPECT_EQ(peers[1 - one]->submits(), 0U);
  const RouterClient next = Ask(Asking("there"));
  EXPECT_NE(peers[1 - one]->Take(), nullptr) << "nothing new is sent to it";
  first->End(FinishReason::kStop);
  ExpectFinish(client.sink->AwaitEnd(), api::FinishReason::kStop);
  EXPECT_EQ(router->stats().failovers, 0U);
}

TEST_F(RouterFailoverTest, WhoeverFailedOverGoesBeforeThoseThatCameLater) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  Make({0}, options);
  const RouterClient old = Ask(Asking("old"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  const RouterClient late = Ask(Asking("late"));
  Settle();
  first->End(Gone());
  const Attempt second = peers[0]->Take();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->task.prompt, Prompt("old"));
}

// --- An end to trying.

TEST_F(RouterFailoverTest, GivesUpAfterAttemptsThatBringNothing) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi"));
  for (int i = 0; i < 3; ++i) {
    const Attempt attempt = TakeAny();
    ASSERT_NE(attempt, nullptr) << i;
    attempt->Prompt();
    attempt->End(Gone());
  }
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectError(heard, StatusCode::kUnavailable);
  EXPECT_NE(Message(*heard.error).find("3 attempts"), std::string_view::npos)
      << ToString(*heard.error);
  EXPECT_NE(Message(*heard.error).find("gone"), std::string_view::npos);
  EXPECT_EQ(router->stats().attempts, 3U);
  EXPECT_EQ(router->stats().waiting + router->stats().running, 0U);
}

TEST_F(RouterFailoverTest, GoesOnAsLongAsEachFewAttemptsBringAToken) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi", 100));
  std::string answer;
  for (int i = 0; i < 12; ++i) {
    const Attempt attempt = TakeAny();
    ASSERT_NE(attempt, nullptr) << i;
    ASSERT_EQ(attempt->task.prompt, Prompt("Hi", answer));
    if (i % 3 == 2) {  // the last attempt that may be without
      attempt->Tokens({'x'});
      answer += 'x';
    }
    attempt->End(Gone());
  }
  const Attempt last = TakeAny();
  ASSERT_NE(last, nullptr);
  last->End(FinishReason::kStop);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kStop);
  EXPECT_EQ(heard.bytes, answer);
}

TEST_F(RouterFailoverTest, WithoutAnyWorkerThereIsAnEndToPatience) {
  RequestRouterOptions options = QuickOptions();
  options.failover_patience = std::chrono::milliseconds(30);
  Make({0, 0}, options);
  const RouterClient running = Ask(Asking("Hi"));
  ASSERT_NE(peers[0]->Take(), nullptr);
  EXPECT_TRUE(router->Ready().ok());
  for (const auto& peer : peers) peer->SetHealth(Error(StatusCode::kUnavailable, "no heartbeat"));
  const RecordedGeneration::Heard heard = running.sink->AwaitEnd();
  ExpectError(heard, StatusCode::kUnavailable);
  EXPECT_NE(Message(*heard.error).find("no heartbeat"), std::string_view::npos)
      << ToString(*heard.error);
  const Status ready = router->Ready();
  EXPECT_EQ(ready.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(ready).find("'d1': no heartbeat"), std::string_view::npos) << ToString(ready);
  EXPECT_EQ(Refusal(Asking("x")), StatusCode::kUnavailable) << "at once now";
}

TEST_F(RouterFailoverTest, AWorkerThatAdmitsNothingKeepsWhatItHasBegun) {
  Make({0, 0});
  const RouterClient running = Ask(Asking("a"));
  Settle();
  const size_t first = peers[0]->submits() == 1 ? 0 : 1;
  const Attempt attempt = peers[first]->Take();
  ASSERT_NE(attempt, nullptr);
  peers[first]->SetAdmits(Error(StatusCode::kUnavailable, "no prefill peer"));
  Settle();
  // New ones go to the other, whatever the balance says.
  for (int i = 0; i < 3; ++i) {
    const RouterClient other = Ask(Asking("b"));
    const Attempt elsewhere = peers[1 - first]->Take();
    ASSERT_NE(elsewhere, nullptr);
    elsewhere->End(FinishReason::kStop);
    ExpectFinish(other.sink->AwaitEnd(), api::FinishReason::kStop);
  }
  EXPECT_FALSE(attempt->cancelled.IsSet());
  EXPECT_EQ(router->Ready(), OkStatus());
  peers[1 - first]->SetAdmits(Error(StatusCode::kUnavailable, "no prefill peer"));
  Settle();
  EXPECT_NE(ToString(router->Ready()).find("no prefill peer"), std::string::npos);
  attempt->End(FinishReason::kStop);
  ExpectFinish(running.sink->AwaitEnd(), api::FinishReason::kStop);
  EXPECT_EQ(peers[first]->submits(), 1U);
}

TEST_F(RouterFailoverTest, WaitsForAWorkerToComeBack) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->Tokens({'a'});
  ASSERT_EQ(client.sink->AwaitTokens(1).tokens, 1U);
  for (const auto& peer : peers) peer->SetHealth(Gone());
  ASSERT_TRUE(first->WaitCancelled());
  const RouterClient came_meanwhile = Ask(Asking("x"));
  Settle();
  EXPECT_FALSE(router->Ready().ok());
  EXPECT_EQ(router->stats().waiting, 2U);
  peers[1]->SetHealth(OkStatus());
  const Attempt second = peers[1]->Take(), third = peers[1]->Take();
  ASSERT_TRUE(second != nullptr && third != nullptr);
  EXPECT_EQ(second->task.prompt, Prompt("Hi", "a"));
  EXPECT_EQ(third->task.prompt, Prompt("x"));
  Settle();
  EXPECT_TRUE(router->Ready().ok());
}

TEST_F(RouterFailoverTest, APeerThatRefusesIsLeftOut) {
  Make({0, 0});
  peers[0]->SetRefusal(Gone());
  const RouterClient client = Ask(Asking("Hi"));
  const Attempt attempt = peers[1]->Take();
  ASSERT_NE(attempt, nullptr);
  EXPECT_EQ(peers[0]->submits(), 1U);
}

TEST_F(RouterFailoverTest, WorkersThatAllRefuseAreAskedUntilPatienceEnds) {
  RequestRouterOptions options = QuickOptions();
  options.failover_patience = std::chrono::milliseconds(50);
  Make({0, 0}, options);
  for (const auto& peer : peers) peer->SetRefusal(Gone());
  const RouterClient client = Ask(Asking("Hi"));
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectError(heard, StatusCode::kUnavailable);
  EXPECT_NE(Message(*heard.error).find("gone"), std::string_view::npos) << ToString(*heard.error);
  EXPECT_GT(peers[0]->submits(), 1U);
  EXPECT_GT(peers[1]->submits(), 1U);
  for (const auto& peer : peers) peer->SetRefusal(OkStatus());
  Settle();
  const RouterClient next = Ask(Asking("Hi"));
  EXPECT_NE(TakeAny(), nullptr);
}

TEST_F(RouterFailoverTest, PatienceDoesNotEndForThoseThatWaitForAPlace) {
  RequestRouterOptions options = QuickOptions();
  options.failover_patience = Duration::zero();
  options.batch_max = 1;
  Make({0, 0}, options);
  peers[1]->SetHealth(Gone());
  Settle();
  const RouterClient first = Ask(Asking("a"));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  const RouterClient second = Ask(Asking("b"));
  Settle();
  EXPECT_FALSE(second.sink->heard().ended());
  attempt->End(FinishReason::kStop);
  EXPECT_NE(peers[0]->Take(), nullptr);
}

TEST_F(RouterFailoverTest, ADeadlineEndsItWhileNoWorkerIsThere) {
  Make({0});
  peers[0]->SetHealth(Gone());
  api::GenerateRequest request = Asking("a");
  request.deadline = Deadline::After(std::chrono::milliseconds(30));
  const RouterClient client = Ask(request);
  ExpectError(client.sink->AwaitEnd(), StatusCode::kDeadlineExceeded);
}

TEST_F(RouterFailoverTest, CancelWhileNoWorkerIsThere) {
  Make({0});
  const RouterClient client = Ask(Asking("a"));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  peers[0]->SetHealth(Gone());
  ASSERT_TRUE(attempt->WaitCancelled());
  client.generation->Cancel();
  ExpectError(client.sink->AwaitEnd(), StatusCode::kCancelled);
}

TEST_F(RouterFailoverTest, ThePlaceOfALostAttemptIsFree) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  Make({0}, options);
  const RouterClient client = Ask(Asking("a"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  peers[0]->SetHealth(Gone());
  ASSERT_TRUE(first->WaitCancelled());
  peers[0]->SetHealth(OkStatus());
  EXPECT_NE(peers[0]->Take(), nullptr);
}

TEST_F(RouterFailoverTest, MetricsCountFailovers) {
  Make({0, 0});
  const RouterClient client = Ask(Asking("Hi", 10));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  first->Tokens(Tokens("ab"));
  ASSERT_EQ(client.sink->AwaitTokens(2).tokens, 2U);
  peers[0]->SetHealth(Gone());
  ASSERT_NE(peers[1]->Take(), nullptr);
  Settle();
  const std::string text = registry.Render();
  for (const char* line :
       {"ems_pdc_router_failovers_total 1\n", "ems_pdc_router_recomputed_tokens_total 5\n",
        "ems_pdc_router_peer_healthy{peer=\"d0\"} 0\n",
        "ems_pdc_router_peer_requests{peer=\"d0\"} 0\n",
        "ems_pdc_router_peer_requests{peer=\"d1\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
}

}  // namespace
}  // namespace ems::pdc
