// Any bytes, as what a peer sends on a data-plane connection, however they are cut: each request is
// answered once and in order, or the connection ends; each Put that began has ended; and nothing is
// stored but whole values whose checksum was right.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio.hpp>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/checksum.h"
#include "common/metrics.h"
#include "fabric/rpc/internal/http_on_data_port.h"
#include "fabric/rpc/internal/rpc_connection.h"
#include "tests/support/memory_session.h"

namespace ems::fabric {
namespace {

using internal::RpcConnection;
using testing::MemoryStore;
using wire::FrameHeader;
using wire::Op;
using wire::WireStatus;

constexpr uint64_t kValueMax = 4096;
constexpr int kPollsMax = 4096;
constexpr size_t kPiecesMax = 128;

// How an input is played: its first two bytes.
struct Play {
  size_t piece = 1;     // bytes sent at once; in kPiecesMax pieces at most
  bool seal = false;    // frames get the right magic, version and checksums
  bool damage = false;  // but those of keys, tables and values stay as they are
  bool refuse = false;  // the session refuses keys of odd slots
  bool expire = false;  // after half of the pieces every deadline has passed
};

Play PlayOf(ConstBytes bytes) {
  const auto first = std::to_integer<unsigned>(bytes[0]);
  const auto second = std::to_integer<unsigned>(bytes[1]);
  return {.piece = size_t{1} << (first % 13),
          .seal = (second & 1) == 0,
          .damage = (second & 8) != 0,
          .refuse = (second & 2) != 0,
          .expire = (second & 4) != 0};
}

// A frame as it was sent, for the answer to be compared with.
struct Sent {
  Op op;
  uint32_t request_id;
};

// Puts the right trailer behind a value of so many bytes at the front of `rest`, which loses both.
// False: they are not there.
bool SealValue(const FrameHeader& request, uint64_t bytes, uint32_t item, MutableBytes* rest) {
  if (rest->size() < wire::kTrailerBytes || bytes > rest->size() - wire::kTrailerBytes)
    return false;
  const uint64_t sum = wire::FoldChecksum(Checksum(rest->first(bytes)), request, item);
  std::ranges::copy(wire::RawBytes(sum), rest->subspan(bytes).begin());
  *rest = rest->subspan(bytes + wire::kTrailerBytes);
  return true;
}

// Gives a request the checksums that key, table and values have, as far as these are in `rest`,
// what follows the header.
void SealBody(FrameHeader* header, MutableBytes rest) {
  const uint64_t heads = header->item_count * sizeof(wire::ItemHead);
  std::vector<wire::ItemHead> items;
  if (header->op == Op::kMultiPut && heads <= rest.size()) {
    header->table_bytes = static_cast<uint32_t>(heads);
    for (uint64_t at = 0; at < heads; at += sizeof(wire::ItemHead)) {
      items.push_back(wire::ReadRaw<wire::ItemHead>(rest.subspan(at)));
      header->table_bytes += items.back().key_bytes;
    }
  }
  const uint64_t body = wire::CoveredBytes(*header);
  if (header->key_bytes > rest.size() || body > rest.size() - header->key_bytes) return;
  header->checksum = Hash64(rest.first(header->key_bytes + body));
  rest = rest.subspan(header->key_bytes + body);
  if (header->op == Op::kPut && header->body_bytes >= wire::kTrailerBytes)
    (void)SealValue(*header, header->body_bytes - wire::kTrailerBytes, 0, &rest);
  for (uint32_t i = 0; i < items.size(); ++i) {
    if (!SealValue(*header, items[i].value_bytes, i, &rest)) return;
  }
}

// The frames that lie in `stream` one after the other, by the lengths that they state. With `seal`
// they are made valid first.
std::vector<Sent> Frames(const Play& play, std::string* stream) {
  std::vector<Sent> frames;
  for (size_t at = 0; at + wire::kHeaderBytes <= stream->size();) {
    const MutableBytes raw =
        std::as_writable_bytes(std::span(*stream)).subspan(at, wire::kHeaderBytes);
    auto header = wire::ReadRaw<FrameHeader>(raw);
    if (play.seal) {
      header.magic = wire::kMagic;
      // One foreign version stays as it is.
      if (header.version != wire::kVersionMax + 1) header.version = wire::kVersionMax;
      if (!play.damage) {
        SealBody(&header, std::as_writable_bytes(std::span(*stream)).subspan(at + raw.size()));
      }
      wire::Seal(&header);
      std::ranges::copy(wire::RawBytes(header), raw.begin());
    }
    frames.push_back({header.op, header.request_id});
    const uint64_t left = stream->size() - at - wire::kHeaderBytes;
    if (header.body_bytes > left) break;
    at += wire::kHeaderBytes + std::min(left, header.key_bytes + header.body_bytes);
  }
  return frames;
}

// The answers, which are those to the first of `frames`, and the last of them perhaps cut off.
void CheckAnswers(std::string_view answers, const std::vector<Sent>& frames) {
  for (size_t i = 0; answers.size() >= wire::kHeaderBytes; ++i) {
    if (answers == internal::kHttpAnswer) return;
    EMS_CHECK(i < frames.size());
    FrameHeader header;
    const Status parsed = wire::ParseAnswer(AsBytes(answers.substr(0, wire::kHeaderBytes)),
                                            frames[i].op, frames[i].request_id, &header);
    EMS_CHECK(parsed.ok(), "{}", Message(parsed));
    if (header.status != WireStatus::kOk) EMS_CHECK(header.body_bytes <= wire::kErrorTextMax);
    answers.remove_prefix(wire::kHeaderBytes);
    if (answers.size() < header.body_bytes) return;
    answers.remove_prefix(header.body_bytes);
  }
}

// Without the times at which the answers were made.
std::string WithoutClocks(std::string answers) {
  for (size_t at = 0; at + wire::kHeaderBytes <= answers.size();) {
    if (std::string_view(answers).substr(at) == internal::kHttpAnswer) break;
    const MutableBytes raw =
        std::as_writable_bytes(std::span(answers)).subspan(at, wire::kHeaderBytes);
    auto header = wire::ReadRaw<FrameHeader>(raw);
    header.answer_clock = 0;
    wire::Seal(&header);
    std::ranges::copy(wire::RawBytes(header), raw.begin());
    at += wire::kHeaderBytes + header.body_bytes;
  }
  return answers;
}

// One connection and its peer, both on this thread. Threading: one thread.
class Rig final {
 public:
  Rig(const Play& play, asio::io_context* context) : play_(play), context_(context) {
    store_.staged = std::string(kValueMax, 's');
    store_.value_bytes_max = kValueMax;
    store_.gate = [refuse = play.refuse](const FrameHeader&, SlotId slot) {
      const bool no = refuse && slot.value() % 2 == 1;
      return Outcome{.status = no ? WireStatus::kWrongOwner : WireStatus::kOk};
    };
    std::array<int, 2> fds{};
    constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    EMS_CHECK(::socketpair(AF_UNIX, kType, 0, fds.data()) == 0);
    peer_ = Fd(fds[0]);
    StreamSocket socket(*context_, asio::generic::stream_protocol(AF_UNIX, 0), fds[1]);
    connection_ = std::make_shared<RpcConnection>(
        std::move(socket), options_, metrics_, store_.NewSession(), &busy_, &busy_poll_, &turns_);
    asio::co_spawn(*context_, connection_->Run(), [this](const std::exception_ptr& failure) {
      EMS_CHECK(failure == nullptr);
      ended_ = true;
    });
  }
  ~Rig() { const Fd taken_over(store_.taken_over.load()); }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // Sends all of it and hangs up; what was answered.
  std::string Run(std::string_view stream) {
    const size_t all = stream.size();
    const size_t piece = std::max(play_.piece, all / kPiecesMax);
    while (!stream.empty() && !ended_) {
      const std::string_view part = stream.substr(0, piece);
      const ssize_t sent =
          ::send(peer_.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) stream.remove_prefix(static_cast<size_t>(sent));
      Step();
      if (sent < 0 && errno != EAGAIN) break;
      if (play_.expire && stream.size() < all / 2) connection_->CheckDeadline(TimePoint::max());
    }
    ::shutdown(peer_.get(), SHUT_WR);
    // Who has hung up keeps nothing waiting but a step of a timer.
    for (int polls = 0; !ended_; ++polls) {
      EMS_CHECK(polls < kPollsMax, "the connection does not end");
      context_->run_one_for(std::chrono::milliseconds(1));
      Step();
    }
    return std::move(answers_);
  }
  void CheckEnd() {
    const MemoryStore::Counts& counts = store_.counts();
    EMS_CHECK(busy_.load() == 0 && counts.violations == 0);
    EMS_CHECK(counts.begun == counts.ended + counts.aborted);
    connection_.reset();
    EMS_CHECK(counts.live_sessions == 0);
    EMS_CHECK(store_.size() <= static_cast<size_t>(counts.ended.load()));
  }

