#include "fabric/rpc/rpc_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/check.h"
#include "common/random_id.h"
#include "fabric/rpc/internal/hello_sink.h"

namespace ems::fabric {
namespace {

using wire::FrameHeader;
using wire::WireStatus;

// How much is checksummed ahead of the kernel taking it: enough for one send to fill the socket,
// little enough to be still in the L2 cache when the kernel copies it.
constexpr uint64_t kSendAheadBytes = 512 * kKiB;
constexpr uint64_t kSendFirstBytes = 256 * kKiB;  // of a value: the receiver starts with it
constexpr size_t kReceivePartBytes = 256 * kKiB;
// In the middle of a value the caller is woken for so many bytes at a time, not for each segment:
// waking an idle core costs the sender more than copying the bytes.
constexpr uint64_t kWakeBytes = 256 * kKiB;
// What comes at once anyway: to wait for less costs two system calls and saves no waking.
constexpr uint64_t kSegmentBytes = 64 * kKiB;
constexpr size_t kDropPartBytes = 64 * kKiB;
constexpr size_t kIovecsMax = 64;
// Clocks of two machines drift by a thousandth at most, so by 10 ms meanwhile.
constexpr Duration kClockAge = std::chrono::seconds(10);
constexpr size_t kTableKeepBytes = 256 * kKiB;

}  // namespace

RpcChannel::RpcChannel(Fd fd)
    : fd_(std::move(fd)), owner_(::getpid()), reads_sleep_(LetReadsSleep(true)) {}

RpcChannel::~RpcChannel() {
  if (fd_.valid() && ::getpid() == owner_) ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<std::unique_ptr<RpcChannel>> RpcChannel::Open(const Address& address, Duration timeout,
                                                     ClusterId cluster) {
  const Deadline deadline = Deadline::After(timeout);
  EMS_ASSIGN_OR_RETURN(Fd fd, Connect(address, timeout));
  auto channel = std::make_unique<RpcChannel>(std::move(fd));
  channel->StartGreeting();
  RpcChannel* const one = channel.get();
  Status result;
  RunAll(std::span(&one, 1), deadline, std::span(&result, 1));
  EMS_RETURN_IF_ERROR(result);
  EMS_RETURN_IF_ERROR(channel->Greeted(cluster));
  return channel;
}

Result<std::unique_ptr<RpcChannel>> RpcChannel::StartOpen(const Address& address,
                                                          uint32_t attempt) {
  EMS_ASSIGN_OR_RETURN(Fd fd, StartConnect(address, attempt));
  auto channel = std::make_unique<RpcChannel>(std::move(fd));
  channel->StartGreeting();
  return channel;
}

void RpcChannel::StartGreeting() {
  RpcRequest& request = NewRequest();
  request.header.op = wire::Op::kHello;
  const wire::HelloBody mine;
  const ConstBytes raw = wire::RawBytes(mine);
  request.head.assign(raw.begin(), raw.end());
  greeting_ = std::make_unique<internal::HelloSink>(&hello_);
  Start(greeting_.get());
  next_request_id_ = static_cast<uint32_t>(RandomId());
}

Status RpcChannel::Greeted(ClusterId cluster) const {
  EMS_CHECK(done(), "the greeting is under way");
  EMS_RETURN_IF_ERROR(wire::ToStatus(answer_.status, text_));
  if (hello_.version_min > wire::kVersionMax || hello_.version_max < wire::kVersionMin) {
    return Error(StatusCode::kFailedPrecondition,
                 "server speaks protocol {} to {}, this client {} to {}", hello_.version_min,
                 hello_.version_max, wire::kVersionMin, wire::kVersionMax);
  }
  if (hello_.IsStrangerTo(cluster)) {
    return Error(StatusCode::kFailedPrecondition,
                 "the server at this address belongs to another cluster, whose id ends in {:012x}, "
                 "and not to {}",
                 hello_.cluster_bits(), ClusterText(cluster));
  }
  return OkStatus();
}

Fd RpcChannel::Release() {
  EMS_CHECK(done() && ahead_begin_ == ahead_end_, "{} bytes were read ahead",
            ahead_end_ - ahead_begin_);
  SetLowWater(1);
  (void)LetReadsSleep(false);
  return std::move(fd_);
}

bool RpcChannel::LetReadsSleep(bool sleep) {
  using Micros = std::chrono::microseconds;
  const timeval most{0, sleep ? std::chrono::duration_cast<Micros>(kNap).count() : 0};
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  return flags >= 0 && ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most)) == 0 &&
         ::fcntl(fd_.get(), F_SETFL, sleep ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0;
}

RpcRequest& RpcChannel::NewRequest() {
  EMS_CHECK(done(), "a request is under way");
  request_.header = FrameHeader();
  request_.head.clear();
  request_.key_bytes = 0;
  request_.values.clear();
  return request_;
}

void RpcChannel::Start(AnswerSink* sink) {
  EMS_CHECK(done());
  FrameHeader& header = request_.header;
  header.request_id = next_request_id_++;
  header.key_bytes = request_.key_bytes;
  header.body_bytes = request_.head.size() - request_.key_bytes;
  for (const auto& value : request_.values) {
    for (const ConstBytes part : value) header.body_bytes += part.size();
    header.body_bytes += wire::kTrailerBytes;
  }
  started_ = Clock::System().Now();
  if (clock_ahead_ && header.deadline_ms > 0) {
    header.flags |= wire::kFlagUntil;
    // What is left was rounded up, and until then means not a moment longer.
    header.deadline_ms += wire::ClockMs(started_) + *clock_ahead_ - 1;
  }
  wire::SealRequest(request_.head, &header);

  sink_ = sink;
  state_ = State::kSend;
  until_ = TimePoint::max();
  answer_begun_ = false;
  text_.clear();
  trailers_.assign(request_.values.size(), 0);
  value_ = part_ = part_offset_ = 0, value_started_ = false;
  pending_.clear();
  pending_begin_ = 0;
  pending_.push_back({&header, sizeof(header)});
  if (!request_.head.empty()) pending_.push_back({request_.head.data(), request_.head.size()});
  pending_bytes_ = sizeof(header) + request_.head.size();
  sent_bytes_ = 0;
}

bool RpcChannel::HungUp() const {
  EMS_CHECK(done(), "a request is under way");
  pollfd poll{.fd = fd_.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
  return ::poll(&poll, 1, 0) != 0;
}

short RpcChannel::wants() const { return state_ == State::kSend ? POLLOUT : POLLIN; }

std::string RpcChannel::BrokenText(std::string_view what) const {
  return fmt::format("{}: {}", wire::OpName(request_.header.op), what);
}

// Checksums the next parts of the values and queues them, each value followed by its trailer, which
// leaves with the last of the value.
void RpcChannel::FillPending() {
  const uint64_t ahead = part_ == 0 && part_offset_ == 0 ? kSendFirstBytes : kSendAheadBytes;
  while (value_ < request_.values.size()) {
    const auto& parts = request_.values[value_];
    if (pending_bytes_ >= ahead && part_ < parts.size()) return;
    if (!value_started_) {
      hasher_.Start({});
      value_started_ = true;
    }
    if (part_ < parts.size()) {
      const ConstBytes rest = parts[part_].subspan(part_offset_);
      const ConstBytes slice = rest.first(std::min<size_t>(rest.size(), kPieceBytes));
      hasher_.Update(slice);
      if (!slice.empty()) pending_.push_back({const_cast<std::byte*>(slice.data()), slice.size()});
      pending_bytes_ += slice.size();
      part_offset_ += slice.size();
      if (part_offset_ == parts[part_].size()) ++part_, part_offset_ = 0;
      continue;
    }
    trailers_[value_] =
        wire::FoldChecksum(hasher_.Finish(), request_.header, static_cast<uint32_t>(value_));
    pending_.push_back({&trailers_[value_], wire::kTrailerBytes});
    pending_bytes_ += wire::kTrailerBytes;
    ++value_;
    part_ = part_offset_ = 0;
    value_started_ = false;
  }
}

Status RpcChannel::Send() {
  while (true) {
    FillPending();
    if (pending_bytes_ == 0) {
      state_ = State::kHeader;
      return OkStatus();
    }
    msghdr message{};
    message.msg_iov = &pending_[pending_begin_];
    message.msg_iovlen = std::min(pending_.size() - pending_begin_, kIovecsMax);
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return OkStatus();
    if (n < 0) return Error(StatusCode::kUnavailable, BrokenText(ErrnoText(errno)));
    pending_bytes_ -= static_cast<uint64_t>(n);
    sent_bytes_ += static_cast<uint64_t>(n);
    moved_ += static_cast<uint64_t>(n);
    for (auto left = static_cast<size_t>(n); left > 0;) {
      iovec& first = pending_[pending_begin_];
      const size_t step = std::min(left, first.iov_len);
      first.iov_base = static_cast<std::byte*>(first.iov_base) + step;
      first.iov_len -= step;
      left -= step;
      if (first.iov_len == 0) ++pending_begin_;
    }
    if (pending_begin_ == pending_.size()) pending_.clear(), pending_begin_ = 0;
    if (moved_ >= kStepBytes) return OkStatus();
  }
}

Status RpcChannel::Advance() {
  moved_ = 0;
  if (state_ == State::kSend) return Send();
  return Receive();
}

Status RpcChannel::AwaitBytes() {
  may_sleep_ = reads_sleep_ && awaits_bytes();
  const Status received = Advance();
  may_sleep_ = false;
  return received;
}

// Reads what is there; 0 when there is nothing just now.
Result<size_t> RpcChannel::ReadSocket(std::span<iovec> into) {
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  const ssize_t n =
      ::recvmsg(fd_.get(), &message, std::exchange(may_sleep_, false) ? 0 : MSG_DONTWAIT);
  if (n > 0) {
    answer_begun_ = true;
    moved_ += static_cast<uint64_t>(n);
    return static_cast<size_t>(n);
  }
  if (n == 0) return Error(StatusCode::kUnavailable, BrokenText("connection closed by the server"));
  if (errno == EAGAIN || errno == EINTR) {
    drained_ = true;
    return size_t{0};
  }
  return Error(StatusCode::kUnavailable, BrokenText(ErrnoText(errno)));
}

Status RpcChannel::Receive() {
  while (state_ != State::kIdle) {
    drained_ = false;
    EMS_RETURN_IF_ERROR(state_ == State::kValues ? ReceiveValue() : ReceiveSmall());
    if (drained_) return OkStatus();
    // What has been read ahead wakes no poll(2): it is used up first.
    if (moved_ >= kStepBytes && ahead_begin_ == ahead_end_ && early_.empty() &&
        state_ != State::kIdle) {
      if (state_ == State::kValues) WaitForMore();
      return OkStatus();
    }
  }
  return OkStatus();
}

// Header, table or text: gathered in the read-ahead buffer or, when longer, in the table.
Status RpcChannel::ReceiveSmall() {
  const size_t have = ahead_end_ - ahead_begin_;
  const uint64_t want = state_ == State::kHeader ? wire::kHeaderBytes : small_bytes_;
  if (state_ != State::kHeader && table_.size() < want && have > 0) {
    const size_t n = std::min<uint64_t>(have, want - table_.size());
    table_.insert(table_.end(), ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_),
                  ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_ + n));
    ahead_begin_ += n;
  }
  if (state_ == State::kHeader && have >= want) return OnAnswerHeader();
  if (state_ != State::kHeader && table_.size() == want) return OnSmallBody();
  if (ahead_begin_ == ahead_end_) {
    ahead_begin_ = ahead_end_ = 0;
  } else if (ahead_begin_ > 0) {
    std::copy(ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_),
              ahead_.begin() + static_cast<ptrdiff_t>(ahead_end_), ahead_.begin());
    ahead_end_ -= std::exchange(ahead_begin_, 0);
  }
  return ReadAhead();
}

