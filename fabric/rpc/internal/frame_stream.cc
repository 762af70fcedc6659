#include "fabric/rpc/internal/frame_stream.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace ems::fabric::internal {
namespace {

constexpr size_t kScratchBytes = 64 * kKiB;
constexpr size_t kAppendStepBytes = 64 * kKiB;
constexpr size_t kIovecsMax = 64;
// What is read, once it has come, or written without waiting for a turn.
constexpr size_t kSmallBytes = 64 * kKiB;
// What a call takes of a turn beside its bytes: many small values are work, too.
constexpr size_t kCallBytes = FrameStream::kTurnBytes / 256;

// Drops the first `bytes` of what is to be sent.
void Advance(size_t bytes, std::span<const ConstBytes>* parts, size_t* sent_of_first) {
  while (bytes > 0) {
    EMS_CHECK(!parts->empty(), "{} bytes more were sent than there are", bytes);
    const size_t step = std::min(bytes, parts->front().size() - *sent_of_first);
    *sent_of_first += step;
    bytes -= step;
    if (*sent_of_first == parts->front().size()) {
      *parts = parts->subspan(1);
      *sent_of_first = 0;
    }
  }
}

}  // namespace

ConstBytes FrameStream::TakeAhead(size_t bytes) {
  EMS_CHECK(bytes <= ahead().size(), "{} of {} bytes", bytes, ahead().size());
  const ConstBytes taken = ahead().first(bytes);
  ahead_begin_ += bytes;
  return taken;
}

asio::awaitable<bool> FrameStream::ReadMore() {
  if (ahead_begin_ == ahead_end_) {
    ahead_begin_ = ahead_end_ = 0;
  } else if (ahead_end_ == ahead_.size()) {
    std::copy(ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_), ahead_.end(), ahead_.begin());
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
  }
  EMS_CHECK(ahead_end_ < ahead_.size(), "no room to read ahead");
  SetLowWater(1);
  asio::error_code error;
  const size_t n = co_await socket_.async_read_some(
      asio::buffer(ahead_.data() + ahead_end_, ahead_.size() - ahead_end_),
      asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return false;
  moved_ = 0;
  ahead_end_ += n;
  CountRead(n);
  co_return true;
}

bool FrameStream::HasCome(uint64_t bytes) {
  int there = 0;
  if (ahead().size() + in_kernel_ < bytes &&
      ::ioctl(socket_.native_handle(), FIONREAD, &there) == 0)
    in_kernel_ = static_cast<uint64_t>(there);
  return ahead().size() + in_kernel_ >= bytes;
}

void FrameStream::CountRead(size_t bytes) {
  passed_bytes_ += bytes;
  in_kernel_ -= std::min<uint64_t>(in_kernel_, bytes);
}

