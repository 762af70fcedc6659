#include "fabric/internal/rpc_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/copy.h"
#include "common/logging.h"
#include "fabric/internal/http_stray.h"

namespace ems::fabric::internal {
namespace {

using wire::FrameHeader;
using wire::Op;
using wire::WireStatus;

// Values are received in parts of this size, so that a part is still in the L2 cache when it is
// checksummed.
constexpr size_t kReceivePartBytes = 256 * kKiB;
// In the middle of a value the thread is woken for so many bytes at a time, not for each segment:
// waking an idle core costs the sender more than copying the bytes.
constexpr uint64_t kWakeBytes = 256 * kKiB;
// At its start sooner, so that receiving and sending overlap from there on.
constexpr uint64_t kFirstWakeBytes = 64 * kKiB;
constexpr size_t kSkipPartBytes = 64 * kKiB;
constexpr size_t kTableStepBytes = 64 * kKiB;
constexpr size_t kTableKeepBytes = 256 * kKiB;
constexpr size_t kPartsKeep = 1024;
constexpr size_t kIovecsMax = 64;
constexpr Duration kSettleMax = std::chrono::seconds(10);  // whatever sessions and clients say
constexpr Duration kLinger = std::chrono::seconds(1);

// Counts a request as in hand for as long as it lives.
class InHand final {
 public:
  explicit InHand(std::atomic<int>* busy) : busy_(busy) {
    busy_->fetch_add(1, std::memory_order_relaxed);
  }
  ~InHand() { busy_->fetch_sub(1, std::memory_order_release); }
  InHand(const InHand&) = delete;
  InHand& operator=(const InHand&) = delete;

 private:
  std::atomic<int>* busy_;
};

}  // namespace

WireStatus StatusOfRefusal(const Status& why) {
  switch (why.code()) {
    case StatusCode::kFailedPrecondition:
      return WireStatus::kVersion;
    case StatusCode::kOutOfRange:
      return WireStatus::kTooLarge;
    case StatusCode::kUnimplemented:
      return WireStatus::kUnimplemented;
    default:
      return WireStatus::kInvalid;
  }
}

class RpcConnection::Waker final {
 public:
  explicit Waker(RpcConnection* connection) : connection_(std::in_place, connection) {}
  // Any thread. Posting only queues; under the lock, so that the connection's loop is still there.
  void Wake() {
    auto connection = connection_.Lock();
    if (*connection == nullptr) return;
    asio::post((*connection)->socket_.get_executor(), [weak = (*connection)->weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr) self->timer_.cancel();
    });
  }
  void Detach() {
    auto connection = connection_.Lock();
    *connection = nullptr;
  }

 private:
  Guarded<RpcConnection*> connection_;
};

RpcConnection::RpcConnection(StreamSocket socket, const RpcServerOptions& options,
                             const RpcMetrics& metrics, std::unique_ptr<Session> session,
                             std::atomic<int>* busy, Vigil* vigil)
    : socket_(std::move(socket)),
      options_(options),
      metrics_(metrics),
      session_(std::move(session)),
      busy_(busy),
      vigil_(vigil),
      timer_(socket_.get_executor()) {
  metrics_.connections.Add(1);
  waker_ = std::make_shared<Waker>(this);
  session_->SetWaker([waker = waker_] { waker->Wake(); });
}

RpcConnection::~RpcConnection() {
  waker_->Detach();
  metrics_.connections.Add(-1);
}

void RpcConnection::IgnoreWakes() { waker_->Detach(); }

void RpcConnection::Close() {
  asio::error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
}

void RpcConnection::CheckDeadline(TimePoint now) {
  if (now < deadline_) return;
  metrics_.timeouts.Add();
  Close();
}

void RpcConnection::SetDeadline(Duration timeout) {
  deadline_ = timeout > Duration::zero() ? Clock::System().Now() + timeout : TimePoint::max();
}

void RpcConnection::SetTransferDeadline(uint64_t bytes) {
  // A refused frame may claim any length.
  SetDeadline(options_.transfer_timeout +
              std::chrono::nanoseconds(std::min(bytes, wire::kValueBytesLimit) * 100));
}

