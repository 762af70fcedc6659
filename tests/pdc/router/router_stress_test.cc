// What must hold while workers die, stand still, refuse and come back at random, and clients leave:
// each answer that ends is the one that a single healthy worker would have given.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "pdc/router/prompt_tokens.h"
#include "pdc/router/request_router.h"
#include "tests/support/recorded_generation.h"

namespace ems::pdc {
namespace {

using testing::RecordedGeneration;

// The model: the next token depends on all before it and on the seed. One in 65 ends the answer.
TokenId NextToken(uint64_t seed, std::span<const TokenId> tokens) {
  uint64_t mixed = seed * 0x9E3779B97F4A7C15U + 1;
  for (const TokenId token : tokens) mixed = (mixed ^ token) * 0xBF58476D1CE4E5B9U + (mixed >> 29);
  mixed ^= mixed >> 32;
  return mixed % 65 == 0 ? kEndToken : static_cast<TokenId>(mixed / 65 % kByteTokens);
}

// A worker with a thread of its own, whose faults are drawn from a seed.
class FaultyPeer final : public DecodePeer {
 public:
  FaultyPeer(std::string name, uint64_t seed)
      : name_(std::move(name)), random_(seed), submit_random_(std::in_place, seed + 1) {
    thread_ = Thread(name_, [this] { Run(); });
  }
  ~FaultyPeer() override {
    auto state = state_.Lock();
    state->stopping = true;
    state.Unlock();
    changed_.notify_all();
    thread_.Join();
  }
  const std::string& name() const override { return name_; }
  DecodeHealth health() override {
    auto state = state_.Lock();
    const bool bad = state->bad;
    state->bad_was_seen = bad;
    state.Unlock();
    changed_.notify_all();
    return {.status = bad ? Error(StatusCode::kUnavailable, "bad") : OkStatus(),
            .kv_tokens_max = 400};
  }
  Status Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) override {
    {
      auto random = submit_random_.Lock();
      const uint64_t drawn = (*random)() % 40;
      if (drawn == 0) return Error(StatusCode::kUnavailable, "refused");
      if (drawn == 1) return Error(StatusCode::kResourceExhausted, "full");
    }
    auto state = state_.Lock();
    const uint64_t id = task.id;
    if (!state->tasks.emplace(id, std::make_shared<Task>(std::move(task), std::move(sink))).second)
      return Error(StatusCode::kAlreadyExists, "task {}", id);
    state.Unlock();
    changed_.notify_all();
    return OkStatus();
  }
  void Cancel(uint64_t id) override {
    auto state = state_.Lock();
    const auto found = state->tasks.find(id);
    if (found != state->tasks.end()) found->second->cancelled = true;
  }

 private:
  struct Task {
    Task(DecodeTask spec_in, std::shared_ptr<DecodeSink> sink_in)
        : spec(std::move(spec_in)), sink(std::move(sink_in)) {}
    DecodeTask spec;  // of the thread, the prompt grows
    std::shared_ptr<DecodeSink> sink;
    bool prompted = false;
    bool cancelled = false;  // under the lock
  };
  using TaskPtr = std::shared_ptr<Task>;
  struct State {
    std::map<uint64_t, TaskPtr> tasks;
    bool bad = false, bad_was_seen = false, stopping = false;
  };

