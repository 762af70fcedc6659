#include "mp_server/shm_service.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <string>

#include "common/check.h"
#include "common/guarded.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "fabric/fd_message.h"
#include "mp_server/access_tokens.h"
#include "mp_server/namespace_store.h"
#include "mp_server/registered_memory.h"
#include "mp_server/segment_pool.h"

namespace ems::server {
namespace {

using fabric::Fd;
using shm::SessionMessage;
using shm::SessionOp;
using wire::WireStatus;

constexpr int kTickMs = 100;
// While clients use objects: an LRU order that lags behind what is evicted loses hits.
constexpr int kTouchTickMs = 10;
constexpr Duration kStayBusy = std::chrono::milliseconds(300);
// Of one namespace at each visit. In a storm of reads a sample tells hot from cold, and costs
// little.
constexpr size_t kTouchesTaken = 256;
constexpr size_t kTouchesSampled = 128;
constexpr int kMessagesAtOnce = 16;  // of one session, before the others have their turn
constexpr uint64_t kWakeTag = 0;

template <typename T>
void AddOnce(T one, std::vector<T>* all) {
  if (std::ranges::count(*all, one) == 0) all->push_back(one);
}

uint64_t RandomWord() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

Fd OpenPid(int64_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

// A segment that a client was given and has not said it dropped.
struct GivenSegment {
  uint32_t id = 0;
  uint64_t bytes = 0;
  TimePoint gone_at{};  // when it was seen that the segment is gone; zero: it is not
  bool told = false;    // that it is gone
  bool operator==(const GivenSegment& other) const { return id == other.id; }
};

struct ShmSession {
  uint64_t id = 0;
  uint64_t secret = 0;
  Fd socket;
  Fd process;  // pidfd; invalid where the peer's process cannot be seen
  std::shared_ptr<NamespaceStore> store;
  HazardBoard::Page page;
  fabric::MessageReceiver receiver;
  int64_t pid = 0;  // as its credentials say
  std::vector<GivenSegment> segments;
  std::vector<uint64_t> tables;  // given to the client and not called back
  bool warned = false;           // of what it keeps
  uint64_t pin_bytes_max = 0;    // as its Welcome said
  // A message that did not fit; until it does nothing is read.
  struct Unsent {
    SessionMessage message;
    Fd fd;
  };
  std::optional<Unsent> unsent;
  // Told to go, but its views live until it does.
  bool leaving = false;
};

}  // namespace

struct ShmService::Impl {
  struct Incoming {
    Fd socket;
    NamespaceRef ns;
    std::string token;
  };
  struct Memory {
    uint64_t secret = 0;
    std::shared_ptr<const RegisteredMemory> memory;
  };

  Impl(const Options& wanted, const ShmMetrics& counters) : options(wanted), metrics(counters) {}
  ~Impl();

  Status Open();
  void Run();
  void Wake() const;
  void AdoptIncoming();
  void Welcome(Incoming incoming);
  Status CheckPeer(const fabric::PeerCredentials& peer) const;
  Status CheckToken(std::string_view name_space, std::string_view token) const;
  Status Begin(ShmSession* session, const Incoming& arrived, SessionMessage* welcome);
  void OnReadable(uint64_t id);
  bool Answer(ShmSession* session, const SessionMessage& request, std::vector<Fd>* fds);
  bool Send(ShmSession* session, const SessionMessage& message, Fd fd);
  bool SendUnsent(ShmSession* session);
  void Dismiss(ShmSession* session, std::string_view why);
  WireStatus Register(ShmSession* session, const SessionMessage& request, std::vector<Fd>* fds,
                      std::string* why);
  void End(uint64_t id, std::string_view why);
  void Tick();
  void ListStores();
  bool CallBack(ShmSession* session);
  void Revoke(ShmSession* session);
  void CountKept(TimePoint now);