asio::awaitable<void> RpcConnection::Run() {
  const auto self = shared_from_this();
  while (co_await ServeOne()) {
  }
  session_->Sent();
  Close();
}

asio::awaitable<bool> RpcConnection::ServeOne() {
  FrameHeader request;
  if (!co_await ReadHeaderAndKey(&request)) co_return false;
  const InHand in_hand(busy_);
  // The key stays in the read-ahead buffer, which is only drained, never refilled, until the
  // request is done.
  const std::string_view key = AsText(ahead().first(request.key_bytes));
  ahead_begin_ += request.key_bytes;
  SetTransferDeadline(request.body_bytes);
  const Duration asked = std::chrono::milliseconds(request.deadline_ms);
  settle_asked_ = request.deadline_ms == 0 ? kSettleMax : std::min(kSettleMax, asked);
  settled_ = Duration::zero();
  metrics_.bytes_received.Add(static_cast<double>(request.body_bytes));
  switch (request.op) {
    case Op::kPut:
      co_return co_await ServePut(request, key);
    case Op::kMultiPut:
      co_return co_await ServeMultiPut(request);
    case Op::kPutStaged:
      co_return co_await ServePutStaged(request, key);
    case Op::kMultiPutStaged:
      co_return co_await ServeMultiPutStaged(request);
    default:
      co_return co_await ServeOther(request, key);
  }
}