 private:
  // Lets the connection go on as far as it can, and takes what it answers.
  void Step() {
    context_->poll();
    std::array<char, 8192> buffer;
    while (true) {
      const ssize_t got = ::recv(peer_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got <= 0) return;
      answers_.append(buffer.data(), static_cast<size_t>(got));
      context_->poll();
    }
  }

  const Play play_;
  asio::io_context* const context_;
  const RpcServerOptions options_{.value_bytes_max = kValueMax};
  const RpcMetrics metrics_{};
  MemoryStore store_;
  std::atomic<int> busy_{0};
  BusyPoll busy_poll_;
  Turns turns_;
  Fd peer_;
  std::shared_ptr<RpcConnection> connection_;
  std::string answers_;
  bool ended_ = false;
};

bool IsTimed(const Sent& frame) {
  return frame.op == Op::kPutStaged || frame.op == Op::kMultiPutStaged || frame.op == Op::kAttach;
}

}  // namespace
}  // namespace ems::fabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ems::fabric;  // NOLINT(google-build-using-namespace)
  if (size < 2) return 0;
  static asio::io_context context(1);
  static const auto work = asio::make_work_guard(context);
  const ems::ConstBytes bytes = std::as_bytes(std::span(data, size));
  const Play play = PlayOf(bytes);
  std::string stream(ems::AsText(bytes.subspan(2)));
  const std::vector<Sent> frames = Frames(play, &stream);
  Rig rig(play, &context);
  const std::string answers = rig.Run(stream);
  rig.CheckEnd();
  if (play.seal) CheckAnswers(answers, frames);
  // The same however it is cut. What comes behind an Attach is another protocol's, and a staged Put
  // looks at whether its peer has hung up.
  if (play.expire || std::ranges::any_of(frames, IsTimed)) return 0;
  Rig whole({.piece = stream.size() + 1, .seal = play.seal, .refuse = play.refuse}, &context);
  EMS_CHECK(WithoutClocks(whole.Run(stream)) == WithoutClocks(answers));
  whole.CheckEnd();
  return 0;
}