  void Run() {
    while (true) {
      std::vector<std::pair<TaskPtr, bool>> here;
      {
        auto state = state_.Lock();
        state.Wait(changed_, [](const State& now) { return now.stopping || !now.tasks.empty(); });
        if (state->stopping) return;
        for (const auto& [id, task] : state->tasks) here.emplace_back(task, task->cancelled);
      }
      const uint64_t drawn = random_() % 60;
      if (drawn == 0) {
        Crash(here);
      } else if (drawn == 1) {
        BeBadUntilSeen();  // it stands still, and goes on later with what it has
      } else {
        for (const auto& [task, cancelled] : here) Step(task, cancelled);
      }
    }
  }
  // Of some tasks it says that they are lost, of others nothing.
  void Crash(const std::vector<std::pair<TaskPtr, bool>>& here) {
    for (const auto& [task, cancelled] : here) {
      Forget(task);
      if (random_() % 2 == 0) task->sink->OnEnd(Error(StatusCode::kUnavailable, "crashed"));
    }
    BeBadUntilSeen();
  }
  void BeBadUntilSeen() {
    auto state = state_.Lock();
    state->bad = true;
    state->bad_was_seen = false;
    state.Wait(changed_, [](const State& now) { return now.stopping || now.bad_was_seen; });
    state->bad = false;
  }
  void Forget(const TaskPtr& task) {
    auto state = state_.Lock();
    state->tasks.erase(task->spec.id);
  }
  void End(const TaskPtr& task, Result<FinishReason> how) {
    Forget(task);
    task->sink->OnEnd(std::move(how));
  }
  void Step(const TaskPtr& task, bool cancelled) {
    DecodeTask& spec = task->spec;
    if (!std::exchange(task->prompted, true))
      task->sink->OnPrompt(static_cast<uint32_t>(spec.prompt.size()), 0);
    if (cancelled && random_() % 2 == 0)
      return End(task, Error(StatusCode::kCancelled, "cancelled"));
    if (random_() % 100 == 0) return End(task, Error(StatusCode::kUnavailable, "lost"));
    std::vector<TokenId> tokens;
    const size_t wanted = 1 + random_() % 2;
    bool stop = false;
    while (tokens.size() < wanted && spec.tokens_max > 0 && !stop) {
      tokens.push_back(NextToken(spec.sampler.seed, spec.prompt));
      spec.prompt.push_back(tokens.back());
      --spec.tokens_max;
      stop = tokens.back() == kEndToken;
    }
    task->sink->OnTokens(tokens);
    if (stop) return End(task, FinishReason::kStop);
    if (spec.tokens_max == 0) End(task, FinishReason::kLength);
  }

