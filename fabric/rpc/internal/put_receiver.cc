#include "fabric/rpc/internal/put_receiver.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/copy.h"
#include "common/logging.h"
#include "fabric/net/busy_poll.h"

namespace ems::fabric::internal {
namespace {

using wire::WireStatus;

// Values are received in parts of this size, so that a part is still in the L2 cache when it is
// checksummed.
constexpr size_t kReceivePartBytes = 128 * kKiB;
// In the middle of a value the thread is woken for so many bytes at a time, not for each segment:
// waking an idle core costs the sender more than copying the bytes.
constexpr uint64_t kWakeBytes = 256 * kKiB;
// At its start sooner, so that receiving and sending overlap from there on. Room is made then.
constexpr uint64_t kFirstBytes = 64 * kKiB;
// What comes at once anyway: to wait for less costs two system calls and saves no waking.
constexpr uint64_t kSegmentBytes = 64 * kKiB;
constexpr size_t kStagedCopyBytes = kMiB;
// What a copy takes of a turn beside its bytes: many small values are work, too.
constexpr size_t kStagedCallBytes = 4 * kKiB;
// While the sender still copies its value in: as much as it does in some 20 us.
constexpr size_t kStagedFollowBytes = 256 * kKiB;
constexpr Duration kFollowPause = std::chrono::microseconds(100);

// Aborts a Put that is not ended, also when a stopping server destroys the coroutine in the middle.
class OpenPut final {
 public:
  explicit OpenPut(Session* session) : session_(session) {}
  ~OpenPut() {
    if (session_ != nullptr) session_->AbortPut();
  }
  OpenPut(const OpenPut&) = delete;
  OpenPut& operator=(const OpenPut&) = delete;
  Session* Release() { return std::exchange(session_, nullptr); }

