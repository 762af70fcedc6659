#include "pdc/router/request_router.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "common/guarded.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "pdc/router/peer_health.h"
#include "pdc/router/prompt_tokens.h"
#include "pdc/router/routed_request.h"
#include "pdc/router/router_inbox.h"
#include "pdc/scheduling/decode_balancer.h"

namespace ems::pdc {
namespace {

uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32) ^ device();
}

Status CheckOptions(const RequestRouterOptions& options, const api::ModelInfo& model,
                    const std::vector<std::shared_ptr<DecodePeer>>& peers) {
  if (options.queue_max == 0 || options.batch_max == 0 || options.kv_block_tokens == 0 ||
      options.attempts_max == 0) {
    return Error(StatusCode::kInvalidArgument,
                 "queue_max, batch_max, kv_block_tokens and attempts_max are at least 1");
  }
  if (options.heartbeat <= Duration::zero() || options.failover_patience < Duration::zero()) {
    return Error(StatusCode::kInvalidArgument,
                 "heartbeat is above 0, and failover_patience not below");
  }
  if (model.name.empty() || model.vocabulary < kTokens || model.context_tokens_max < 2 ||
      model.context_tokens_max > std::numeric_limits<uint32_t>::max()) {
    return Error(StatusCode::kInvalidArgument,
                 "model '{}' with a vocabulary of {} (at least {}) and a context of {} tokens",
                 model.name, model.vocabulary, kTokens, model.context_tokens_max);
  }
  if (peers.empty()) return Error(StatusCode::kInvalidArgument, "no decode workers");
  std::set<std::string> names;
  for (const auto& peer : peers) {
    if (peer == nullptr) return Error(StatusCode::kInvalidArgument, "a decode worker is null");
    if (!names.insert(peer->name()).second) {
      return Error(StatusCode::kInvalidArgument, "two decode workers are called '{}'",
                   peer->name());
    }
  }
  return OkStatus();
}

std::vector<std::string> NamesOf(const std::vector<std::shared_ptr<DecodePeer>>& peers) {
  std::vector<std::string> names;
  names.reserve(peers.size());
  for (const auto& peer : peers) names.push_back(peer->name());
  return names;
}

}  // namespace

struct RequestRouter::Impl {
  // The state of the workers that callers of Start and Ready see.
  struct Shared {
    Status ready;
    std::optional<TimePoint> nobody_since;  // no usable worker since then
    uint64_t room_tokens_max = 0;           // of the worker with the most
  };
  using Requests = std::map<uint64_t, std::unique_ptr<RoutedRequest>>;

  Impl(const RequestRouterOptions& options_in, api::ModelInfo model,
       std::vector<std::shared_ptr<DecodePeer>> doors, MetricsRegistry* registry)
      : options(options_in),
        models{std::move(model)},
        metrics(registry, NamesOf(doors)),
        peers(std::move(doors),
              {.kv_tokens_max = options.kv_tokens_max, .heartbeat = options.heartbeat}),
        balancer({.groups = peers.size(), .batch_max = options.batch_max}) {}

  // --- On ems-router.
  void Run();
  void Handle(RequestStarted event);
  void Handle(const RequestCancelled& event);
  void Handle(const AttemptPrompt& event);
  void Handle(const AttemptTokens& event);
  void Handle(const AttemptEnded& event);
  // The request of an attempt; null when the attempt has been abandoned.
  RoutedRequest* Find(uint64_t attempt);
  void TellPrompt(RoutedRequest* request, uint32_t cached_tokens);

  void LookAtPeers();
  // What it had goes on elsewhere.
  void LeavePeer(int peer, const Status& why);
  // It failed a request, or has no room for it: others first.
  void LeaveOut(int peer, StatusCode why);
  void EndOverdue(TimePoint now);
  void PlaceAll();
  // False: there is no place now. True: it is placed, has ended, or a worker refused it.
  bool PlaceOne(RoutedRequest* request);
  void EndImpatient();