asio::awaitable<bool> RpcConnection::ReadHeaderAndKey(FrameHeader* request) {
  while (true) {
    // Who has not spoken yet has as long as for a header; who has may be idle.
    SetDeadline(spoken_ ? options_.idle_timeout : options_.header_timeout);
    if (ahead().empty() && !co_await ReadMore()) co_return false;
    SetDeadline(options_.header_timeout);
    while (ahead().size() < wire::kHeaderBytes && !LooksLikeHttp(ahead())) {
      if (!co_await ReadMore()) co_return false;
    }
    if (LooksLikeHttp(ahead())) {
      co_await AnswerHttp();
      co_return false;
    }
    const Status parsed =
        wire::ParseRequest(ahead().first(wire::kHeaderBytes), options_.value_bytes_max, request);
    ahead_begin_ += wire::kHeaderBytes;
    spoken_ = true;
    if (parsed.ok()) break;
    if (!co_await RefuseFrame(*request, parsed)) co_return false;
  }
  while (ahead().size() < request->key_bytes) {
    if (!co_await ReadMore()) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> RpcConnection::RefuseFrame(const FrameHeader& request, const Status& why) {
  metrics_.bad_frames.Add();
  EMS_LOG(kDebug, "fabric", "frame refused: {}", Message(why));
  if (why.code() == StatusCode::kDataLoss) co_return false;  // nothing in it can be believed
  const uint64_t rest = request.key_bytes + request.body_bytes;
  SetTransferDeadline(rest);
  // An unknown op or version with a believable length is skipped, and the connection goes on.
  const bool goes_on =
      (why.code() == StatusCode::kUnimplemented || why.code() == StatusCode::kFailedPrecondition) &&
      request.body_bytes <= wire::kBatchBytesMax;
  if (goes_on && !co_await Skip(rest)) co_return false;
  const ConstBytes text = AsBytes(Message(why));
  answer_.Clear();
  answer_.body.assign(text.begin(), text.end());
  if (!co_await WriteAnswer(request, StatusOfRefusal(why))) co_return false;
  if (goes_on) co_return true;
  // The peer may still be sending: closing now would reset the connection and lose the answer. So:
  // a second to read it.
  asio::error_code ignored;
  socket_.shutdown(StreamSocket::shutdown_send, ignored);
  SetDeadline(kLinger);
  co_await Skip(rest);
  co_return false;
}

asio::awaitable<void> RpcConnection::AnswerHttp() {
  metrics_.bad_frames.Add();
  const ConstBytes text = AsBytes(kHttpAnswer);
  co_await WriteAll(std::span(&text, 1));
}

asio::awaitable<bool> RpcConnection::ServeOther(const FrameHeader& request, std::string_view key) {
  ConstBytes body;
  if (request.body_bytes > 0) {
    table_.clear();
    if (!co_await ReadTable(request.body_bytes)) co_return false;
    body = table_;
  }
  if (IsMulti(request.op)) {
    const auto measured = wire::ItemTableBytes(
        request, body.first(request.item_count * sizeof(wire::ItemHead)), options_.value_bytes_max);
    if (!measured.ok()) co_return co_await RefuseFrame(request, measured.status());
  }
  const Outcome outcome = co_await Settle([&] {
    answer_.Clear();
    return session_->Handle(request, key, body, &answer_);
  });
  const bool written = co_await WriteAnswer(request, outcome.status);
  if (request.op != Op::kAttach || outcome.status != WireStatus::kOk) co_return written;
  // The peer waits for the answer before it says more, so nothing is read ahead here.
  if (!written || !ahead().empty()) co_return false;
  asio::error_code error;
  const int fd = socket_.release(error);
  if (!error) session_->TakeOver(Fd(fd), request.ns());
  co_return false;
}

asio::awaitable<bool> RpcConnection::ServePut(const FrameHeader& request, std::string_view key) {
  WireStatus status = WireStatus::kOk;
  const PutRequest put{&request, key, request.slot_id(), request.body_bytes - wire::kTrailerBytes};
  if (!co_await ReceiveValue(put, &status)) co_return false;
  answer_.Clear();
  co_await SettlePuts(std::span(&status, 1));
  co_return co_await WriteAnswer(request, status);
}

asio::awaitable<bool> RpcConnection::ReadItemTable(const FrameHeader& request) {
  const size_t heads_bytes = request.item_count * sizeof(wire::ItemHead);
  table_.clear();
  if (!co_await ReadTable(heads_bytes)) co_return false;
  const auto table_bytes = wire::ItemTableBytes(request, table_, options_.value_bytes_max);
  if (!table_bytes.ok()) co_return co_await RefuseFrame(request, table_bytes.status());
  co_return co_await ReadTable(*table_bytes - heads_bytes);
}

asio::awaitable<bool> RpcConnection::ServeMultiPut(const FrameHeader& request) {
  if (!co_await ReadItemTable(request)) co_return false;
  std::vector<WireStatus> statuses(request.item_count);
  uint32_t next = 0;
  for (wire::ItemReader items(request, table_); !items.done(); ++next) {
    const auto [head, key] = items.Next();
    const PutRequest put{&request, key, SlotId(head.slot), head.value_bytes, next};
    if (!co_await ReceiveValue(put, &statuses[next])) co_return false;
  }
  co_return co_await AnswerPuts(request, statuses);
}

asio::awaitable<void> RpcConnection::SettlePuts(std::span<WireStatus> statuses) {
  const Outcome outcome = co_await Settle([&] { return session_->AwaitPuts(statuses); });
  if (outcome.wait == Duration::zero()) co_return;
  for (WireStatus& status : statuses) {  // it has waited enough
    if (status == WireStatus::kOk) status = outcome.status;
  }
}

asio::awaitable<bool> RpcConnection::AnswerPuts(const FrameHeader& request,
                                                std::span<WireStatus> statuses) {
  co_await SettlePuts(statuses);
  answer_.Clear();
  for (const WireStatus status : statuses) {
    wire::ItemResult result;
    result.status = status;
    const ConstBytes raw = wire::RawBytes(result);
    answer_.body.insert(answer_.body.end(), raw.begin(), raw.end());
  }
  co_return co_await WriteAnswer(request, WireStatus::kOk);
}

asio::awaitable<bool> RpcConnection::ReceiveValue(const PutRequest& put, WireStatus* status) {
  PutTarget target;
  const Outcome outcome = co_await Settle([&] {
    target = PutTarget();
    return session_->BeginPut(put, &target);
  });
  *status = outcome.status;
  const bool accepted = outcome.status == WireStatus::kOk;
  if (!accepted) target.discard = true;
  uint64_t expected = 0;
  OpenPut open(accepted ? session_.get() : nullptr);
  if (!co_await ReceiveBytes(target, accepted, put.value_bytes, &expected)) co_return false;
  if (Session* const session = open.Release()) {
    *status = session->EndPut(hasher_.Finish(), expected);
  }
  co_return true;
}

asio::awaitable<bool> RpcConnection::ReceiveBytes(const PutTarget& target, bool hash,
                                                  uint64_t value_bytes, uint64_t* trailer) {
  if (hash) hasher_.Start(target.piece_sums);
  if (target.discard) scratch_.resize(std::min<uint64_t>(kSkipPartBytes, value_bytes));
  const MutableBytes trailer_bytes = std::as_writable_bytes(std::span(trailer, 1));
  uint64_t received = 0;
  while (received < value_bytes + wire::kTrailerBytes) {
    // The next part of the value and, with the last part, the trailer: exactly, never a byte of the
    // next frame.
    const uint64_t value_left = value_bytes - std::min(received, value_bytes);
    const size_t part =
        std::min<uint64_t>(value_left, target.discard ? kSkipPartBytes : kReceivePartBytes);
    const MutableBytes value = target.discard
                                   ? MutableBytes(scratch_).first(part)
                                   : target.value.subspan(value_bytes - value_left, part);
    const size_t trailer_done = received > value_bytes ? received - value_bytes : 0;
    const MutableBytes tail =
        part == value_left ? trailer_bytes.subspan(trailer_done) : MutableBytes();
    wake_bytes_ = std::min(value_bytes + wire::kTrailerBytes - received,
                           received == 0 ? kFirstWakeBytes : kWakeBytes);
    const size_t n = co_await ReadSome(value, tail);
    if (n == 0) co_return false;
    if (hash) hasher_.Update(value.first(std::min(n, value.size())));
    received += n;
  }
  wake_bytes_ = 1;
  SetLowWater(1);
  co_return true;
}

void RpcConnection::SetLowWater(uint64_t bytes) {
  if (bytes == low_water_) return;
  const int value = static_cast<int>(bytes);
  ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value));
  low_water_ = bytes;
}

