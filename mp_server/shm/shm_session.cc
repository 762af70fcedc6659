#include "mp_server/shm/shm_session.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "common/random_id.h"
#include "proto/data_plane.h"

namespace ems::server {
namespace {

using fabric::Fd;
using shm::SessionMessage;
using shm::SessionOp;
using wire::WireStatus;

constexpr int kMessagesAtOnce = 16;  // before the other sessions have their turn
constexpr uint32_t kAllEvents = EPOLLIN | EPOLLRDHUP;

Fd OpenPid(int64_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

WireStatus StatusOf(const Status& why) {
  switch (why.code()) {
    case StatusCode::kOk:
      return WireStatus::kOk;
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

void SetStatus(const Status& status, SessionMessage* message) {
  message->status = static_cast<uint32_t>(StatusOf(status));
  const std::string_view text = Message(status);
  const size_t length = std::min(text.size(), message->text.size() - 1);
  std::copy_n(text.begin(), length, message->text.begin());
  message->text[length] = '\0';
}

Status Watch(const Fd& poll, const Fd& fd, uint64_t tag) {
  epoll_event event{};
  event.events = kAllEvents;
  event.data.u64 = tag;
  if (epoll_ctl(poll.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0) return OkStatus();
  return Error(StatusCode::kResourceExhausted, "epoll: {}", fabric::ErrnoText(errno));
}

}  // namespace

ShmSession::~ShmSession() {
  if (store_ == nullptr) return;
  CountReads();
  store_->objects().TakeTouches();
  (void)TakeSamples(&store_->objects());
  store_->sharing().RemoveSession(id_);
  store_->objects().FreeRetired();
  memories_.Drop(id_);
}

Status ShmSession::Begin(std::shared_ptr<NamespaceStore> store, int64_t pid) {
  EMS_CHECK(store_ == nullptr && store->sharing().index() != nullptr, "session {} begins", id_);
  store_ = std::move(store);
  left_seen_ = store_->segments_left();
  EMS_ASSIGN_OR_RETURN(fabric::ShmSegment page,
                       fabric::ShmSegment::CreatePages(shm::kSessionBytes, true));
  new (page.bytes().data()) shm::SessionPage;
  EMS_ASSIGN_OR_RETURN(const SharedIndex::Opened control, store_->sharing().index()->OpenControl());
  page_ = std::make_shared<const fabric::ShmSegment>(std::move(page));
  if (metrics_.lookups != nullptr) lookups_ = &metrics_.lookups->For(store_->name());
  pid_ = pid;
  secret_ = RandomId();
  pin_bytes_max_ = store_->pin_bytes_max();
  SessionMessage welcome;
  welcome.id = id_;
  welcome.secret = secret_;
  welcome.bytes = pin_bytes_max_;
  EMS_RETURN_IF_ERROR(Watch(poll_, socket_, SocketTag(id_)));
  // Before the client can name anything.
  store_->sharing().AddSession(id_, page_);
  (void)TakeSamples(&store_->objects());
  const std::array<int, 2> fds{control.fd.get(), page_->fd()};
  EMS_RETURN_IF_ERROR(fabric::SendMessageTo(socket_.get(), wire::RawBytes(welcome), fds));
  process_ = OpenPid(pid);
  if (process_.valid()) (void)Watch(poll_, process_, ProcessTag(id_));
  return OkStatus();
}

void ShmSession::Refuse(const Status& why) {
  SessionMessage welcome;
  SetStatus(why, &welcome);
  (void)fabric::SendMessageTo(socket_.get(), wire::RawBytes(welcome), {});
}

// EPOLLHUP and EPOLLERR come in any case.
void ShmSession::SetEvents(uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = SocketTag(id_);
  (void)epoll_ctl(poll_.get(), EPOLL_CTL_MOD, socket_.get(), &event);
}

bool ShmSession::OnReadable() {
  for (int i = 0; i < kMessagesAtOnce && !unsent_; ++i) {
    SessionMessage request;
    std::vector<Fd> fds;
    const auto outcome =
        receiver_.Receive(socket_.get(), std::as_writable_bytes(std::span(&request, 1)), &fds);
    if (outcome == fabric::MessageReceiver::Outcome::kNotYet) return true;
    if (outcome == fabric::MessageReceiver::Outcome::kEnded) return false;
    if (!leaving_ && !Answer(request, &fds)) Dismiss("it broke the protocol");
  }
  return true;
}

bool ShmSession::Answer(const SessionMessage& request, std::vector<Fd>* fds) {
  SessionMessage answer;
  answer.op = request.op;
  answer.id = request.id;
  SharedFd given;
  if (request.op == SessionOp::kSegment || request.op == SessionOp::kTable) {
    auto opened = Open(request);
    answer.status = static_cast<uint32_t>(opened.ok() ? WireStatus::kOk : WireStatus::kMiss);
    if (opened.ok()) {
      answer.bytes = opened->bytes;
      given = std::move(opened->fd);
    }
  } else if (request.op == SessionOp::kSegmentDropped) {
    std::erase_if(gone_, [&](const GoneSegment& segment) {
      return segment.id == request.id && segment.told;
    });
    return true;
  } else if (request.op == SessionOp::kRegister) {
    SetStatus(Register(request, *fds), &answer);
    answer.bytes = request.bytes;
  } else {
    return false;
  }
  return Send(answer, std::move(given));
}

// A segment or a table of the index. The client has it from now on.
Result<SlabPool::Opened> ShmSession::Open(const SessionMessage& request) {
  if (request.op == SessionOp::kTable) {
    EMS_ASSIGN_OR_RETURN(SharedIndex::Opened table,
                         store_->sharing().index()->OpenTable(request.id));
    if (std::ranges::count(tables_, request.id) == 0) tables_.push_back(request.id);
    return SlabPool::Opened{std::make_shared<const Fd>(std::move(table.fd)), table.bytes};
  }
  if (request.id > UINT32_MAX) return Error(StatusCode::kNotFound, "no such segment");
  const auto id = static_cast<uint32_t>(request.id);
  EMS_ASSIGN_OR_RETURN(SlabPool::Opened segment, store_->OpenSegment(id));
  segments_.emplace(id, segment.bytes);
  return segment;
}

Status ShmSession::Register(const SessionMessage& request, const std::vector<Fd>& fds) {
  const Status registered = memories_.Register(id_, secret_, fds, request.bytes);
  if (registered.ok()) return registered;
  metrics_.registrations_refused.Add();
  EMS_LOG(kWarn, "mp_server", "memory for Puts refused session={} bytes={} reason=\"{}\"", id_,
          request.bytes, Message(registered));
  return registered;
}

bool ShmSession::Send(const SessionMessage& message, SharedFd given) {
  EMS_CHECK(!unsent_, "session {} has a message in hand", id_);
  const int fd = given == nullptr ? -1 : given->get();
  const Status sent = fabric::SendMessageTo(socket_.get(), wire::RawBytes(message),
                                            std::span(&fd, given == nullptr ? 0 : 1));
  if (sent.code() != StatusCode::kResourceExhausted) return sent.ok();
  // It reads slowly: nothing more is taken from it until this has gone out.
  unsent_ = Unsent{message, std::move(given)};
  SetEvents(0);
  return true;
}

void ShmSession::SendUnsent() {
  if (!unsent_) return;
  Unsent unsent = *std::exchange(unsent_, std::nullopt);
  SetEvents(kAllEvents);
  if (!Send(unsent.message, std::move(unsent.fd))) Dismiss("it cannot be reached");
}

// Tells the client to go. Its views stay valid: only its end takes its hazards off the board.
void ShmSession::Dismiss(std::string_view why) {
  if (std::exchange(leaving_, true)) return;
  metrics_.dismissed.Add();
  EMS_LOG(kInfo, "mp_server", "session dismissed id={} reason=\"{}\"", id_, why);
  unsent_.reset();
  SetEvents(kAllEvents);
  (void)shutdown(socket_.get(), SHUT_WR);
}

bool ShmSession::Notify(SessionOp op, uint64_t id) {
  SessionMessage notice;
  notice.op = op;
  notice.id = id;
  return Send(notice, {});
}

void ShmSession::NoteGone(TimePoint now) {
  if (store_->segments_left() == left_seen_) return;
  std::vector<uint32_t> left;
  if (!store_->SegmentsLeftSince(&left_seen_, &left)) {  // it has not looked for very long
    for (const auto& [id, bytes] : segments_) {
      if (!store_->OpenSegment(id).ok()) left.push_back(id);
    }
  }
  for (const uint32_t id : left) {
    const auto given = segments_.find(id);
    if (given == segments_.end()) continue;
    gone_.push_back({.id = id, .bytes = given->second, .gone_at = now});
    segments_.erase(given);
  }
}

void ShmSession::CallBack(TimePoint now) {
  NoteGone(now);
  if (store_->closed()) Dismiss("its namespace is gone");
  if (leaving_) return;
  bool reached = true;
  for (GoneSegment& segment : gone_) {
    if (unsent_ || !reached) break;
    if (segment.told) continue;
    reached = Notify(SessionOp::kSegmentGone, segment.id);
    segment.told = true;
  }
  std::erase_if(tables_, [&](uint64_t id) {
    if (unsent_ || !reached || store_->sharing().index()->HasTable(id)) return false;
    reached = Notify(SessionOp::kTableGone, id);
    return true;
  });
  if (!reached) Dismiss("it cannot be reached");
}

void ShmSession::CountReads() {
  const auto* page = reinterpret_cast<const shm::SessionPage*>(page_->bytes().data());
  const TimePoint now = Clock::System().Now();
  const LookupCounts counts = reads_.Take(*page, now - std::exchange(counted_at_, now));
  if (lookups_ != nullptr) lookups_->Add(LookupPath::kOneSided, counts);
  const uint64_t there = counts.hits + counts.found;
  if (const uint64_t all = there + counts.misses + counts.absent; all > 0)
    store_->objects().sampler().Count(all, there);
}

bool ShmSession::MayPinTooMuch() const {
  return store_->sharing().retired_bytes() > pin_bytes_max_;
}

bool ShmSession::PinsTooMuch(const std::map<uint64_t, uint64_t>& held_bytes) const {
  const auto held = held_bytes.find(id_);
  return held != held_bytes.end() && held->second > pin_bytes_max_;
}

void ShmSession::Revoke() {
  metrics_.revoked.Add();
  EMS_LOG(kWarn, "mp_server", "a client holds more views than it may: session ended id={}", id_);
  store_->sharing().RemoveSession(id_);
  store_->objects().FreeRetired();
  Dismiss("it pins too much");
}

void ShmSession::AddKept(TimePoint now, Duration patience, std::map<uint32_t, uint64_t>* kept) {
  for (const GoneSegment& segment : gone_) {
    if (now - segment.gone_at < patience) continue;
    kept->emplace(segment.id, segment.bytes);
    if (std::exchange(warned_, true)) continue;
    EMS_LOG(kWarn, "mp_server",
            "a client keeps memory that was called back: the pool is smaller by it until it goes "
            "on or ends pid={} session={}",
            pid_, id_);
  }
}

}  // namespace ems::server