  // It has no attempt any more.
  void Detach(RoutedRequest* request);
  // The same, and its worker is to stop.
  void Abandon(RoutedRequest* request);
  void Wait(RoutedRequest* request);
  // After an attempt that was lost, and is detached.
  void GoOn(RoutedRequest* request, const Status& why);
  void WaitAgain(RoutedRequest* request, const Status& why);
  void Finish(RoutedRequest* request, api::FinishReason reason);
  void Fail(RoutedRequest* request, const Status& why);
  std::unique_ptr<RoutedRequest> Remove(RoutedRequest* request, StatusCode code);

  const RequestRouterOptions options;
  const std::vector<api::ModelInfo> models;
  const std::shared_ptr<RouterInbox> inbox = std::make_shared<RouterInbox>();
  RouterMetrics metrics;
  Guarded<Shared> shared;
  std::atomic<uint64_t> sequence{1};           // relaxed: only unique
  std::atomic<uint64_t> seed{RandomNumber()};  // relaxed: only different

  // Of ems-router.
  PeerHealth peers;
  DecodeBalancer balancer;
  Requests requests;                                // by sequence, the oldest first
  std::set<uint64_t> waiting;                       // of them, those without a worker
  std::unordered_map<uint64_t, uint64_t> attempts;  // attempt → sequence
  std::set<std::pair<TimePoint, uint64_t>> deadlines;
  std::optional<TimePoint> nobody_since;
  // Workers know the attempts of other routers, too.
  uint64_t next_attempt = RandomNumber() | 1;
  Thread thread;
};

// --- The loop.

void RequestRouter::Impl::Run() {
  std::vector<RouterEvent> events;
  TimePoint look_at = Clock::System().Now() + options.heartbeat;
  bool open = true;
  while (open) {
    const TimePoint until =
        deadlines.empty() ? look_at : std::min(look_at, deadlines.begin()->first);
    open = inbox->Take(until, &events);
    for (RouterEvent& event : events)
      std::visit([this](auto& one) { Handle(std::move(one)); }, event);
    const TimePoint now = Clock::System().Now();
    EndOverdue(now);
    if (now >= look_at) {
      LookAtPeers();
      look_at = Clock::System().Now() + options.heartbeat;
    }
    if (open) PlaceAll();
  }
  while (!requests.empty())
    Fail(requests.begin()->second.get(), Error(StatusCode::kUnavailable, "the router is stopping"));
}

void RequestRouter::Impl::Handle(RequestStarted event) {
  RoutedRequest* request = event.request.get();
  deadlines.emplace(request->deadline().at(), request->sequence());
  requests.emplace(request->sequence(), std::move(event.request));
  Wait(request);
}

void RequestRouter::Impl::Handle(const RequestCancelled& event) {
  const auto found = requests.find(event.sequence);
  if (found != requests.end())
    Fail(found->second.get(), Error(StatusCode::kCancelled, "cancelled"));
}

RoutedRequest* RequestRouter::Impl::Find(uint64_t attempt) {
  const auto found = attempts.find(attempt);
  return found == attempts.end() ? nullptr : requests.at(found->second).get();
}

void RequestRouter::Impl::TellPrompt(RoutedRequest* request, uint32_t cached_tokens) {
  if (!request->PromptIsNews()) return;
  request->sink().OnPrompt({.prompt_tokens = request->prompt_tokens(),
                            .cached_tokens = std::min(cached_tokens, request->prompt_tokens())});
}

void RequestRouter::Impl::Handle(const AttemptPrompt& event) {
  if (RoutedRequest* request = Find(event.attempt)) TellPrompt(request, event.cached_tokens);
}