  const Options options;
  const ShmMetrics metrics;
  Fd poll;
  Fd wake;
  std::atomic<bool> stopping{false};
  Guarded<std::vector<Incoming>> incoming;
  // The thread's own.
  std::map<uint64_t, std::unique_ptr<ShmSession>> sessions;
  std::vector<NamespaceStore*> stores;  // of the sessions, each once
  uint64_t next_id = 1;
  uint64_t registered_bytes = 0;
  Guarded<std::map<uint64_t, Memory>> memories;  // by session
  Thread thread;
};

ShmService::Impl::~Impl() {
  stopping.store(true, std::memory_order_release);
  if (wake.valid()) Wake();
  thread.Join();
  while (!sessions.empty()) End(sessions.begin()->first, "the server is stopping");
}

void ShmService::Impl::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake.get(), &one, sizeof(one));
}

Status ShmService::Impl::Open() {
  poll = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (!poll.valid() || !wake.valid() ||
      epoll_ctl(poll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0)
    return Error(StatusCode::kResourceExhausted, "no descriptors: {}", fabric::ErrnoText(errno));
  thread = Thread("ems-shm", [this] { Run(); });
  return OkStatus();
}

void ShmService::Impl::Run() {
  TimePoint next_tick = Clock::System().Now();
  TimePoint next_touches = next_tick;
  TimePoint busy_until = next_tick;
  while (!stopping.load(std::memory_order_acquire)) {
    std::array<epoll_event, 64> events;
    const int ready = epoll_wait(
        poll.get(), events.data(), static_cast<int>(events.size()),
        sessions.empty() ? -1 : (Clock::System().Now() < busy_until ? kTouchTickMs : kTickMs));
    for (int i = 0; i < ready; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag == kWakeTag) {
        uint64_t drained = 0;
        (void)!read(wake.get(), &drained, sizeof(drained));
      } else if ((tag & 1) != 0) {
        End(tag >> 1, "its process ended");
      } else if ((events[static_cast<size_t>(i)].events & (EPOLLHUP | EPOLLERR)) != 0) {
        End(tag >> 1, "it hung up");
      } else {
        OnReadable(tag >> 1);
      }
    }
    AdoptIncoming();
    const TimePoint now = Clock::System().Now();
    if (now >= next_tick) {
      next_tick = now + std::chrono::milliseconds(kTickMs);
      Tick();
    }
    if (now < next_touches) continue;
    next_touches = now + std::chrono::milliseconds(kTouchTickMs);
    for (NamespaceStore* store : stores) {
      if (store->TakeTouches(kTouchesTaken, kTouchesSampled)) busy_until = now + kStayBusy;
    }
    for (const auto& [id, session] : sessions) {
      if (!session->unsent) continue;
      busy_until = now + kStayBusy;
      if (!SendUnsent(session.get())) Dismiss(session.get(), "it cannot be reached");
    }
  }
}

void ShmService::Impl::AdoptIncoming() {
  std::vector<Incoming> taken;
  {
    auto waiting = incoming.Lock();
    taken.swap(*waiting);
  }
  for (Incoming& one : taken) Welcome(std::move(one));
}

namespace {

WireStatus StatusOf(const Status& why) {
  switch (why.code()) {
    case StatusCode::kFailedPrecondition:
      return WireStatus::kStaleNamespace;
    case StatusCode::kResourceExhausted:
      return WireStatus::kRetryLater;
    case StatusCode::kPermissionDenied:
    case StatusCode::kInvalidArgument:
      return WireStatus::kInvalid;
    default:
      return WireStatus::kInternal;
  }
}

void SetText(std::string_view text, SessionMessage* message) {
  const size_t length = std::min(text.size(), message->text.size() - 1);
  std::copy_n(text.begin(), length, message->text.begin());
  message->text[length] = '\0';
}

constexpr uint32_t kAllEvents = EPOLLIN | EPOLLRDHUP;

// EPOLLHUP and EPOLLERR come in any case.
void SetEvents(int poll, int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  (void)epoll_ctl(poll, EPOLL_CTL_MOD, fd, &event);
}

Status Watch(int poll, int fd, uint64_t tag) {
  epoll_event event{};
  event.events = kAllEvents;
  event.data.u64 = tag;
  if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0) return OkStatus();
  return Error(StatusCode::kResourceExhausted, "epoll: {}", fabric::ErrnoText(errno));
}

}  // namespace