Status RpcChannel::ReadAhead() {
  MutableBytes ahead = MutableBytes(ahead_).subspan(ahead_end_);
  MutableBytes expected;
  if (state_ == State::kHeader && ahead_end_ == 0) expected = sink_->Expected();
  if (expected.size() > wire::kErrorTextMax) {
    ahead = ahead.first(wire::kHeaderBytes + wire::kErrorTextMax);
    expected =
        expected.first(std::min(expected.size(), kReceivePartBytes)).subspan(wire::kErrorTextMax);
  } else {
    expected = {};
  }
  std::array<iovec, 2> into{iovec{ahead.data(), ahead.size()},
                            iovec{expected.data(), expected.size()}};
  EMS_ASSIGN_OR_RETURN(const size_t n, ReadSocket(into));
  ahead_end_ += std::min(n, ahead.size());
  early_ = expected.first(n - std::min(n, ahead.size()));
  return OkStatus();
}

// Of all answers within kClockAge the one that took least says it best. The others say less, so the
// server stops early rather than late.
void RpcChannel::NoteClock() {
  const TimePoint now = answered_ = Clock::System().Now();
  if (answer_.answer_clock == 0) return;  // a server that does not tell it
  // The server's clock was read as of its last whole millisecond, so this one's is, as of the next.
  const uint32_t ahead = answer_.answer_clock - (wire::ClockMs(now) + 1);
  const bool better = !clock_ahead_ || static_cast<int32_t>(ahead - *clock_ahead_) > 0;
  if (!better && now - clock_told_ < kClockAge) return;
  clock_ahead_ = ahead;
  clock_told_ = now;
}