 private:
  Session* session_;
};

// Hashers keep their state on the heap; one a thread that helps.
PieceHasher& ThreadHasher() {
  static thread_local PieceHasher hasher;
  return hasher;
}

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

asio::awaitable<Outcome> PutReceiver::Begin(const PutRequest& put, PutTarget* target) {
  return wait_->Settle([this, &put, target] {
    *target = PutTarget();
    const Outcome outcome = session_->BeginPut(put, target);
    EMS_CHECK(outcome.status != WireStatus::kOk || outcome.wait > Duration::zero() ||
                  target->discard || target->value.size() >= put.value_bytes,
              "{} bytes of room for a value of {}", target->value.size(), put.value_bytes);
    return outcome;
  });
}

asio::awaitable<bool> PutReceiver::Receive(const PutRequest& put, WireStatus* status) {
  if (!co_await stream_->AwaitBytes(std::min(put.value_bytes + wire::kTrailerBytes, kFirstBytes)))
    co_return false;
  PutTarget target;
  *status = (co_await Begin(put, &target)).status;
  const bool accepted = *status == WireStatus::kOk;
  if (!accepted) target.discard = true;
  uint64_t expected = 0;
  OpenPut open(accepted ? session_ : nullptr);
  if (!co_await ReceiveBytes(target, accepted, put.value_bytes, &expected)) co_return false;
  if (Session* const session = open.Release()) {
    *status =
        session->EndPut(hasher_.Finish(), wire::FoldChecksum(expected, *put.header, put.index));
  }
  co_return true;
}

asio::awaitable<bool> PutReceiver::ReceiveBytes(const PutTarget& target, bool hash,
                                                uint64_t value_bytes, uint64_t* trailer) {
  if (hash) hasher_.Start(target.piece_sums);
  const MutableBytes trailer_bytes = std::as_writable_bytes(std::span(trailer, 1));
  uint64_t received = 0;
  while (received < value_bytes + wire::kTrailerBytes) {
    // The next part of the value and, with the last part, the trailer: exactly, never a byte of the
    // next frame.
    const uint64_t value_left = value_bytes - std::min(received, value_bytes);
    const MutableBytes value =
        target.discard ? stream_->Scratch(value_left)
                       : target.value.subspan(value_bytes - value_left,
                                              std::min<uint64_t>(value_left, kReceivePartBytes));
    const size_t trailer_done = received > value_bytes ? received - value_bytes : 0;
    const MutableBytes tail =
        value.size() == value_left ? trailer_bytes.subspan(trailer_done) : MutableBytes();
    const uint64_t left = value_bytes + wire::kTrailerBytes - received;
    const uint64_t wake_bytes = left <= kSegmentBytes ? 1 : std::min(left, kWakeBytes);
    const size_t n = co_await stream_->ReadSome(value, tail, wake_bytes);
    if (n == 0) co_return false;
    if (hash) hasher_.Update(value.first(std::min(n, value.size())));
    received += n;
  }
  co_return true;
}

asio::awaitable<WireStatus> PutReceiver::Copy(const PutRequest& put,
                                              const wire::StagedValue& staged) {
  if (put.value_bytes > value_bytes_max_) co_return WireStatus::kTooLarge;
  const Result<StagedBytes> source = session_->Staged(staged);
  if (!source.ok()) {
    EMS_LOG(kDebug, "fabric", "staged Put refused: {}", Message(source.status()));
    co_return StatusOfRefusal(source.status());
  }
  EMS_CHECK(source->bytes.size() == put.value_bytes, "{} bytes of a staged value of {}",
            source->bytes.size(), put.value_bytes);
  const size_t turn = stream_->BytesOfTurn();
  const size_t step =
      std::min(turn, source->progress == nullptr ? kStagedCopyBytes : kStagedFollowBytes);
  if (source->progress != nullptr &&
      !co_await AwaitProgress(*source->progress, std::min(put.value_bytes, step))) {
    co_return WireStatus::kDeadline;
  }
  PutTarget target;
  const Outcome outcome = co_await Begin(put, &target);
  if (outcome.status != WireStatus::kOk) co_return outcome.status;
  OpenPut open(session_);
  const bool shared = crew_ != nullptr && crew_->Wants(put.value_bytes) &&
                      source->progress == nullptr && !target.discard &&
                      target.piece_sums.size() == PieceCount(put.value_bytes);
  if (shared) co_await CopyShared(source->bytes, target);
  hasher_.Start(target.piece_sums);
  for (uint64_t at = shared ? put.value_bytes : 0; at < put.value_bytes;) {
    const ConstBytes part = source->bytes.subspan(at, std::min(put.value_bytes - at, step));
    if (source->progress != nullptr &&
        !co_await AwaitProgress(*source->progress, at + part.size())) {
      co_return WireStatus::kDeadline;
    }
    if (target.discard) {
      hasher_.Update(part);
    } else {
      // What is checksummed is the copy: the sender may be writing still.
      CopyValue(target.value.subspan(at, part.size()), part.data(), &hasher_);
    }
    at += part.size();
    stream_->CountPassed(part.size());
    copied_ += part.size() + kStagedCallBytes;
    if (copied_ >= turn) {
      copied_ = 0;
      co_await stream_->Yield();
    }
  }
  const uint64_t checksum = shared ? CombinePieces(target.piece_sums) : hasher_.Finish();
  // A sender that abandons the Put closes first and reuses its memory only then. As long as
  // it has not closed, what was copied is what it wanted to be stored.
  if (stream_->PeerHungUp()) co_return WireStatus::kDeadline;
  co_return open.Release()->EndPut(checksum, checksum);
}

asio::awaitable<void> PutReceiver::CopyShared(ConstBytes from, const PutTarget& target) {
  constexpr uint64_t kShare = CopyCrew::kShareBytes;
  static_assert(kShare <= kStagedCopyBytes && kShare % kPieceBytes == 0);
  const uint64_t step = kShare * (crew_->helpers() + 1);
  for (uint64_t at = 0; at < from.size(); at += step) {
    const uint64_t bytes = std::min(step, from.size() - at);
    const auto copy = [&](size_t i) {
      const uint64_t begin = at + i * kShare;
      const ConstBytes part = from.subspan(begin, std::min(kShare, at + bytes - begin));
      PieceHasher& hasher = ThreadHasher();
      hasher.Start(target.piece_sums.subspan(begin / kPieceBytes, PieceCount(part.size())));
      CopyValue(target.value.subspan(begin, part.size()), part.data(), &hasher);
      (void)hasher.Finish();
    };
    crew_->Run((bytes + kShare - 1) / kShare, copy);
    stream_->CountPassed(bytes);
    co_await stream_->Yield();
  }
}

// The transfer deadline closes the connection of a sender that does not go on.
asio::awaitable<bool> PutReceiver::AwaitProgress(const std::atomic<uint64_t>& progress,
                                                 uint64_t bytes) {
  const auto there = [&] { return progress.load(std::memory_order_acquire) >= bytes; };
  if (there()) co_return true;
  copied_ += kStagedFollowBytes;  // looking takes the others' time, too
  if (ComesTrueSoon(there)) co_return true;
  for (Duration pause = kFollowPause; !there(); pause = std::min(2 * pause, 64 * kFollowPause)) {
    co_await wait_->Pause(pause);
    if (stream_->PeerHungUp()) co_return false;
  }
  co_return true;
}

}  // namespace ems::fabric::internal