asio::awaitable<bool> FrameStream::AwaitBytes(uint64_t bytes) {
  for (bool woken = false; !HasCome(bytes); woken = true) {
    const bool ended = PeerHungUp();  // first: what was sent before the end is there then
    if (HasCome(bytes)) break;
    if (ended) co_return false;
    if (woken && in_kernel_ > 0) break;  // the kernel waits for no more
    moved_ = 0;
    SetLowWater(bytes - ahead().size());
    asio::error_code error;
    co_await socket_.async_wait(StreamSocket::wait_read,
                                asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
  }
  co_return true;
}

asio::awaitable<size_t> FrameStream::ReadSome(MutableBytes first, MutableBytes second,
                                              uint64_t wake_bytes) {
  const MutableBytes into = first.empty() ? second : first;
  if (const size_t n = std::min(into.size(), ahead().size()); n > 0) {
    std::memcpy(into.data(), TakeAhead(n).data(), n);  // std::ranges::copy goes byte by byte
    co_return n;
  }
  while (true) {
    iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
    if (n >= 0) {
      CountRead(static_cast<size_t>(n));
      if (TurnIsOver(static_cast<size_t>(n))) co_await Yield();
      co_return static_cast<size_t>(n);
    }
    if (errno != EAGAIN && errno != EINTR) co_return 0;
    SetLowWater(wake_bytes);
    asio::error_code error;
    co_await socket_.async_wait(StreamSocket::wait_read,
                                asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return 0;
    moved_ = 0;
    if (into.size() > kSmallBytes) co_await Requeue();
  }
}

asio::awaitable<bool> FrameStream::ReadExact(MutableBytes into) {
  while (!into.empty()) {
    const size_t n = co_await ReadSome(into, {});
    if (n == 0) co_return false;
    into = into.subspan(n);
  }
  co_return true;
}

asio::awaitable<bool> FrameStream::Append(std::vector<std::byte>* to, uint64_t bytes) {
  while (bytes > 0) {
    const size_t step = std::min<uint64_t>(bytes, kAppendStepBytes);
    const size_t at = to->size();
    to->resize(at + step);
    if (!co_await ReadExact(MutableBytes(*to).subspan(at))) co_return false;
    bytes -= step;
  }
  co_return true;
}

MutableBytes FrameStream::Scratch(uint64_t bytes) {
  const size_t size = std::min<uint64_t>(bytes, kScratchBytes);
  if (scratch_.size() < size) scratch_.resize(size);
  return MutableBytes(scratch_).first(size);
}

asio::awaitable<bool> FrameStream::Skip(uint64_t bytes) {
  while (bytes > 0) {
    const size_t n = co_await ReadSome(Scratch(bytes), {});
    if (n == 0) co_return false;
    bytes -= n;
  }
  co_return true;
}

asio::awaitable<bool> FrameStream::Write(std::span<const ConstBytes> parts) {
  size_t sent_of_first = 0;
  size_t all = 0;
  for (const ConstBytes part : parts) all += part.size();
  if (all > kSmallBytes) co_await Requeue();
  while (true) {
    while (!parts.empty() && sent_of_first == parts.front().size()) {
      parts = parts.subspan(1);
      sent_of_first = 0;
    }
    if (parts.empty()) co_return true;
    std::array<iovec, kIovecsMax> iov;
    size_t count = 0;
    const size_t most = turns_->BytesOfSend(Clock::System().Now());
    for (size_t bytes = 0; count < std::min(parts.size(), iov.size()) && bytes < most;) {
      ConstBytes part = count == 0 ? parts[0].subspan(sent_of_first) : parts[count];
      part = part.first(std::min(part.size(), most - bytes));
      iov[count++] = {const_cast<std::byte*>(part.data()), part.size()};
      bytes += part.size();
    }
    msghdr message{};
    message.msg_iov = iov.data();
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      CountPassed(static_cast<uint64_t>(n));
      Advance(static_cast<size_t>(n), &parts, &sent_of_first);
      if (TurnIsOver(static_cast<size_t>(n)) && !parts.empty()) co_await Yield();
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) co_return false;
    asio::error_code error;
    co_await socket_.async_wait(StreamSocket::wait_write,
                                asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
    moved_ = 0;
    co_await Requeue();
  }
}

bool FrameStream::TurnIsOver(size_t bytes) {
  moved_ += bytes + kCallBytes;
  return moved_ >= kTurnBytes;
}

asio::awaitable<void> FrameStream::Yield() {
  moved_ = 0;
  waiting_since_ = Clock::System().Now();
  co_await turns_->Next(&turn_);
  waited_ += Clock::System().Now() - *std::exchange(waiting_since_, std::nullopt);
}

asio::awaitable<void> FrameStream::Requeue() {
  if (turns_->AreShort(Clock::System().Now())) co_await Yield();
}

bool FrameStream::PeerHungUp() {
  if (!socket_.is_open()) return true;  // it was hung up on, at a deadline
  pollfd poll{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&poll, 1, 0) > 0;
}

void FrameStream::Close() {
  asio::error_code ignored;
  socket_.close(ignored);
  turn_.cancel();
}

void FrameStream::SetLowWater(uint64_t bytes) {
  if (bytes == low_water_) return;
  const int value = static_cast<int>(bytes);
  ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value));
  low_water_ = bytes;
}

}  // namespace ems::fabric::internal