Status ShmService::Impl::CheckPeer(const fabric::PeerCredentials& peer) const {
  if (sessions.size() >= options.sessions_max) {
    return Error(StatusCode::kResourceExhausted, "{} sessions are open: see shm.sessions_max",
                 sessions.size());
  }
  if (options.uids.empty() || std::ranges::count(options.uids, peer.uid) > 0) return OkStatus();
  return Error(StatusCode::kPermissionDenied, "user {} may not attach: see shm.uids", peer.uid);
}

// Read each time: sessions are few, and a new token counts at once.
Status ShmService::Impl::CheckToken(std::string_view name_space, std::string_view token) const {
  if (options.token_file.empty()) return OkStatus();
  const auto tokens = AccessTokens::Read(options.token_file);
  if (tokens.ok()) return tokens->Check(name_space, token);
  EMS_LOG(kError, "mp_server", "nobody can attach: {}", Message(tokens.status()));
  return Error(StatusCode::kPermissionDenied, "the server cannot read its shm.token_file");
}

Status ShmService::Impl::Begin(ShmSession* session, const Incoming& arrived,
                               SessionMessage* welcome) {
  EMS_ASSIGN_OR_RETURN(const fabric::PeerCredentials peer,
                       fabric::CredentialsOf(session->socket.get()));
  EMS_RETURN_IF_ERROR(CheckPeer(peer));
  EMS_RETURN_IF_ERROR(CheckToken(options.store->NameOf(arrived.ns), arrived.token));
  EMS_ASSIGN_OR_RETURN(session->store, options.store->Share(arrived.ns));
  EMS_ASSIGN_OR_RETURN(fabric::ShmSegment page,
                       fabric::ShmSegment::CreatePages(shm::kSessionBytes, true));
  new (page.bytes().data()) shm::SessionPage;
  EMS_ASSIGN_OR_RETURN(const SharedIndex::Opened control,
                       session->store->sharing().index()->OpenControl());
  session->page = std::make_shared<const fabric::ShmSegment>(std::move(page));
  session->process = OpenPid(peer.pid);
  session->pid = peer.pid;
  session->secret = RandomWord();
  welcome->id = session->id;
  welcome->secret = session->secret;
  session->pin_bytes_max = session->store->pin_bytes_max();
  welcome->bytes = session->pin_bytes_max;
  EMS_RETURN_IF_ERROR(Watch(poll.get(), session->socket.get(), session->id << 1));
  // Before the client can name anything.
  session->store->sharing().AddSession(session->id, session->page);
  const std::array<int, 2> fds{control.fd.get(), session->page->fd()};
  return fabric::SendMessageTo(session->socket.get(), wire::RawBytes(*welcome), fds);
}

void ShmService::Impl::Welcome(Incoming arrived) {
  auto session = std::make_unique<ShmSession>();
  session->id = next_id++;
  session->socket = std::move(arrived.socket);
  SessionMessage welcome;
  if (const Status begun = Begin(session.get(), arrived, &welcome); !begun.ok()) {
    metrics.refused.Add();
    if (session->store != nullptr) session->store->sharing().RemoveSession(session->id);
    welcome = SessionMessage();
    welcome.status = static_cast<uint32_t>(StatusOf(begun));
    SetText(Message(begun), &welcome);
    (void)fabric::SendMessageTo(session->socket.get(), wire::RawBytes(welcome), {});
    return;
  }
  metrics.attached.Add();
  metrics.sessions.Add(1);
  if (session->process.valid())
    (void)Watch(poll.get(), session->process.get(), session->id << 1 | 1);
  sessions.emplace(session->id, std::move(session));
  ListStores();
  if (options.on_session) options.on_session();
}

