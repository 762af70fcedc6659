#include "pdc/router.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/guarded.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "pdc/decode_balancer.h"
#include "pdc/prompt_tokens.h"
#include "pdc/routed_request.h"
#include "pdc/router_inbox.h"

namespace ems::pdc {
namespace {

// Of a worker that does not say how much KV it has room for.
constexpr uint64_t kUnknownRoom = uint64_t{1} << 48;

uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32) ^ device();
}

// What a worker says about one attempt goes to the inbox, by the attempt's number: once the router
// has given it up, nobody knows that number any more.
class AttemptSink final : public DecodeSink {
 public:
  AttemptSink(std::shared_ptr<RouterInbox> inbox, uint64_t attempt)
      : inbox_(std::move(inbox)), attempt_(attempt) {}
  void OnPrompt(uint32_t /*prompt_tokens*/, uint32_t cached_tokens) override {
    (void)inbox_->Push(AttemptPrompt{attempt_, cached_tokens});
  }
  void OnTokens(std::span<const TokenId> tokens) override {
    (void)inbox_->Push(AttemptTokens{attempt_, {tokens.begin(), tokens.end()}});
  }
  void OnEnd(Result<FinishReason> how) override {
    (void)inbox_->Push(AttemptEnded{attempt_, std::move(how)});
  }

 private:
  const std::shared_ptr<RouterInbox> inbox_;
  const uint64_t attempt_;
};

class Ticket final : public api::Generation {
 public:
  Ticket(std::shared_ptr<RouterInbox> inbox, uint64_t sequence)
      : inbox_(std::move(inbox)), sequence_(sequence) {}
  void Cancel() override { (void)inbox_->Push(RequestCancelled{sequence_}); }

 private:
  const std::shared_ptr<RouterInbox> inbox_;
  const uint64_t sequence_;
};

