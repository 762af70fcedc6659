#pragma once
// A proxy between one client of the data plane and a server that knows frames, and harms some of
// them: flips a bit, leaves a request or an answer out, sends either twice, puts an answer out of
// its order, holds one back for a moment. Which ones is a function of the seed and of how many
// frames there were before.
//
// Invariant: a request that has reached the server has been carried out, as often as it was sent,
// before the client hears that it was answered or that the connection is over. What arrives after
// its caller has given it up is a fault of its own (docs/FAULTS.md, known limits).
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "tests/support/scripted_server.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {

enum class Harm : uint8_t { kNone, kFlip, kDrop, kTwice, kOutOfOrder, kDelay };
inline constexpr size_t kHarmCount = 6;
using HarmCounts = std::array<uint64_t, kHarmCount>;  // by Harm

// The next frame of a connection; nullopt when it is over.
inline std::optional<std::string> ReadFrame(WirePeer* peer) {
  std::optional<std::string> frame = peer->Receive(wire::kHeaderBytes);
  if (!frame) return std::nullopt;
  const wire::FrameHeader header = HeaderOf(*frame);
  const std::optional<std::string> rest = peer->Receive(header.key_bytes + header.body_bytes);
  if (!rest) return std::nullopt;
  return *frame + *rest;
}

// The last answer that brought all the values that were asked for, of all clients of one server.
// One of another client is put in front of a client's own: a value says by its checksum which keys
// were asked for. Nothing else does, so that no other answer is given to another client, nor one
// to the very same request, which may be of an earlier time.
struct LastValues {
  const void* of = nullptr;
  uint64_t request = 0;  // FrameHeader::checksum of what was asked
  std::string answer;
};

// Threading: thread-safe; one connection at a time is served by a thread of its own.
class FrameShaker final {
 public:
  // `values` outlives this.
  FrameShaker(std::string target, uint64_t seed, Guarded<LastValues>* values)
      : target_(std::move(target)),
        values_(values),
        random_(seed),
        server_([this](WirePeer* client, int) { Carry(client); }) {}

  std::string address() const { return server_.address(); }
  HarmCounts counts() {
    auto counts = counts_.Lock();
    return *counts;
  }

 private:
  static constexpr uint64_t kDelayUsMax = 2000;

  // One frame in seven is harmed.
  Harm Choose() {
    const uint64_t dice = random_() % 100;
    Harm harm = Harm::kNone;
    if (dice < 5) {
      harm = Harm::kFlip;
    } else if (dice < 7) {
      harm = Harm::kDrop;
    } else if (dice < 10) {
      harm = Harm::kTwice;
    } else if (dice < 13) {
      harm = Harm::kOutOfOrder;
    } else if (dice < 15) {
      harm = Harm::kDelay;
    }
    auto counts = counts_.Lock();
    ++(*counts)[static_cast<size_t>(harm)];
    return harm;
  }
  std::string Flipped(const std::string& frame) {
    return WithFlippedBit(frame, random_() % (frame.size() * 8));
  }
  void Delay() {
    StopFlag never;
    never.WaitFor(std::chrono::microseconds(random_() % kDelayUsMax));
  }

  void Carry(WirePeer* client) {
    WirePeer server = WirePeer::Connect(target_);
    std::string before;  // the last answer on this connection
    while (const std::optional<std::string> request = ReadFrame(client)) {
      const Harm harm = Choose();
      if (harm == Harm::kDrop) return;
      if (harm == Harm::kDelay) Delay();
      const bool twice = harm == Harm::kTwice;
      std::string sent = harm == Harm::kFlip ? Flipped(*request) : *request;
      if (twice) sent += *request;
      if (!server.Send(sent)) return;
      const std::optional<std::string> answer = ReadFrame(&server);
      const std::optional<std::string> second = twice ? ReadFrame(&server) : std::nullopt;
      if (!answer || (twice && !second)) return;
      const std::string& own = twice && random_() % 2 == 0 ? *second : *answer;
      const std::string back = Harmed(HeaderOf(*request).checksum, own, before);
      if (back.empty() || !client->Send(back)) return;
      before = own;
    }
  }
  // What the client gets; nothing: its connection ends.
  std::string Harmed(uint64_t request, const std::string& answer, const std::string& before) {
    const wire::FrameHeader header = HeaderOf(answer);
    const std::string other = ValuesOfAnother(request, answer, header);
    switch (Choose()) {
      case Harm::kFlip:
        return Flipped(answer);
      case Harm::kDrop:
        return {};
      case Harm::kTwice:
        return answer + answer;
      case Harm::kOutOfOrder:
        return (other.empty() ? before : other) + answer;
      case Harm::kDelay:
        Delay();
        return answer;
      case Harm::kNone:
        break;
    }
    return answer;
  }
  static bool BringsAllValues(const std::string& answer, const wire::FrameHeader& header) {
    const wire::Op op = header.op;
    if (header.status != wire::WireStatus::kOk || !wire::IsRead(op)) return false;
    if (op == wire::Op::kExists || op == wire::Op::kMultiExists || op == wire::Op::kScan)
      return false;
    ConstBytes results = AsBytes(answer).subspan(wire::kHeaderBytes);
    for (int item = 0; wire::IsMulti(op) && item < header.item_count; ++item) {
      if (wire::ReadRaw<wire::ItemResult>(results).status != wire::WireStatus::kOk) return false;
      results = results.subspan(sizeof(wire::ItemResult));
    }
    return true;
  }
  // Those of another client that came last, with this answer's number; none if this has none.
  std::string ValuesOfAnother(uint64_t request, const std::string& answer,
                              wire::FrameHeader header) {
    if (!BringsAllValues(answer, header)) return {};
    auto last = values_->Lock();
    const LastValues other = std::exchange(*last, {this, request, answer});
    last.Unlock();
    if (other.of == this || other.request == request || other.answer.empty()) return {};
    const uint32_t number = header.request_id;
    header = HeaderOf(other.answer);
    header.request_id = number;
    wire::Seal(&header);
    return std::string(AsText(wire::RawBytes(header))) + other.answer.substr(wire::kHeaderBytes);
  }

  const std::string target_;
  Guarded<LastValues>* const values_;
  std::mt19937_64 random_;  // of the server's thread
  Guarded<HarmCounts> counts_;
  ScriptedServer server_;
};

}  // namespace ems::testing