void ShmService::Impl::OnReadable(uint64_t id) {
  const auto found = sessions.find(id);
  if (found == sessions.end()) return;
  ShmSession* const session = found->second.get();
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    SessionMessage request;
    std::vector<Fd> fds;
    const auto outcome = session->receiver.Receive(
        session->socket.get(), std::as_writable_bytes(std::span(&request, 1)), &fds);
    if (outcome == fabric::MessageReceiver::Outcome::kNotYet) return;
    if (outcome == fabric::MessageReceiver::Outcome::kEnded) return End(id, "it hung up");
    if (session->leaving) continue;
    if (!Answer(session, request, &fds)) return Dismiss(session, "it broke the protocol");
    if (session->unsent) return;
  }
}

// False: the session is to end.
bool ShmService::Impl::Answer(ShmSession* session, const SessionMessage& request,
                              std::vector<Fd>* fds) {
  SessionMessage answer;
  answer.op = request.op;
  answer.id = request.id;
  WireStatus status = WireStatus::kMiss;
  Fd given;
  std::string why;
  SharedIndex& index = *session->store->sharing().index();
  if (request.op == SessionOp::kSegment) {
    if (auto opened = session->store->OpenSegment(static_cast<uint32_t>(request.id));
        opened.ok() && request.id <= UINT32_MAX) {
      given = std::move(opened->fd);
      answer.bytes = opened->bytes;
      AddOnce({.id = static_cast<uint32_t>(request.id), .bytes = opened->bytes},
              &session->segments);
    }
  } else if (request.op == SessionOp::kTable) {
    if (auto opened = index.OpenTable(request.id); opened.ok()) {
      given = std::move(opened->fd);
      answer.bytes = opened->bytes;
      AddOnce(request.id, &session->tables);
    }
  } else if (request.op == SessionOp::kSegmentDropped) {
    std::erase_if(session->segments, [&](const GivenSegment& segment) {
      return segment.id == request.id && segment.told;
    });
    return true;
  } else if (request.op == SessionOp::kRegister) {
    status = Register(session, request, fds, &why);
    if (status != WireStatus::kOk) {
      metrics.registrations_refused.Add();
      EMS_LOG(kWarn, "mp_server", "memory for Puts refused session={} bytes={} reason=\"{}\"",
              session->id, request.bytes, why);
    }
  } else {
    return false;
  }
  if (given.valid()) status = WireStatus::kOk;
  answer.status = static_cast<uint32_t>(status);
  SetText(why, &answer);
  return Send(session, answer, std::move(given));
}

// False: the peer is gone, or out of its mind.
bool ShmService::Impl::Send(ShmSession* session, const SessionMessage& message, Fd given) {
  const int fd = given.get();
  const Status sent = fabric::SendMessageTo(session->socket.get(), wire::RawBytes(message),
                                            std::span(&fd, given.valid() ? 1 : 0));
  if (sent.code() != StatusCode::kResourceExhausted) return sent.ok();
  // It reads slowly: nothing more is taken from it until this has gone out.
  session->unsent = ShmSession::Unsent{message, std::move(given)};
  SetEvents(poll.get(), session->socket.get(), session->id << 1, 0);
  return true;
}

bool ShmService::Impl::SendUnsent(ShmSession* session) {
  ShmSession::Unsent unsent = *std::exchange(session->unsent, std::nullopt);
  SetEvents(poll.get(), session->socket.get(), session->id << 1, kAllEvents);
  return Send(session, unsent.message, std::move(unsent.fd));
}

// Tells the client to go. Its views stay valid: only its end takes its hazards off the board.
void ShmService::Impl::Dismiss(ShmSession* session, std::string_view why) {
  if (std::exchange(session->leaving, true)) return;
  metrics.dismissed.Add();
  EMS_LOG(kInfo, "mp_server", "session dismissed id={} reason=\"{}\"", session->id, why);
  session->unsent.reset();
  SetEvents(poll.get(), session->socket.get(), session->id << 1, kAllEvents);
  (void)shutdown(session->socket.get(), SHUT_WR);
}