Status RpcChannel::OnAnswerHeader() {
  const ConstBytes raw = std::span(ahead_).subspan(ahead_begin_, wire::kHeaderBytes);
  EMS_RETURN_IF_ERROR(
      wire::ParseAnswer(raw, request_.header.op, request_.header.request_id, &answer_));
  ahead_begin_ += wire::kHeaderBytes;
  NoteClock();
  if (table_.capacity() > kTableKeepBytes) std::vector<std::byte>().swap(table_);
  table_.clear();
  if (answer_.status != WireStatus::kOk) {
    small_bytes_ = answer_.body_bytes;
    if (small_bytes_ == 0) return EndAnswer();
    state_ = State::kText;
    return OkStatus();
  }
  small_bytes_ = sink_->OnHeader(answer_);
  if (small_bytes_ > answer_.body_bytes) {
    return Error(StatusCode::kDataLoss, BrokenText("answer is too short"));
  }
  EMS_CHECK(small_bytes_ == 0 || early_.empty(), "a table where a value was expected");
  body_left_ = answer_.body_bytes - small_bytes_;
  state_ = State::kTable;
  if (small_bytes_ > 0) return OkStatus();
  state_ = State::kValues;
  return BeginNextValue();
}

Status RpcChannel::OnSmallBody() {
  if (!wire::AnswerMatches(answer_, table_)) {
    return Error(StatusCode::kDataLoss, BrokenText("the answer does not match its checksum"));
  }
  if (state_ == State::kText) {
    text_ = AsText(table_);
    return EndAnswer();
  }
  EMS_RETURN_IF_ERROR(sink_->OnTable(table_));
  state_ = State::kValues;
  return BeginNextValue();
}

