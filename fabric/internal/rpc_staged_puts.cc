// Puts from registered memory: the part of a connection that copies them.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "common/copy.h"
#include "common/logging.h"
#include "fabric/internal/rpc_connection.h"

namespace ems::fabric::internal {
namespace {

using wire::FrameHeader;
using wire::WireStatus;

// A staged value is copied so far before the other connections of the thread have their turn.
constexpr size_t kStagedStepBytes = 4 * kMiB;
constexpr size_t kStagedCopyBytes = kMiB;
// While the sender still copies its value in: as much as it does in some 20 us.
constexpr size_t kStagedFollowBytes = 256 * kKiB;
constexpr Duration kFollowPause = std::chrono::microseconds(100);

}  // namespace

asio::awaitable<bool> RpcConnection::ServePutStaged(const FrameHeader& request,
                                                    std::string_view key) {
  wire::StagedValue staged;
  if (!co_await ReadExact(std::as_writable_bytes(std::span(&staged, 1)))) co_return false;
  SetTransferDeadline(staged.bytes);
  answer_.Clear();
  const Vigil::Put awake(vigil_);
  WireStatus status = co_await CopyStaged({&request, key, request.slot_id(), staged.bytes}, staged);
  co_await SettlePuts(std::span(&status, 1));
  co_return co_await WriteAnswer(request, status);
}

asio::awaitable<bool> RpcConnection::ServeMultiPutStaged(const FrameHeader& request) {
  if (!co_await ReadItemTable(request)) co_return false;
  answer_.Clear();
  std::vector<wire::StagedValue> values(request.item_count);
  if (!co_await ReadExact(std::as_writable_bytes(std::span(values)))) co_return false;
  const Vigil::Put awake(vigil_);
  SetTransferDeadline(wire::kBatchBytesMax);  // of all of them together
  std::vector<WireStatus> statuses(request.item_count);
  uint32_t next = 0;
  for (wire::ItemReader items(request, table_); !items.done(); ++next) {
    const auto [head, key] = items.Next();
    const PutRequest put{&request, key, SlotId(head.slot), head.value_bytes, next};
    statuses[next] = head.value_bytes != values[next].bytes
                         ? WireStatus::kInvalid
                         : co_await CopyStaged(put, values[next]);
    if (PeerHungUp()) co_return false;
  }
  co_return co_await AnswerPuts(request, statuses);
}

asio::awaitable<WireStatus> RpcConnection::CopyStaged(const PutRequest& put,
                                                      const wire::StagedValue& staged) {
  if (put.value_bytes > options_.value_bytes_max) co_return WireStatus::kTooLarge;
  const Result<StagedBytes> source = session_->Staged(staged);
  if (!source.ok()) {
    EMS_LOG(kDebug, "fabric", "staged Put refused: {}", Message(source.status()));
    co_return StatusOfRefusal(source.status());
  }
  PutTarget target;
  const Outcome outcome = co_await Settle([&] {
    target = PutTarget();
    return session_->BeginPut(put, &target);
  });
  if (outcome.status != WireStatus::kOk) co_return outcome.status;
  OpenPut open(session_.get());
  hasher_.Start(target.piece_sums);
  ConstBytes left = source->bytes;
  const size_t step = source->progress == nullptr ? kStagedCopyBytes : kStagedFollowBytes;
  for (MutableBytes into = target.value; !left.empty();) {
    const ConstBytes part = left.first(std::min(left.size(), step));
    left = left.subspan(part.size());
    if (source->progress != nullptr &&
        !co_await AwaitProgress(*source->progress, source->bytes.size() - left.size()))
      co_return WireStatus::kDeadline;
    if (target.discard) {
      hasher_.Update(part);
    } else {
      // What is checksummed is the copy: the sender may be writing still.
      CopyValue(into.first(part.size()), part.data(), &hasher_);
      into = into.subspan(part.size());
    }
    copied_ += part.size();
    if (copied_ >= kStagedStepBytes) {
      copied_ = 0;
      co_await asio::post(socket_.get_executor(), asio::use_awaitable);  // others have their turn
    }
  }
  const uint64_t checksum = hasher_.Finish();
  // A sender that has given up closes first and uses its memory for something else then. As long as
  // it has not closed, what was copied is what it wanted to be stored.
  if (PeerHungUp()) co_return WireStatus::kDeadline;
  co_return open.Release()->EndPut(checksum, checksum);
}

// The transfer deadline closes the connection of a sender that does not go on.
asio::awaitable<bool> RpcConnection::AwaitProgress(const std::atomic<uint64_t>& progress,
                                                   uint64_t bytes) {
  const auto there = [&] { return progress.load(std::memory_order_acquire) >= bytes; };
  if (there()) co_return true;
  copied_ += kStagedFollowBytes;  // looking takes the others' time, too
  if (ComesTrueSoon(there)) co_return true;
  for (Duration pause = kFollowPause; !there(); pause = std::min(2 * pause, 64 * kFollowPause)) {
    timer_.expires_after(pause);
    asio::error_code error;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (PeerHungUp()) co_return false;
  }
  co_return true;
}

bool RpcConnection::PeerHungUp() {
  if (!socket_.is_open()) return true;  // it was hung up on, at a deadline
  pollfd poll{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&poll, 1, 0) > 0;
}

}  // namespace ems::fabric::internal