WireStatus ShmService::Impl::Register(ShmSession* session, const SessionMessage& request,
                                      std::vector<Fd>* fds, std::string* why) {
  if (fds->size() != 1) {
    *why = "one descriptor is needed";
    return WireStatus::kInvalid;
  }
  if (request.bytes > options.registered_bytes_max - registered_bytes) {
    *why = "clients have registered all they may: see shm.registered_bytes_max";
    return WireStatus::kRetryLater;
  }
  auto mapped = RegisteredMemory::Map(fds->front(), request.bytes);
  if (!mapped.ok()) {
    *why = std::string(Message(mapped.status()));
    return StatusOf(mapped.status());
  }
  auto all = memories.Lock();
  if (!all->emplace(session->id, Memory{session->secret, *std::move(mapped)}).second) {
    *why = "this session has registered its memory already";
    return WireStatus::kInvalid;
  }
  registered_bytes += request.bytes;
  metrics.registered_bytes.Set(static_cast<double>(registered_bytes));
  return WireStatus::kOk;
}

// Its hazards no longer count: what it alone held back is freed now.
void ShmService::Impl::End(uint64_t id, std::string_view why) {
  const auto found = sessions.find(id);
  if (found == sessions.end()) return;
  const std::unique_ptr<ShmSession> session = std::move(found->second);
  sessions.erase(found);
  EMS_LOG(kDebug, "mp_server", "session {} ended: {}", id, why);
  ListStores();
  session->store->TakeTouches();
  session->store->sharing().RemoveSession(id);
  session->store->FreeParked();
  CountKept(Clock::System().Now());
  std::shared_ptr<const RegisteredMemory> memory;  // unmapped outside the lock
  auto all = memories.Lock();
  if (const auto registered = all->find(id); registered != all->end()) {
    memory = std::move(registered->second.memory);
    registered_bytes -= memory->size_bytes();
    all->erase(registered);
  }
  all.Unlock();
  metrics.registered_bytes.Set(static_cast<double>(registered_bytes));
  metrics.sessions.Add(-1);
}

void ShmService::Impl::ListStores() {
  stores.clear();
  for (const auto& [id, session] : sessions) AddOnce(session->store.get(), &stores);
}

void ShmService::Impl::Tick() {
  const TimePoint now = Clock::System().Now();
  std::vector<uint64_t> revoked;
  std::map<const NamespaceStore*, std::vector<uint32_t>> live_of;  // sorted
  for (const auto& [id, session] : sessions) {
    const auto [live, is_new] = live_of.try_emplace(session->store.get());
    if (is_new) {
      live->second = session->store->SegmentIds();
      std::ranges::sort(live->second);
    }
    for (GivenSegment& segment : session->segments) {
      if (segment.gone_at == TimePoint() && !std::ranges::binary_search(live->second, segment.id))
        segment.gone_at = now;
    }
    if (session->store->closed()) Dismiss(session.get(), "its namespace is gone");
    if (!session->leaving && !CallBack(session.get()))
      Dismiss(session.get(), "it cannot be reached");
    if (session->store->sharing().parked_bytes() <= session->pin_bytes_max) continue;
    const auto above = session->store->sharing().SessionsAbove(session->pin_bytes_max);
    if (std::ranges::count(above, id) > 0) revoked.push_back(id);
  }
  CountKept(now);
  for (const uint64_t id : revoked) {
    metrics.revoked.Add();
    EMS_LOG(kWarn, "mp_server", "a client holds more views than it may: session ended id={}", id);
    Revoke(sessions.at(id).get());
  }
}

// Its hazards no longer count. What it has mapped does, until it hangs up.
void ShmService::Impl::Revoke(ShmSession* session) {
  session->store->sharing().RemoveSession(session->id);
  session->store->FreeParked();
  Dismiss(session, "it pins too much");
}

