#include "fabric/rpc/internal/rpc_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "fabric/rpc/internal/http_on_data_port.h"

namespace ems::fabric::internal {
namespace {

using wire::FrameHeader;
using wire::Op;
using wire::WireStatus;

constexpr size_t kTableKeepBytes = 256 * kKiB;
constexpr size_t kPartsKeep = 1024;
constexpr Duration kLinger = std::chrono::seconds(1);
constexpr Duration kTimePerByte = std::chrono::nanoseconds(100);  // 10 MB/s

bool IsPut(Op op) {
  return op == Op::kPut || op == Op::kMultiPut || op == Op::kPutStaged || op == Op::kMultiPutStaged;
}

bool IsLocal(const StreamSocket& socket) {
  asio::error_code error;
  const auto endpoint = socket.local_endpoint(error);
  return !error && endpoint.protocol().family() == AF_UNIX;
}

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

RpcConnection::RpcConnection(StreamSocket socket, const RpcServerOptions& options,
                             const RpcMetrics& metrics, std::unique_ptr<Session> session,
                             std::atomic<int>* busy, BusyPoll* busy_poll, Turns* turns)
    : options_(options),
      metrics_(metrics),
      session_(std::move(session)),
      busy_(busy),
      busy_poll_(busy_poll),
      turns_(turns),
      stream_(std::move(socket), turns),
      wait_(&stream_.socket(), turns),
      receiver_(&stream_, &wait_, session_.get(), options.value_bytes_max, options.crew),
      served_{.local = IsLocal(stream_.socket()), .socket = stream_.socket().native_handle()} {
  metrics_.connections.Add(1);
  session_->SetWaker(wait_.waker());
}

RpcConnection::~RpcConnection() { metrics_.connections.Add(-1); }

void RpcConnection::Close() {
  stream_.Close();
  wait_.Wake();
}

void RpcConnection::CheckDeadline(TimePoint now) {
  const auto passed = static_cast<int64_t>(stream_.passed_bytes() - passed_before_);
  const Duration waited = stream_.waited(now) - waited_before_;
  if (deadline_ == TimePoint::max() || now < deadline_ + passed * kTimePerByte + waited) return;
  metrics_.timeouts.Add();
  if (putting_) metrics_.slow_puts.Add();
  Close();
}

void RpcConnection::MakeRoom() {
  metrics_.made_room.Add();
  Close();
}

void RpcConnection::SetDeadline(Duration timeout, TimePoint now) {
  deadline_ = timeout > Duration::zero() ? now + timeout : TimePoint::max();
  waited_before_ = stream_.waited(now);
  passed_before_ = stream_.passed_bytes();
}

asio::awaitable<void> RpcConnection::Run() {
  const auto self = shared_from_this();
  for (uint64_t passed = 0; co_await ServeOne(); passed = stream_.passed_bytes()) {
    const TimePoint now = Clock::System().Now();
    turns_->OnServed(now, stream_.passed_bytes() - passed);
    served_.took = now - begun_;
    served_.sending = now - answered_;
    served_.waited = wait_.waited();
    session_->OnServed(request_, served_);
  }
  session_->Sent();
  Close();
}

asio::awaitable<bool> RpcConnection::ServeOne() {
  FrameHeader& request = request_ = FrameHeader();
  if (!co_await ReadHeaderAndKey(&request)) co_return false;
  begun_ = Clock::System().Now();
  receiver_.OnRequest();
  const InHand in_hand(busy_);
  const bool staged = request.op == Op::kPutStaged || request.op == Op::kMultiPutStaged;
  const BusyPoll::Request awake(busy_poll_, this, staged ? BusyPoll::kSoonStaged : BusyPoll::kSoon);
  // The key stays in the read-ahead buffer, which is only drained, never refilled, until the
  // request is done.
  const std::string_view key = served_.key = AsText(stream_.TakeAhead(request.key_bytes));
  SetDeadline(options_.transfer_timeout, begun_);
  putting_ = IsPut(request.op);
  // Zero is a sender that does not say how long it waits; one that has gone waits no more.
  const bool says = request.deadline_ms > 0 || (request.flags & wire::kFlagUntil) != 0;
  const Duration left = wire::TimeLeft(request, begun_);
  wait_.Begin(says ? std::max<Duration>(left, std::chrono::milliseconds(1)) : left);
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
    idle_since_ = Clock::System().Now();
    if (stream_.ahead().empty() && !co_await stream_.ReadMore()) co_return false;
    idle_since_ = TimePoint::max();
    SetDeadline(options_.header_timeout);
    while (stream_.ahead().size() < wire::kHeaderBytes && !LooksLikeHttp(stream_.ahead())) {
      if (!co_await stream_.ReadMore()) co_return false;
    }
    if (LooksLikeHttp(stream_.ahead())) {
      co_await AnswerHttp();
      co_return false;
    }
    const Status parsed = wire::ParseRequest(stream_.TakeAhead(wire::kHeaderBytes),
                                             options_.value_bytes_max, request);
    spoken_ = true;
    if (parsed.ok()) break;
    if (!co_await RefuseFrame(*request, parsed)) co_return false;
  }
  while (stream_.ahead().size() < request->key_bytes) {
    if (!co_await stream_.ReadMore()) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> RpcConnection::RefuseFrame(const FrameHeader& request, const Status& why) {
  metrics_.bad_frames.Add();
  EMS_LOG(kDebug, "fabric", "frame refused: {}", Message(why));
  if (why.code() == StatusCode::kDataLoss) co_return false;  // nothing in it can be believed
  const uint64_t rest = request.key_bytes + request.body_bytes;
  SetDeadline(options_.transfer_timeout);
  // An unknown op or version with a believable length is skipped, and the connection goes on.
  const bool goes_on =
      (why.code() == StatusCode::kUnimplemented || why.code() == StatusCode::kFailedPrecondition) &&
      request.body_bytes <= wire::kBatchBytesMax;
  if (goes_on && !co_await stream_.Skip(rest)) co_return false;
  const ConstBytes text = AsBytes(Message(why));
  answer_.Clear();
  answer_.body.assign(text.begin(), text.end());
  if (!co_await WriteAnswer(request, StatusOfRefusal(why))) co_return false;
  if (goes_on) co_return true;
  // The peer may still be sending: closing now would reset the connection and lose the answer. So:
  // a second to read it.
  asio::error_code ignored;
  stream_.socket().shutdown(StreamSocket::shutdown_send, ignored);
  SetDeadline(kLinger);
  co_await stream_.Skip(rest);
  co_return false;
}

asio::awaitable<bool> RpcConnection::RefuseDamaged(const FrameHeader& request, uint64_t rest) {
  metrics_.bad_frames.Add();
  EMS_LOG(kDebug, "fabric", "damaged request refused: {}", wire::OpName(request.op));
  if (!co_await stream_.Skip(rest)) co_return false;
  constexpr std::string_view kText = "the request was damaged on its way: nothing was done";
  answer_.Clear();
  answer_.body.assign(AsBytes(kText).begin(), AsBytes(kText).end());
  co_return co_await WriteAnswer(request, WireStatus::kChecksumMismatch);
}

asio::awaitable<void> RpcConnection::AnswerHttp() {
  metrics_.bad_frames.Add();
  const ConstBytes text = AsBytes(kHttpAnswer);
  co_await stream_.Write(std::span(&text, 1));
}

asio::awaitable<bool> RpcConnection::ServeOther(const FrameHeader& request, std::string_view key) {
  if (IsMulti(request.op)) {
    if (const auto answered = co_await ReadItemTable(request)) co_return *answered;
  } else {
    table_.clear();
    if (request.body_bytes > 0 && !co_await stream_.Append(&table_, request.body_bytes))
      co_return false;
    if (!wire::RequestMatches(request, key, table_)) co_return co_await RefuseDamaged(request, 0);
  }
  SetDeadline(Duration::zero());  // it is this server's turn
  const Outcome outcome = co_await wait_.Settle([&] {
    answer_.Clear();
    return session_->Handle(request, key, table_, &answer_);
  });
  const bool written = co_await WriteAnswer(request, outcome.status);
  if (request.op != Op::kAttach || outcome.status != WireStatus::kOk) co_return written;
  // The peer waits for the answer before it says more, so nothing is read ahead here.
  if (!written || !stream_.ahead().empty()) co_return false;
  asio::error_code error;
  const int fd = stream_.socket().release(error);
  if (!error) session_->TakeOver(Fd(fd), request.ns());
  co_return false;
}

asio::awaitable<bool> RpcConnection::ServePut(const FrameHeader& request, std::string_view key) {
  if (!wire::RequestMatches(request, key, {}))
    co_return co_await RefuseDamaged(request, request.body_bytes);
  WireStatus status = WireStatus::kOk;
  const PutRequest put{&request, key, request.slot_id(), request.body_bytes - wire::kTrailerBytes};
  if (!co_await receiver_.Receive(put, &status)) co_return false;
  answer_.Clear();
  co_await SettlePuts(std::span(&status, 1));
  co_return co_await WriteAnswer(request, status);
}

asio::awaitable<std::optional<bool>> RpcConnection::ReadItemTable(const FrameHeader& request) {
  const uint64_t covered = wire::CoveredBytes(request);
  table_.clear();
  if (!co_await stream_.Append(&table_, covered)) co_return false;
  if (!wire::RequestMatches(request, {}, table_))
    co_return co_await RefuseDamaged(request, request.body_bytes - covered);
  const ConstBytes heads = ConstBytes(table_).first(request.item_count * sizeof(wire::ItemHead));
  const auto measured = wire::ItemTableBytes(request, heads, options_.value_bytes_max);
  if (!measured.ok()) co_return co_await RefuseFrame(request, measured.status());
  co_return std::nullopt;
}

asio::awaitable<bool> RpcConnection::ServeMultiPut(const FrameHeader& request) {
  if (const auto answered = co_await ReadItemTable(request)) co_return *answered;
  std::vector<WireStatus> statuses(request.item_count);
  uint32_t next = 0;
  for (wire::ItemReader items(request, table_); !items.done(); ++next) {
    const auto [head, key] = items.Next();
    const PutRequest put{&request, key, SlotId(head.slot), head.value_bytes, next, head.idle_ms};
    EMS_CHECK(next < statuses.size(), "more than {} items", statuses.size());
    if (!co_await receiver_.Receive(put, &statuses[next])) co_return false;
  }
  co_return co_await AnswerPuts(request, statuses);
}

asio::awaitable<void> RpcConnection::SettlePuts(std::span<WireStatus> statuses) {
  SetDeadline(Duration::zero());  // all has come: it is this server's turn
  putting_ = false;
  co_await wait_.Settle([&] { return session_->AwaitPuts(statuses); });
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

asio::awaitable<bool> RpcConnection::ServePutStaged(const FrameHeader& request,
                                                    std::string_view key) {
  wire::StagedValue staged;
  if (!co_await stream_.ReadExact(std::as_writable_bytes(std::span(&staged, 1)))) co_return false;
  if (!wire::RequestMatches(request, key, wire::RawBytes(staged)))
    co_return co_await RefuseDamaged(request, 0);
  SetDeadline(options_.transfer_timeout);
  answer_.Clear();
  WireStatus status =
      co_await receiver_.Copy({&request, key, request.slot_id(), staged.bytes}, staged);
  co_await SettlePuts(std::span(&status, 1));
  co_return co_await WriteAnswer(request, status);
}

asio::awaitable<bool> RpcConnection::ServeMultiPutStaged(const FrameHeader& request) {
  if (const auto answered = co_await ReadItemTable(request)) co_return *answered;
  answer_.Clear();
  SetDeadline(options_.transfer_timeout);
  std::vector<WireStatus> statuses(request.item_count);
  uint32_t next = 0;
  for (wire::ItemReader items(request, table_); !items.done(); ++next) {
    const auto [head, key] = items.Next();
    const PutRequest put{&request, key, SlotId(head.slot), head.value_bytes, next};
    EMS_CHECK(next < statuses.size(), "more than {} items", statuses.size());
    const wire::StagedValue value = wire::StagedOf(request, table_, next);
    statuses[next] = head.value_bytes != value.bytes ? WireStatus::kInvalid
                                                     : co_await receiver_.Copy(put, value);
    if (stream_.PeerHungUp()) co_return false;
  }
  co_return co_await AnswerPuts(request, statuses);
}

asio::awaitable<bool> RpcConnection::WriteAnswer(const FrameHeader& request, WireStatus status) {
  if (status != WireStatus::kOk && answer_.body.empty()) {
    std::string_view text = session_->ErrorText();
    text = text.substr(0, wire::kErrorTextMax);
    answer_.body.assign(AsBytes(text).begin(), AsBytes(text).end());
  }
  if (status != WireStatus::kOk) answer_.payload.clear();
  const TimePoint now = Clock::System().Now();
  FrameHeader header;
  header.op = request.op;
  header.request_id = request.request_id;
  header.retry_ms = session_->retry_ms();
  header.namespace_id = request.namespace_id;
  header.answer_clock = wire::ClockMs(now);
  header.view = session_->view_version().packed();
  header.slot = request.slot;
  header.status = status;
  header.item_count = request.item_count;
  header.body_bytes = answer_.body.size();
  for (const ConstBytes part : answer_.payload) header.body_bytes += part.size();
  header.checksum = answer_.checksum;
  header.whole_bytes = answer_.whole_bytes;
  header.flags = answer_.flags;
  if (status == WireStatus::kOk) wire::FoldResults(request, answer_.body);
  wire::SealAnswer(request, answer_.body, &header);

  SetDeadline(options_.transfer_timeout, now);
  answered_ = now;
  served_.status = status;
  served_.answer_bytes = header.body_bytes;
  putting_ = false;
  parts_.clear();
  parts_.push_back(wire::RawBytes(header));
  parts_.push_back(answer_.body);
  parts_.insert(parts_.end(), answer_.payload.begin(), answer_.payload.end());
  const bool written = co_await stream_.Write(parts_);
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

}  // namespace ems::fabric::internal