asio::awaitable<bool> RpcConnection::ReadMore() {
  if (ahead_begin_ == ahead_end_) {
    ahead_begin_ = ahead_end_ = 0;
  } else if (ahead_end_ == ahead_.size()) {
    std::copy(ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_), ahead_.end(), ahead_.begin());
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
  }
  asio::error_code error;
  const size_t n = co_await socket_.async_read_some(
      asio::buffer(ahead_.data() + ahead_end_, ahead_.size() - ahead_end_),
      asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return false;
  ahead_end_ += n;
  co_return true;
}

size_t RpcConnection::TakeAhead(MutableBytes into) {
  const size_t n = std::min(into.size(), ahead().size());
  std::copy_n(ahead().begin(), n, into.begin());
  ahead_begin_ += n;
  return n;
}

asio::awaitable<size_t> RpcConnection::ReadSome(MutableBytes first, MutableBytes second) {
  if (const size_t n = TakeAhead(first.empty() ? second : first); n > 0) co_return n;
  iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t n = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
  if (n >= 0) co_return static_cast<size_t>(n);
  if (errno != EAGAIN && errno != EINTR) co_return 0;
  SetLowWater(wake_bytes_);
  asio::error_code error;
  const std::array buffers = {asio::buffer(first.data(), first.size()),
                              asio::buffer(second.data(), second.size())};
  const size_t got =
      co_await socket_.async_read_some(buffers, asio::redirect_error(asio::use_awaitable, error));
  co_return error ? 0 : got;
}

asio::awaitable<bool> RpcConnection::ReadExact(MutableBytes into) {
  while (!into.empty()) {
    const size_t n = co_await ReadSome(into, {});
    if (n == 0) co_return false;
    into = into.subspan(n);
  }
  co_return true;
}