Status CheckOptions(const RouterOptions& options, const api::ModelInfo& model,
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

struct Router::Impl {
  struct Peer {
    std::shared_ptr<DecodePeer> door;
    Status health{};
    Status admits{};  // whether it could begin something new
    // It failed a request: left out for a heartbeat, until the next look at its health.
    bool refuses = false;
    TimePoint refused_at{};
    // Its queue was full: left out until the next look, or until a request ends there.
    bool full = false;
    bool serves() const { return health.ok() && admits.ok(); }
    bool usable() const { return serves() && !refuses; }
  };
  // What callers of Start and Ready see of the workers.
  struct Shared {
    Status ready;
    std::optional<TimePoint> nobody_since;    // no usable worker since then
    uint64_t room_tokens_max = kUnknownRoom;  // of the worker with the most
  };
  using Requests = std::map<uint64_t, std::unique_ptr<RoutedRequest>>;

  Impl(const RouterOptions& options_in, api::ModelInfo model,
       std::vector<std::shared_ptr<DecodePeer>> doors, MetricsRegistry* registry)
      : options(options_in),
        models{std::move(model)},
        metrics(registry, NamesOf(doors)),
        balancer({.groups = static_cast<int>(doors.size()), .batch_max = options.batch_max}) {
    for (auto& door : doors) peers.push_back({.door = std::move(door)});
  }

  Result<DecodeTask> TaskOf(api::GenerateRequest request) const;

  // --- On ems-router.
  void Run();
  void Handle(RequestStarted event);
  void Handle(const RequestCancelled& event);
  void Handle(const AttemptPrompt& event);
  void Handle(const AttemptTokens& event);
  void Handle(const AttemptEnded& event);
  // The request of an attempt; null when the attempt has been given up.
  RoutedRequest* Find(uint64_t attempt);
  void TellPrompt(RoutedRequest* request, uint32_t cached_tokens);

  void LookAtPeers();
  bool Look(int peer, DecodeHealth health);
  void LeavePeer(int peer);
  void LeaveOut(int peer);
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

  const RouterOptions options;
  const std::vector<api::ModelInfo> models;
  const std::shared_ptr<RouterInbox> inbox = std::make_shared<RouterInbox>();
  RouterMetrics metrics;
  Guarded<Shared> shared;
  std::atomic<uint64_t> sequence{1};           // relaxed: only unique
  std::atomic<uint64_t> seed{RandomNumber()};  // relaxed: only different

  // Of ems-router.
  std::vector<Peer> peers;
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

void Router::Impl::Run() {
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

void Router::Impl::Handle(RequestStarted event) {
  RoutedRequest* request = event.request.get();
  deadlines.emplace(request->deadline().at(), request->sequence());
  requests.emplace(request->sequence(), std::move(event.request));
  Wait(request);
}

void Router::Impl::Handle(const RequestCancelled& event) {
  const auto found = requests.find(event.sequence);
  if (found != requests.end())
    Fail(found->second.get(), Error(StatusCode::kCancelled, "cancelled"));
}

RoutedRequest* Router::Impl::Find(uint64_t attempt) {
  const auto found = attempts.find(attempt);
  return found == attempts.end() ? nullptr : requests.at(found->second).get();
}

void Router::Impl::TellPrompt(RoutedRequest* request, uint32_t cached_tokens) {
  if (!request->PromptIsNews()) return;
  request->sink().OnPrompt({.prompt_tokens = request->prompt_tokens(),
                            .cached_tokens = std::min(cached_tokens, request->prompt_tokens())});
}

void Router::Impl::Handle(const AttemptPrompt& event) {
  if (RoutedRequest* request = Find(event.attempt)) TellPrompt(request, event.cached_tokens);
}

void Router::Impl::Handle(const AttemptTokens& event) {
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

void Router::Impl::Handle(const AttemptEnded& event) {
  RoutedRequest* request = Find(event.attempt);
  if (request == nullptr) return;
  Peer& peer = peers[static_cast<size_t>(request->place.peer)];
  Detach(request);
  if (event.how.ok()) {
    if (*event.how == FinishReason::kNone) {
      return Fail(request, Error(StatusCode::kInternal, "'{}' ended an answer without a reason",
                                 peer.door->name()));
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
    peer.full = true;
    balancer.SetOpen(request->place.peer, false);
    return WaitAgain(request, Prefixed(why, peer.door->name()));
  }
  // Cancelled by others than this router: the worker is stopping.
  if (why.code() != StatusCode::kUnavailable && why.code() != StatusCode::kCancelled)
    return Fail(request, why);
  LeaveOut(request->place.peer);  // others first
  GoOn(request, Prefixed(why, peer.door->name()));
}

// --- Workers.

void Router::Impl::LookAtPeers() {
  uint64_t room = 0;
  bool any = false;
  std::string why;
  for (int i = 0; i < static_cast<int>(peers.size()); ++i) {
    Peer& peer = peers[static_cast<size_t>(i)];
    DecodeHealth health = peer.door->health();
    uint64_t capacity = health.kv_tokens_max == 0 ? kUnknownRoom : health.kv_tokens_max;
    if (options.kv_tokens_max != 0) capacity = std::min(capacity, options.kv_tokens_max);
    room = std::max(room, capacity);
    balancer.SetCapacity(i, capacity);
    if (Look(i, std::move(health))) {
      any = true;
    } else {
      why += fmt::format("; '{}': {}", peer.door->name(),
                         Message(peer.health.ok() ? peer.admits : peer.health));
    }
    metrics.OnPeer(i, peer.serves(), balancer.requests(i), balancer.kv_tokens(i));
  }
  auto now = shared.Lock();
  now->room_tokens_max = room;
  now->ready =
      any ? OkStatus() : Error(StatusCode::kUnavailable, "no decode worker is healthy{}", why);
}

bool Router::Impl::Look(int index, DecodeHealth health) {
  Peer& peer = peers[static_cast<size_t>(index)];
  const bool served = peer.serves();
  peer.health = std::move(health.status);
  peer.admits = std::move(health.admits);
  if (served && !peer.serves()) {
    EMS_LOG(kWarn, "pdc", "decode worker is out name={} why=\"{}\"", peer.door->name(),
            ToString(peer.health.ok() ? peer.admits : peer.health));
  } else if (!served && peer.serves()) {
    EMS_LOG(kInfo, "pdc", "decode worker is back name={}", peer.door->name());
  }
  peer.full = false;
  if (peer.refuses && Clock::System().Now() - peer.refused_at >= options.heartbeat)
    peer.refuses = false;
  balancer.SetOpen(index, peer.usable());
  // One that is late may still bring what it has.
  if (!peer.health.ok() && peer.health.code() != StatusCode::kDeadlineExceeded) LeavePeer(index);
  return peer.serves();
}

void Router::Impl::LeavePeer(int index) {
  const Peer& peer = peers[static_cast<size_t>(index)];
  std::vector<RoutedRequest*> here;
  for (const auto& [sequence_number, request] : requests)
    if (request->place.attempt != 0 && request->place.peer == index) here.push_back(request.get());
  const Status why = Prefixed(peer.health, peer.door->name());
  for (RoutedRequest* request : here) {
    Abandon(request);
    GoOn(request, why);
  }
}

void Router::Impl::LeaveOut(int index) {
  Peer& peer = peers[static_cast<size_t>(index)];
  peer.refuses = true;
  peer.refused_at = Clock::System().Now();
  balancer.SetOpen(index, false);
}

// --- Places.

void Router::Impl::PlaceAll() {
  while (!waiting.empty() && PlaceOne(requests.at(*waiting.begin()).get())) {
  }
  const bool any =
      std::any_of(peers.begin(), peers.end(), [](const Peer& peer) { return peer.usable(); });
  if (any == nobody_since.has_value()) {
    nobody_since = any ? std::nullopt : std::optional(Clock::System().Now());
    auto now = shared.Lock();
    now->nobody_since = nobody_since;
  }
  if (!any) EndImpatient();
}

bool Router::Impl::PlaceOne(RoutedRequest* request) {
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
  Peer& peer = peers[static_cast<size_t>(*index)];
  const Status taken =
      peer.door->Submit(request->NextTask(attempt), std::make_shared<AttemptSink>(inbox, attempt));
  if (taken.ok()) {
    waiting.erase(request->sequence());
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
  request->place.last_failure = ToString(Prefixed(taken, peer.door->name()));
  if (taken.code() != StatusCode::kResourceExhausted) {
    LeaveOut(*index);
  } else {
    peer.full = true;
    balancer.SetOpen(*index, false);
  }
  return true;
}

void Router::Impl::EndImpatient() {
  const TimePoint before = Clock::System().Now() - options.failover_patience;
  std::vector<RoutedRequest*> ending;
  for (const uint64_t number : waiting) {
    RoutedRequest* request = requests.at(number).get();
    if (std::max(*nobody_since, request->place.waiting_since) <= before) ending.push_back(request);
  }
  for (RoutedRequest* request : ending) {
    const std::string last = request->place.last_failure;
    Fail(request, Error(StatusCode::kUnavailable, "no decode worker is there to serve it{}{}",
                        last.empty() ? "" : "; the last one said: ", last));
  }
}

void Router::Impl::EndOverdue(TimePoint now) {
  while (!deadlines.empty() && deadlines.begin()->first <= now) {
    RoutedRequest* request = requests.at(deadlines.begin()->second).get();
    Fail(request, Error(StatusCode::kDeadlineExceeded,
                        "the request's deadline passed after {} tokens of its answer",
                        request->answer_tokens()));
  }
}

// --- Where a request goes.

void Router::Impl::Wait(RoutedRequest* request) {
  waiting.insert(request->sequence());
  request->place.waiting_since = Clock::System().Now();
}

void Router::Impl::Detach(RoutedRequest* request) {
  balancer.Remove(request->place.attempt);
  attempts.erase(request->place.attempt);
  request->place.attempt = 0;
  Peer& peer = peers[static_cast<size_t>(request->place.peer)];
  if (!std::exchange(peer.full, false)) return;
  balancer.SetOpen(request->place.peer, peer.usable());
}

void Router::Impl::Abandon(RoutedRequest* request) {
  const uint64_t attempt = request->place.attempt;
  Detach(request);
  peers[static_cast<size_t>(request->place.peer)].door->Cancel(attempt);
}

void Router::Impl::GoOn(RoutedRequest* request, const Status& why) {
  if (const auto reason = request->complete()) return Finish(request, *reason);
  if (request->fruitless_attempts() >= options.attempts_max) {
    return Fail(request, Error(StatusCode::kUnavailable,
                               "given up after {} attempts without a token; the last one: {}",
                               request->fruitless_attempts(), Message(why)));
  }
  EMS_LOG(kDebug, "pdc", "request goes on elsewhere answer_tokens={} why=\"{}\"",
          request->answer_tokens(), ToString(why));
  WaitAgain(request, why);
}

void Router::Impl::WaitAgain(RoutedRequest* request, const Status& why) {
  request->place.last_failure = ToString(why);
  metrics.OnFailover(request->prompt_tokens() + request->answer_tokens());
  Wait(request);
}

std::unique_ptr<RoutedRequest> Router::Impl::Remove(RoutedRequest* request, StatusCode code) {
  const uint64_t number = request->sequence();
  if (request->place.attempt != 0) Abandon(request);
  const bool waited = waiting.erase(number) > 0;
  deadlines.erase({request->deadline().at(), number});
  metrics.OnEnded(waited, code);
  return std::move(requests.extract(number).mapped());
}

void Router::Impl::Finish(RoutedRequest* request, api::FinishReason reason) {
  Remove(request, StatusCode::kOk)->sink().OnFinish(reason);
}

void Router::Impl::Fail(RoutedRequest* request, const Status& why) {
  Remove(request, why.code())->sink().OnError(why);
}

// --- The door.

Result<DecodeTask> Router::Impl::TaskOf(api::GenerateRequest request) const {
  const api::ModelInfo& model = models.front();
  if (request.model != model.name) {
    return Error(StatusCode::kInvalidArgument, "model '{}' is not served here, '{}' is",
                 request.model, model.name);
  }
  if (!request.text.empty() && !request.tokens.empty())
    return Error(StatusCode::kInvalidArgument, "a prompt is a text or tokens, not both");
  DecodeTask task{
      .prompt = request.tokens.empty() ? PromptTokens(request.text) : std::move(request.tokens),
      .stop_at_end = !request.ignore_eos,
      .cache_salt = std::move(request.cache_salt),
      .deadline = request.deadline};
  for (const TokenId token : task.prompt) {
    if (token >= model.vocabulary) {
      return Error(StatusCode::kInvalidArgument, "token {} is not below the vocabulary's {}", token,
                   model.vocabulary);
    }
  }
  const uint64_t context = model.context_tokens_max;
  if (request.tokens_max == 0 || task.prompt.size() >= context ||
      request.tokens_max > context - task.prompt.size()) {
    return Error(StatusCode::kInvalidArgument,
                 "a prompt of {} tokens and {} (at least 1) more; the context has {}",
                 task.prompt.size(), request.tokens_max, context);
  }
  task.tokens_max = static_cast<uint32_t>(request.tokens_max);
  task.sampler = {.temperature = static_cast<float>(request.sampling.temperature),
                  .top_p = static_cast<float>(request.sampling.top_p),
                  .seed = request.sampling.seed.value_or(0)};
  EMS_RETURN_IF_ERROR(Sampler::Check(task.sampler));
  return task;
}

Router::Router(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Router>> Router::Create(const RouterOptions& options, api::ModelInfo model,
                                               std::vector<std::shared_ptr<DecodePeer>> peers,
                                               MetricsRegistry* registry) {
  EMS_RETURN_IF_ERROR(CheckOptions(options, model, peers));
  auto impl = std::make_unique<Impl>(options, std::move(model), std::move(peers), registry);
  impl->LookAtPeers();  // so that Ready() knows
  impl->PlaceAll();
  impl->thread = Thread("ems-router", [raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<Router>(new Router(std::move(impl)));
}

Router::~Router() { Stop(); }

void Router::Stop() {
  impl_->inbox->Close();
  impl_->thread.Join();
}

const std::vector<api::ModelInfo>& Router::models() const { return impl_->models; }

uint64_t Router::CountTokens(const api::ModelInfo& /*model*/, std::string_view text) const {
  return PromptTokens(text).size();
}

Status Router::Ready() const {
  auto shared = impl_->shared.Lock();
  return shared->ready;
}

Result<std::shared_ptr<api::Generation>> Router::Start(api::GenerateRequest request,
                                                       std::shared_ptr<api::GenerationSink> sink) {
  const bool seeded = request.sampling.seed.has_value();
  auto refuse = [this](const Status& why) {
    impl_->metrics.OnRefused(why.code());
    return why;
  };
  Result<DecodeTask> task = impl_->TaskOf(std::move(request));
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
  return std::shared_ptr<api::Generation>(std::make_shared<Ticket>(impl_->inbox, number));
}

RouterStats Router::stats() const { return impl_->metrics.stats(); }

}  // namespace ems::pdc