Status RpcChannel::BeginNextValue() {
  while (true) {
    incoming_ = {};
    if (!sink_->NextValue(&incoming_)) {
      if (body_left_ != 0) return Error(StatusCode::kDataLoss, BrokenText("answer is too long"));
      return EndAnswer();
    }
    if (incoming_.bytes > body_left_) {
      return Error(StatusCode::kDataLoss, BrokenText("answer is too short"));
    }
    body_left_ -= incoming_.bytes;
    incoming_left_ = incoming_.bytes;
    uint64_t room = 0;
    for (const MutableBytes part : incoming_.into) room += part.size();
    incoming_dropped_ = room < incoming_.bytes;
    into_part_ = into_offset_ = 0;
    hasher_.Start({}, incoming_.first_piece_bytes);
    if (incoming_left_ > 0) return OkStatus();
    sink_->OnValue(hasher_.Finish());
  }
}

// Nothing may be left over: it would be taken for the next answer.
Status RpcChannel::EndAnswer() {
  if (ahead_begin_ != ahead_end_ || !early_.empty()) {
    return Error(StatusCode::kDataLoss, BrokenText("bytes after the answer"));
  }
  SetLowWater(1);
  state_ = State::kIdle;
  return OkStatus();
}

void RpcChannel::WaitForMore() {
  const uint64_t left = incoming_left_ + body_left_;
  SetLowWater(left <= kSegmentBytes ? 1 : std::min(left, kWakeBytes));
}

void RpcChannel::SetLowWater(uint64_t bytes) {
  if (bytes == low_water_) return;
  const int value = static_cast<int>(bytes);
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value));
  low_water_ = bytes;
}