void RequestRouter::Impl::Handle(const AttemptTokens& event) {
  RoutedRequest* request = Find(event.attempt);
  if (request == nullptr) return;
  const size_t taken = request->Take(event.tokens);
  if (taken == 0) return;
  TellPrompt(request, 0);
  const Request sizes = request->Sizes(event.attempt, options.kv_block_tokens, 1);
  const uint64_t kv_tokens = sizes.input_tokens + sizes.output_tokens;
  if (kv_tokens > request->place.kv_tokens) {
    request->place.kv_tokens = kv_tokens;
    balancer.Charge(event.attempt, kv_tokens);
  }
  request->sink().OnTokens(Detokenize(std::span(event.tokens).first(taken)),
                           static_cast<uint32_t>(taken));
}

void RequestRouter::Impl::Handle(const AttemptEnded& event) {
  RoutedRequest* request = Find(event.attempt);
  if (request == nullptr) return;
  const int peer = request->place.peer;
  const std::string& name = peers.peer(peer).name();
  Detach(request);
  if (event.how.ok()) {
    if (*event.how == FinishReason::kNone) {
      return Fail(request,
                  Error(StatusCode::kInternal, "'{}' ended an answer without a reason", name));
    }
    TellPrompt(request, 0);
    return Finish(request, *event.how == FinishReason::kStop ? api::FinishReason::kStop
                                                             : api::FinishReason::kLength);
  }
  if (const auto reason = request->complete()) return Finish(request, *reason);
  const Status& why = event.how.status();
  if (why.code() == StatusCode::kResourceExhausted) {
    // Its queue was full, as only the worker's process could know: as if Submit had said so.
    request->TakeAttemptBack();
    LeaveOut(peer, why.code());
    return WaitAgain(request, Prefixed(why, name));
  }
  // Cancelled by others than this router: the worker is stopping.
  if (why.code() != StatusCode::kUnavailable && why.code() != StatusCode::kCancelled)
    return Fail(request, why);
  LeaveOut(peer, why.code());
  GoOn(request, Prefixed(why, name));
}

// --- Workers.

void RequestRouter::Impl::LookAtPeers() {
  for (int i = 0; i < peers.size(); ++i) {
    const Status lost = peers.Look(i, Clock::System().Now());
    balancer.SetCapacity(i, peers.kv_tokens_max(i));
    balancer.SetOpen(i, peers.open(i));
    if (!lost.ok()) LeavePeer(i, Prefixed(lost, peers.peer(i).name()));
    metrics.OnPeer(i, peers.serves(i), balancer.requests(i), balancer.kv_tokens(i));
  }
  auto now = shared.Lock();
  now->room_tokens_max = peers.room_tokens_max();
  now->ready = peers.ready();
}

void RequestRouter::Impl::LeavePeer(int index, const Status& why) {
  std::vector<RoutedRequest*> here;
  for (const auto& [sequence_number, request] : requests)
    if (request->place.attempt != 0 && request->place.peer == index) here.push_back(request.get());
  for (RoutedRequest* request : here) {
    Abandon(request);
    GoOn(request, why);
  }
}

void RequestRouter::Impl::LeaveOut(int index, StatusCode why) {
  if (why == StatusCode::kResourceExhausted) {
    peers.OnFull(index);
  } else {
    peers.OnFailed(index, Clock::System().Now());
  }
  balancer.SetOpen(index, false);
}

// --- Places.

void RequestRouter::Impl::PlaceAll() {
  while (!waiting.empty() && PlaceOne(requests.at(*waiting.begin()).get())) {
  }
  const bool any = peers.any_usable();
  if (any == nobody_since.has_value()) {
    nobody_since = any ? std::nullopt : std::optional(Clock::System().Now());
    auto now = shared.Lock();
    now->nobody_since = nobody_since;
  }
  if (!any) EndImpatient();
}