// Tells the client about what it was given and is not used any more; what does not fit waits for
// the next visit. False: it is gone.
bool ShmService::Impl::CallBack(ShmSession* session) {
  SharedIndex& index = *session->store->sharing().index();
  const auto tell = [&](SessionOp op, uint64_t id) {
    SessionMessage notice;
    notice.op = op;
    notice.id = id;
    return Send(session, notice, {});
  };
  bool reached = true;
  for (GivenSegment& segment : session->segments) {
    if (session->unsent || !reached) break;
    if (segment.told || segment.gone_at == TimePoint()) continue;
    reached = tell(SessionOp::kSegmentGone, segment.id);
    segment.told = true;
  }
  std::erase_if(session->tables, [&](uint64_t id) {
    if (session->unsent || !reached || index.HasTable(id)) return false;
    reached = tell(SessionOp::kTableGone, id);
    return true;
  });
  return reached;
}

// What clients keep mapped, though it is gone for a while: stopped ones, above all. The pool may
// not grow by it.
void ShmService::Impl::CountKept(TimePoint now) {
  std::map<uint32_t, uint64_t> kept;  // once each, however many clients keep it
  for (const auto& [id, session] : sessions) {
    for (const GivenSegment& segment : session->segments) {
      if (segment.gone_at == TimePoint() || now - segment.gone_at < options.drop_patience) continue;
      kept.emplace(segment.id, segment.bytes);
      if (std::exchange(session->warned, true)) continue;
      EMS_LOG(kWarn, "mp_server",
              "a client keeps memory that was called back: the pool is smaller by it until it goes "
              "on or ends pid={} session={}",
              session->pid, id);
    }
  }
  uint64_t bytes = 0;
  for (const auto& [id, size] : kept) bytes += size;
  options.pool->SetKeptByClients(bytes);
}

ShmService::ShmService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShmService::~ShmService() = default;

Result<std::unique_ptr<ShmService>> ShmService::Start(const Options& options,
                                                      const ShmMetrics& metrics) {
  EMS_CHECK(options.store != nullptr && options.pool != nullptr);
  if (!options.token_file.empty())
    EMS_RETURN_IF_ERROR(AccessTokens::Read(options.token_file).status());
  EMS_RETURN_IF_ERROR(fabric::ShmSegment::CheckSealing());
  auto impl = std::make_unique<Impl>(options, metrics);
  EMS_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<ShmService>(new ShmService(std::move(impl)));
}

void ShmService::Adopt(Fd socket, NamespaceRef ns, std::string token) {
  {
    auto waiting = impl_->incoming.Lock();
    if (waiting->size() >= impl_->options.sessions_max) return;  // hung up: the client tries again
    waiting->push_back({std::move(socket), ns, std::move(token)});
  }
  impl_->Wake();
}

Result<fabric::StagedBytes> ShmService::Staged(const wire::StagedValue& value) {
  std::shared_ptr<const RegisteredMemory> memory;
  {
    auto all = impl_->memories.Lock();
    const auto found = all->find(value.session);
    if (found == all->end() || found->second.secret != value.secret)
      return Error(StatusCode::kInvalidArgument, "no such session, or it has registered no memory");
    memory = found->second.memory;
  }
  fabric::StagedBytes staged;
  EMS_ASSIGN_OR_RETURN(staged.bytes, memory->Part(value.offset, value.bytes));
  if (value.progress_at != wire::kAllThere) {
    using Word = std::atomic<uint64_t>;
    if (value.progress_at % sizeof(Word) != 0)
      return Error(StatusCode::kInvalidArgument, "a word at {}", value.progress_at);
    EMS_ASSIGN_OR_RETURN(const ConstBytes word, memory->Part(value.progress_at, sizeof(Word)));
    staged.progress = reinterpret_cast<const Word*>(word.data());
  }
  staged.keep = std::move(memory);
  return staged;
}

}  // namespace ems::server