Status RpcChannel::ReceiveValue() {
  // Where the next bytes go: one contiguous run, so that it can be checksummed at once.
  MutableBytes into;
  if (incoming_dropped_) {
    scratch_.resize(kDropPartBytes);
    into = scratch_;
  } else {
    while (into_offset_ == incoming_.into[into_part_].size()) ++into_part_, into_offset_ = 0;
    into = incoming_.into[into_part_].subspan(into_offset_);
  }
  EMS_CHECK(incoming_left_ > 0, "a value of no more bytes");
  into = into.first(std::min<uint64_t>({into.size(), incoming_left_, kReceivePartBytes}));
  size_t n = std::min(into.size(), ahead_end_ - ahead_begin_);
  if (n > 0) {
    std::copy_n(ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_), n, into.begin());
    ahead_begin_ += n;
  } else if (!early_.empty()) {
    n = std::min(into.size(), early_.size());
    if (into.data() != early_.data()) std::copy_n(early_.begin(), n, into.begin());
    early_ = early_.subspan(n);
  } else {
    iovec one{into.data(), into.size()};
    EMS_ASSIGN_OR_RETURN(n, ReadSocket(std::span(&one, 1)));
  }
  if (n == 0) {
    WaitForMore();
    return OkStatus();
  }
  hasher_.Update(into.first(n));
  into_offset_ += n;
  incoming_left_ -= n;
  if (incoming_left_ > 0) return OkStatus();
  sink_->OnValue(hasher_.Finish());
  return BeginNextValue();
}

void RunAll(std::span<RpcChannel* const> channels, Deadline deadline, std::span<Status> results,
            const std::function<bool()>& meanwhile, const std::function<void(size_t)>& on_done) {
  EMS_CHECK(results.size() >= channels.size(), "{} results of {}", results.size(), channels.size());
  constexpr size_t kChunk = 64;
  std::array<pollfd, kChunk> small;
  std::vector<pollfd> large(channels.size() > kChunk ? channels.size() : 0);
  const std::span<pollfd> entries =
      large.empty() ? std::span(small).first(channels.size()) : std::span(large);
  const auto is_open = [&](size_t i) {
    return channels[i] != nullptr && results[i].ok() && !channels[i]->done();
  };
  const auto move_on = [&](size_t i, Status moved) {
    results[i] = std::move(moved);
    if (on_done && results[i].ok() && channels[i]->done()) on_done(i);
  };
  for (size_t i = 0; i < channels.size(); ++i)
    if (channels[i] != nullptr) move_on(i, channels[i]->Advance());
  bool again = meanwhile && meanwhile();
  while (true) {
    size_t waiting = 0;
    Deadline soonest = deadline;
    for (size_t i = 0; i < channels.size(); ++i) {
      entries[i] = {.fd = -1, .events = 0, .revents = 0};
      if (!is_open(i)) continue;
      entries[i].fd = channels[i]->fd();
      entries[i].events = channels[i]->wants();
      ++waiting;
      soonest = Deadline(std::min(soonest.at(), channels[i]->until()));
    }
    if (waiting == 0 && !again) return;
    if (channels.size() == 1 && !again && channels[0]->awaits_bytes() &&
        soonest.Remaining() > RpcChannel::kNap) {
      move_on(0, channels[0]->AwaitBytes());
      continue;
    }
    if (again) soonest = Deadline(std::min(soonest.at(), Deadline::After(kAgain).at()));
    const int ready = ::poll(entries.data(), entries.size(), soonest.RemainingMs());
    if (ready < 0 && errno == EINTR) continue;
    // One channel that keeps moving must not keep the others waiting beyond their time.
    const bool late = ready == 0 || soonest.Passed();
    for (size_t i = 0; i < channels.size(); ++i) {
      if (entries[i].fd < 0 || channels[i] == nullptr) continue;
      if (entries[i].revents != 0) move_on(i, channels[i]->Advance());
      // What `on_done` has started now has its own time.
      if (late && is_open(i) && std::min(deadline.at(), channels[i]->until()) <= soonest.at()) {
        results[i] = Error(StatusCode::kDeadlineExceeded, "no answer within the deadline");
      }
    }
    again = again && meanwhile();
  }
}

}  // namespace ems::fabric