  const std::string name_;
  std::mt19937_64 random_;  // of the thread
  Guarded<std::mt19937_64> submit_random_;
  Guarded<State> state_;
  std::condition_variable changed_;
  Thread thread_;
};

struct Expected {
  std::string bytes;
  uint64_t tokens = 0;
  api::FinishReason reason = api::FinishReason::kLength;
};

Expected AnswerOf(const api::GenerateRequest& request) {
  std::vector<TokenId> tokens = PromptTokens(request.text);
  const size_t prompt = tokens.size();
  Expected expected;
  while (expected.tokens < request.tokens_max) {
    tokens.push_back(NextToken(*request.sampling.seed, tokens));
    ++expected.tokens;
    if (tokens.back() == kEndToken) {
      expected.reason = api::FinishReason::kStop;
      break;
    }
  }
  expected.bytes = Detokenize(std::span(tokens).subspan(prompt));
  return expected;
}

// One client after the other, a few at a time. Returns how many answers were whole.
int RunClients(RequestRouter* router, uint64_t seed, int count) {
  struct Client {
    api::GenerateRequest request{};
    std::shared_ptr<RecordedGeneration> sink{};
    std::shared_ptr<api::Generation> generation{};
    bool cancelled = false;
  };
  std::mt19937_64 random(seed);
  std::vector<Client> clients;
  int whole = 0;
  const auto check = [&whole](const Client& client) {
    const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
    ASSERT_TRUE(heard.ended());
    EXPECT_EQ(heard.broken, "");
    const Expected expected = AnswerOf(client.request);
    if (client.cancelled && heard.error) {
      EXPECT_EQ(heard.error->code(), StatusCode::kCancelled) << ToString(*heard.error);
      EXPECT_TRUE(expected.bytes.starts_with(heard.bytes));
      return;
    }
    ASSERT_TRUE(heard.finish.has_value()) << ToString(*heard.error);
    EXPECT_EQ(heard.bytes, expected.bytes);
    EXPECT_EQ(heard.tokens, expected.tokens);
    EXPECT_EQ(*heard.finish, expected.reason);
    ++whole;
  };
  for (int i = 0; i < count; ++i) {
    Client client{.sink = std::make_shared<RecordedGeneration>(), .cancelled = random() % 8 == 0};
    client.request.model = "m";
    client.request.text = std::string(random() % 40, 'p');
    client.request.tokens_max = 1 + random() % 60;
    client.request.sampling.seed = random();
    auto started = router->Start(client.request, client.sink);
    if (!started.ok()) {
      ADD_FAILURE() << ToString(started.status());
      continue;
    }
    client.generation = *std::move(started);
    if (client.cancelled && random() % 2 == 0) client.sink->AwaitTokens(1 + random() % 5);
    if (client.cancelled) client.generation->Cancel();
    clients.push_back(std::move(client));
    if (clients.size() >= 8) {
      check(clients.front());
      clients.erase(clients.begin());
    }
  }
  for (const Client& client : clients) check(client);
  return whole;
}

TEST(RouterStressTest, AnswersAreThoseOfOneHealthyWorker) {
  ASSERT_TRUE(log::Init("error").ok());  // each fault is a warning
  constexpr uint64_t kSeed = 11;
  constexpr int kThreads = 3, kRequests = 60;
  std::vector<std::shared_ptr<DecodePeer>> peers;
  for (uint64_t i = 0; i < 3; ++i)
    peers.push_back(std::make_shared<FaultyPeer>("d" + std::to_string(i), kSeed + 10 * i));
  MetricsRegistry registry;
  auto router = RequestRouter::Create(
      {.batch_max = 6,
       .reserve_tokens = 20,
       .attempts_max = 1000,
       .failover_patience = std::chrono::minutes(1),
       .heartbeat = std::chrono::milliseconds(1)},
      {.name = "m", .context_tokens_max = 200, .vocabulary = kTokens}, peers, &registry);
  ASSERT_TRUE(router.ok()) << ToString(router.status());
  Guarded<int> whole{std::in_place, 0};
  {
    std::vector<Thread> threads;
    threads.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back("client-" + std::to_string(i), [&router, &whole, i] {
        const int mine =
            RunClients(router->get(), kSeed + 100 + static_cast<uint64_t>(i), kRequests);
        auto sum = whole.Lock();
        *sum += mine;
      });
    }
  }
  const RequestRouterStats stats = (*router)->stats();
  EXPECT_EQ(stats.requests, uint64_t{kThreads} * kRequests);
  EXPECT_EQ(stats.finished + stats.cancelled, stats.requests);
  EXPECT_EQ(stats.waiting + stats.running, 0U);
  auto sum = whole.Lock();
  EXPECT_EQ(stats.finished, static_cast<uint64_t>(*sum));
  EXPECT_GT(stats.failovers, 20U) << "faults must have happened";
  EXPECT_GT(stats.finished, stats.requests / 2);
}

TEST(RouterStressTest, IsDestroyedWithRequestsUnderWay) {
  ASSERT_TRUE(log::Init("error").ok());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<std::shared_ptr<DecodePeer>> peers = {std::make_shared<FaultyPeer>("d0", seed),
                                                      std::make_shared<FaultyPeer>("d1", seed + 9)};
    MetricsRegistry registry;
    auto router = RequestRouter::Create(
        {.heartbeat = std::chrono::milliseconds(1)},
        {.name = "m", .context_tokens_max = 300, .vocabulary = kTokens}, peers, &registry);
    ASSERT_TRUE(router.ok()) << ToString(router.status());
    std::vector<std::shared_ptr<RecordedGeneration>> sinks;
    for (uint64_t i = 0; i < 20; ++i) {
      api::GenerateRequest request;
      request.model = "m";
      request.text = "x";
      request.tokens_max = 200;
      request.ignore_eos = true;
      sinks.push_back(std::make_shared<RecordedGeneration>());
      ASSERT_TRUE((*router)->Start(request, sinks.back()).ok());
    }
    (void)sinks[seed]->AwaitTokens(1);
    router->reset();
    for (const auto& sink : sinks) {
      const RecordedGeneration::Heard heard = sink->heard();
      EXPECT_TRUE(heard.ended());
      EXPECT_EQ(heard.broken, "");
    }
  }
}

}  // namespace
}  // namespace ems::pdc