bool RequestRouter::Impl::PlaceOne(RoutedRequest* request) {
  const uint64_t attempt = next_attempt;
  next_attempt += 2;  // never 0
  const Request sizes = request->Sizes(attempt, options.kv_block_tokens, options.reserve_tokens);
  const std::optional<int> index = balancer.Place(sizes);
  if (!index) {
    if (!balancer.NeverFits(sizes)) return false;
    Fail(request, Error(StatusCode::kInvalidArgument,
                        "{} tokens and up to {} more fit into no decode worker", sizes.input_tokens,
                        sizes.output_tokens_max));
    return true;
  }
  DecodePeer& peer = peers.peer(*index);
  const Status taken =
      peer.Submit(request->NextTask(attempt), std::make_shared<AttemptSink>(inbox, attempt));
  if (taken.ok()) {
    const size_t waited = waiting.erase(request->sequence());
    EMS_CHECK(waited == 1, "request {} was placed twice", request->sequence());
    attempts.emplace(attempt, request->sequence());
    request->place.attempt = attempt;
    request->place.peer = *index;
    request->place.kv_tokens = sizes.input_tokens + sizes.output_tokens;
    request->BeginAttempt();
    metrics.OnAttempt();
    return true;
  }
  balancer.Remove(attempt);
  if (taken.code() == StatusCode::kInvalidArgument) {
    Fail(request, taken);
    return true;
  }
  request->place.last_failure = ToString(Prefixed(taken, peer.name()));
  LeaveOut(*index, taken.code());
  return true;
}

void RequestRouter::Impl::EndImpatient() {
  const TimePoint before = Clock::System().Now() - options.failover_patience;
  std::vector<RoutedRequest*> ending;
  for (const uint64_t number : waiting) {
    RoutedRequest* request = requests.at(number).get();
    if (std::max(*nobody_since, request->place.waiting_since) <= before) ending.push_back(request);
  }
  for (RoutedRequest* request : ending) {
    const std::string last = request->place.last_failure;
    Fail(request, Error(StatusCode::kUnavailable, "no decode worker can serve it{}{}",
                        last.empty() ? "" : "; the last one said: ", last));
  }
}

void RequestRouter::Impl::EndOverdue(TimePoint now) {
  while (!deadlines.empty() && deadlines.begin()->first <= now) {
    RoutedRequest* request = requests.at(deadlines.begin()->second).get();
    Fail(request, Error(StatusCode::kDeadlineExceeded,
                        "the request's deadline passed after {} tokens of its answer",
                        request->answer_tokens()));
  }
}

// --- Where a request goes.

void RequestRouter::Impl::Wait(RoutedRequest* request) {
  waiting.insert(request->sequence());
  request->place.waiting_since = Clock::System().Now();
}

void RequestRouter::Impl::Detach(RoutedRequest* request) {
  const bool placed = balancer.Remove(request->place.attempt);
  EMS_CHECK(placed, "request {} was at no worker", request->sequence());
  attempts.erase(request->place.attempt);
  request->place.attempt = 0;
  peers.OnEnded(request->place.peer);
  balancer.SetOpen(request->place.peer, peers.open(request->place.peer));
}

void RequestRouter::Impl::Abandon(RoutedRequest* request) {
  const uint64_t attempt = request->place.attempt;
  Detach(request);
  peers.peer(request->place.peer).Cancel(attempt);
}

void RequestRouter::Impl::GoOn(RoutedRequest* request, const Status& why) {
  if (const auto reason = request->complete()) return Finish(request, *reason);
  if (request->fruitless_attempts() >= options.attempts_max) {
    return Fail(request, Error(StatusCode::kUnavailable,
                               "failed after {} attempts without a token; the last one: {}",
                               request->fruitless_attempts(), Message(why)));
  }
  EMS_LOG(kDebug, "pdc", "request continues elsewhere answer_tokens={} why=\"{}\"",
          request->answer_tokens(), ToString(why));
  WaitAgain(request, why);
}

void RequestRouter::Impl::WaitAgain(RoutedRequest* request, const Status& why) {
  request->place.last_failure = ToString(why);
  metrics.OnFailover(request->prompt_tokens() + request->answer_tokens());
  Wait(request);
}

