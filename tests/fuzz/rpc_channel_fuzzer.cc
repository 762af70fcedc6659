// Any bytes, as what a server answers to a request, however they are cut: a whole answer, an error,
// or a wish for more; never a byte beyond what the caller gave room for, and the same outcome
// whatever the pieces.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/checksum.h"
#include "fabric/rpc/rpc_channel.h"

namespace ems::fabric {
namespace {

using wire::FrameHeader;
using wire::Op;
using wire::WireStatus;

constexpr int kStepsMax = 1 << 16;
constexpr uint64_t kRoomMax = 64 * kKiB;  // larger values are read and dropped

// How an input is played: its first four bytes.
struct Play {
  size_t piece = 1;          // bytes sent at once
  bool seal = false;         // headers get the right magic, checksum, op and request id
  Op op = Op::kGet;          // of the requests
  uint64_t table_bytes = 0;  // of an answer, in front of its values
  size_t values = 1;         // the rest of an answer is cut into so many
  size_t parts = 1;          // and each value's room into so many
};

Play PlayOf(ConstBytes bytes) {
  const auto byte = [&](size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  return {.piece = size_t{1} << (byte(0) % 14),
          .seal = (byte(1) & 1) == 0,
          .op = static_cast<Op>(1 + byte(2) % wire::kOpMax),
          .table_bytes = byte(3) % 64,
          .values = 1 + (byte(1) >> 1) % 4,
          .parts = 1 + (byte(1) >> 3) % 3};
}

// Takes an answer apart as `play` says. Each value's room has its exact size, so that a byte beyond
// it is seen.
class PlaySink final : public AnswerSink {
 public:
  explicit PlaySink(const Play& play) : play_(play) {}
  uint64_t OnHeader(const FrameHeader& header) override {
    EMS_CHECK(!begun_);
    begun_ = true;
    left_ = header.body_bytes - std::min(header.body_bytes, play_.table_bytes);
    return play_.table_bytes;
  }
  Status OnTable(ConstBytes table) override {
    EMS_CHECK(begun_ && table.size() == play_.table_bytes && rooms_.empty());
    table_.assign(AsText(table));
    if (!table_.empty() && table_[0] == '!') return Error(StatusCode::kDataLoss, "a bad table");
    return OkStatus();
  }
  bool NextValue(Value* value) override {
    EMS_CHECK(begun_ && sums_.size() == rooms_.size());
    if (rooms_.size() == play_.values) return false;
    const bool last = rooms_.size() + 1 == play_.values;
    const uint64_t bytes = last ? left_ : left_ / 2;
    left_ -= bytes;
    rooms_.emplace_back(bytes <= kRoomMax ? bytes : 0);
    Cut(&rooms_.back());
    *value = {.bytes = bytes, .into = into_};
    return true;
  }
  void OnValue(uint64_t checksum) override {
    EMS_CHECK(sums_.size() + 1 == rooms_.size());
    sums_.push_back(checksum);
    const ConstBytes value = rooms_.back();
    if (!value.empty()) EMS_CHECK(checksum == Checksum(value));
  }
  // Whether it has all that an answer consists of.
  bool whole() const { return begun_ && sums_.size() == play_.values; }
  friend bool operator==(const PlaySink& a, const PlaySink& b) {
    return a.table_ == b.table_ && a.sums_ == b.sums_;
  }

 private:
  void Cut(std::vector<std::byte>* room) {
    into_.clear();
    MutableBytes rest = *room;
    for (size_t i = 0; i < play_.parts; ++i) {
      const size_t part = i + 1 == play_.parts ? rest.size() : rest.size() / 2;
      into_.push_back(rest.first(part));
      rest = rest.subspan(part);
    }
  }

  const Play play_;
  bool begun_ = false;
  uint64_t left_ = 0;
  std::string table_;
  std::vector<std::vector<std::byte>> rooms_;
  std::vector<MutableBytes> into_;
  std::vector<uint64_t> sums_;
};

// What became of a request.
struct Ending {
  bool ok = false;
  WireStatus status = WireStatus::kOk;
  std::string text;
  PlaySink sink;
};

// One channel and its peer, both on this thread. Threading: one thread.
class Rig final {
 public:
  explicit Rig(const Play& play) : play_(play) {
    std::array<int, 2> fds{};
    EMS_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
    peer_ = Fd(fds[0]);
    channel_ = std::make_unique<RpcChannel>(Fd(fds[1]));
  }

  // Sends a request, and bytes of `stream` as its answer until the channel has what it wants.
  Ending Ask(std::string_view* stream) {
    RpcRequest& request = channel_->NewRequest();
    request.header.op = play_.op;
    if (wire::IsKeyed(play_.op)) {
      request.head = {std::byte{'k'}};
      request.key_bytes = 1;
    }
    const ConstBytes value = AsBytes("a value");
    if (play_.op == Op::kPut) request.values = {std::span(&value, 1)};
    Ending ending{.sink = PlaySink(play_)};
    channel_->Start(&ending.sink);
    Status moved = channel_->Advance();
    Swallow();
    for (int steps = 0; moved.ok() && !channel_->done(); ++steps) {
      EMS_CHECK(steps < kStepsMax, "the channel does not end");
      Feed(stream);
      moved = channel_->Advance();
    }
    EMS_CHECK(moved.ok() == channel_->done());
    ending.ok = moved.ok();
    if (!ending.ok) return ending;
    ending.status = channel_->answer().status;
    ending.text = channel_->text();
    EMS_CHECK(ending.text.size() <= wire::kErrorTextMax);
    EMS_CHECK(ending.status == WireStatus::kOk ? ending.text.empty() && ending.sink.whole()
                                               : !ending.sink.whole());
    return ending;
  }

 private:
  void Feed(std::string_view* stream) {
    if (stream->empty()) ::shutdown(peer_.get(), SHUT_WR);
    const std::string_view part = stream->substr(0, play_.piece);
    const ssize_t sent = ::send(peer_.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) stream->remove_prefix(static_cast<size_t>(sent));
  }
  void Swallow() {
    std::array<char, 4096> buffer;
    while (::recv(peer_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
    }
  }

  const Play play_;
  Fd peer_;
  std::unique_ptr<RpcChannel> channel_;
};

// The answers that lie in `stream`, by the lengths that they state: each is made the one that the
// channel waits for.
void Seal(const Play& play, std::string* stream) {
  uint32_t id = 0;
  for (size_t at = 0; at + wire::kHeaderBytes <= stream->size(); ++id) {
    const MutableBytes raw =
        std::as_writable_bytes(std::span(*stream)).subspan(at, wire::kHeaderBytes);
    auto header = wire::ReadRaw<FrameHeader>(raw);
    header.magic = wire::kMagic;
    header.version = wire::kVersionMax;
    header.op = play.op;
    header.request_id = id;
    header.key_bytes = 0;
    const uint64_t there =
        std::min<uint64_t>(header.body_bytes, stream->size() - at - wire::kHeaderBytes);
    const uint64_t covered =
        header.status == WireStatus::kOk ? std::min(there, play.table_bytes) : there;
    wire::SealAnswer(header, AsBytes(*stream).subspan(at + wire::kHeaderBytes, covered), &header);
    std::ranges::copy(wire::RawBytes(header), raw.begin());
    if (header.body_bytes > stream->size() - at - wire::kHeaderBytes) return;
    at += wire::kHeaderBytes + header.body_bytes;
  }
}

std::vector<Ending> AskAll(const Play& play, std::string_view stream) {
  constexpr int kRequestsMax = 8;
  Rig rig(play);
  std::vector<Ending> endings;
  while (static_cast<int>(endings.size()) < kRequestsMax) {
    endings.push_back(rig.Ask(&stream));
    if (!endings.back().ok) break;
  }
  return endings;
}

}  // namespace
}  // namespace ems::fabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ems::fabric;  // NOLINT(google-build-using-namespace)
  if (size < 4) return 0;
  const ems::ConstBytes bytes = std::as_bytes(std::span(data, size));
  Play play = PlayOf(bytes);
  std::string stream(ems::AsText(bytes.subspan(4)));
  if (play.seal) Seal(play, &stream);
  const Ending cut = AskAll(play, stream).front();
  // The first answer again, at once. Bytes behind it are refused if they are there by then.
  play.piece = stream.size() + 1;
  const Ending whole = AskAll(play, stream).front();
  if (!cut.ok) EMS_CHECK(!whole.ok);
  if (!whole.ok) return 0;
  EMS_CHECK(cut.status == whole.status && cut.text == whole.text && cut.sink == whole.sink);
  return 0;
}