// Memory follows the bytes that have come, not what a header claims.
asio::awaitable<bool> RpcConnection::ReadTable(uint64_t bytes) {
  while (bytes > 0) {
    const size_t step = std::min<uint64_t>(bytes, kTableStepBytes);
    const size_t at = table_.size();
    table_.resize(at + step);
    if (!co_await ReadExact(MutableBytes(table_).subspan(at))) co_return false;
    bytes -= step;
  }
  co_return true;
}

asio::awaitable<bool> RpcConnection::Skip(uint64_t bytes) {
  scratch_.resize(std::min<uint64_t>(kSkipPartBytes, bytes));
  while (bytes > 0) {
    const size_t n = co_await ReadSome(
        MutableBytes(scratch_).first(std::min<uint64_t>(bytes, scratch_.size())), {});
    if (n == 0) co_return false;
    bytes -= n;
  }
  co_return true;
}

asio::awaitable<bool> RpcConnection::WriteAnswer(const FrameHeader& request, WireStatus status) {
  if (status != WireStatus::kOk && answer_.body.empty()) {
    std::string_view text = session_->ErrorText();
    text = text.substr(0, wire::kErrorTextMax);
    answer_.body.assign(AsBytes(text).begin(), AsBytes(text).end());
  }
  if (status != WireStatus::kOk) answer_.payload.clear();
  FrameHeader header;
  header.op = request.op;
  header.request_id = request.request_id;
  header.retry_ms = session_->retry_ms();
  header.namespace_id = request.namespace_id;
  header.namespace_generation = request.namespace_generation;
  header.view = session_->view_version().packed();
  header.slot = request.slot;
  header.status = status;
  header.body_bytes = answer_.body.size();
  for (const ConstBytes part : answer_.payload) header.body_bytes += part.size();
  header.checksum = answer_.checksum;
  header.whole_bytes = answer_.whole_bytes;
  wire::Seal(&header);

  SetTransferDeadline(header.body_bytes);
  parts_.clear();
  parts_.push_back(wire::RawBytes(header));
  parts_.push_back(answer_.body);
  parts_.insert(parts_.end(), answer_.payload.begin(), answer_.payload.end());
  const bool written = co_await WriteAll(parts_);
  session_->Sent();
  metrics_.bytes_sent.Add(static_cast<double>(header.body_bytes));
  Trim();
  co_return written;
}

// A connection does not keep the room of its largest batch for ever.
void RpcConnection::Trim() {
  if (table_.capacity() > kTableKeepBytes) std::vector<std::byte>().swap(table_);
  if (answer_.body.capacity() > kTableKeepBytes) std::vector<std::byte>().swap(answer_.body);
  if (answer_.payload.capacity() > kPartsKeep) std::vector<ConstBytes>().swap(answer_.payload);
  if (parts_.capacity() > kPartsKeep) std::vector<ConstBytes>().swap(parts_);
}

asio::awaitable<bool> RpcConnection::WriteAll(std::span<const ConstBytes> parts) {
  size_t sent_of_first = 0;
  while (true) {
    std::array<iovec, kIovecsMax> iov;
    while (!parts.empty() && sent_of_first == parts.front().size()) {
      parts = parts.subspan(1);
      sent_of_first = 0;
    }
    if (parts.empty()) co_return true;
    const size_t count = std::min(parts.size(), iov.size());
    for (size_t i = 0; i < count; ++i) {
      const ConstBytes part = i == 0 ? parts[0].subspan(sent_of_first) : parts[i];
      iov[i] = {const_cast<std::byte*>(part.data()), part.size()};
    }
    msghdr message{};
    message.msg_iov = iov.data();
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) co_return false;
    if (n < 0) {
      asio::error_code error;
      co_await socket_.async_wait(StreamSocket::wait_write,
                                  asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return false;
      continue;
    }
    auto left = static_cast<size_t>(n);
    while (left > 0) {
      const size_t step = std::min(left, parts.front().size() - sent_of_first);
      sent_of_first += step;
      left -= step;
      if (sent_of_first == parts.front().size() && left > 0) {
        parts = parts.subspan(1);
        sent_of_first = 0;
      }
    }
  }
}

}  // namespace ems::fabric::internal