std::unique_ptr<RoutedRequest> RequestRouter::Impl::Remove(RoutedRequest* request,
                                                           StatusCode code) {
  const uint64_t number = request->sequence();
  if (request->place.attempt != 0) Abandon(request);
  const bool waited = waiting.erase(number) > 0;
  deadlines.erase({request->deadline().at(), number});
  metrics.OnEnded(waited, code);
  auto removed = requests.extract(number);
  EMS_CHECK(!removed.empty(), "request {} has ended twice", number);
  return std::move(removed.mapped());
}

void RequestRouter::Impl::Finish(RoutedRequest* request, api::FinishReason reason) {
  Remove(request, StatusCode::kOk)->sink().OnFinish(reason);
}

void RequestRouter::Impl::Fail(RoutedRequest* request, const Status& why) {
  Remove(request, why.code())->sink().OnError(why);
}

// --- The door.

RequestRouter::RequestRouter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<RequestRouter>> RequestRouter::Create(
    const RequestRouterOptions& options, api::ModelInfo model,
    std::vector<std::shared_ptr<DecodePeer>> peers, MetricsRegistry* registry) {
  EMS_RETURN_IF_ERROR(CheckOptions(options, model, peers));
  auto impl = std::make_unique<Impl>(options, std::move(model), std::move(peers), registry);
  impl->LookAtPeers();  // so that Ready() knows
  impl->PlaceAll();
  impl->thread = Thread("ems-router", [raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<RequestRouter>(new RequestRouter(std::move(impl)));
}

RequestRouter::~RequestRouter() { Stop(); }

void RequestRouter::Stop() {
  impl_->inbox->Close();
  impl_->thread.Join();
}

const std::vector<api::ModelInfo>& RequestRouter::models() const { return impl_->models; }

uint64_t RequestRouter::CountTokens(const api::ModelInfo& /*model*/, std::string_view text) const {
  return PromptTokens(text).size();
}

Status RequestRouter::Ready() const {
  auto shared = impl_->shared.Lock();
  return shared->ready;
}

Result<std::shared_ptr<api::Generation>> RequestRouter::Start(
    api::GenerateRequest request, std::shared_ptr<api::GenerationSink> sink) {
  const bool seeded = request.sampling.seed.has_value();
  auto refuse = [this](const Status& why) {
    impl_->metrics.OnRefused(why.code());
    return why;
  };
  Result<DecodeTask> task = TaskFor(impl_->models.front(), std::move(request));
  if (!task.ok()) return refuse(task.status());
  if (!seeded) task->sampler.seed = impl_->seed.fetch_add(1, std::memory_order_relaxed);

  auto locked = impl_->shared.Lock();
  const Impl::Shared shared = *locked;
  locked.Unlock();
  if (task->prompt.size() + task->tokens_max > shared.room_tokens_max) {
    return refuse(Error(StatusCode::kInvalidArgument,
                        "{} tokens and up to {} more fit into no decode worker: {} do",
                        task->prompt.size(), task->tokens_max, shared.room_tokens_max));
  }
  if (shared.nobody_since &&
      Clock::System().Now() - *shared.nobody_since >= impl_->options.failover_patience) {
    return refuse(!shared.ready.ok()
                      ? shared.ready
                      : Error(StatusCode::kUnavailable, "all decode workers refuse requests"));
  }
  if (!impl_->metrics.TryTake(impl_->options.queue_max)) {
    return refuse(Error(StatusCode::kResourceExhausted,
                        "{} requests are waiting for a decode worker, no more may",
                        impl_->options.queue_max));
  }
  const uint64_t number = impl_->sequence.fetch_add(1, std::memory_order_relaxed);
  if (!impl_->inbox->Push(RequestStarted{
          std::make_unique<RoutedRequest>(number, *std::move(task), std::move(sink))})) {
    impl_->metrics.OnEnded(true, StatusCode::kUnavailable);
    return Error(StatusCode::kUnavailable, "the router is stopping");
  }
  return std::shared_ptr<api::Generation>(std::make_shared<RequestTicket>(impl_->inbox, number));
}

RequestRouterStats RequestRouter::stats() const { return impl_->metrics.stats(); }

}  // namespace ems::pdc
