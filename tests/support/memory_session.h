#pragma once
// The smallest service behind an RpcServer: values in a map, and a record of how the transport
// treated its sessions.
//
// Invariant: a value is in the map only after EndPut with a matching checksum; calls against the
// order that Session documents are counted as `violations`.
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "common/guarded.h"
#include "fabric/rpc/rpc_session.h"

namespace ems::testing {

// Threading: thread-safe; the hooks are set before the server starts.
class MemoryStore final : public fabric::SessionFactory {
 public:
  struct Counts {
    std::atomic<int> sessions{0}, live_sessions{0}, begun{0}, ended{0}, aborted{0}, handled{0},
        sent{0}, violations{0};
  };
  using Value = std::shared_ptr<const std::string>;

  // Asked before each request or item; another status than kOk is its answer.
  std::function<fabric::Outcome(const wire::FrameHeader&, SlotId)> gate;
  std::atomic<bool> damaged{false};  // a Get's checksum is of other bytes
  std::atomic<uint8_t> copies{0};    // what answers to Get say of copies (wire::CopyHint)
  std::string only_hot;              // of which key alone; empty: of all
  std::string error_text;
  uint32_t retry_ms = 1;
  uint64_t value_bytes_max = 64 * kMiB;
  uint64_t boot_id = 77;
  ClusterId cluster = kNoCluster;
  std::function<void()> on_staged;    // called before a staged value is copied
  std::string staged;                 // the memory that session 1 with secret 2 has registered
  std::atomic<uint64_t> progress{0};  // of staged values that name a word for it, whichever
  std::atomic<int> taken_over{-1};  // the descriptor of a connection that was attached; the test's
  std::optional<std::string> peer_words = "";  // the answer to Peers; nullopt: it is not known
  std::optional<std::string> view_bytes = "";  // the same of View
  std::atomic<int> views_told{0};
  uint64_t batch_bytes_max = wire::kBatchBytesMax;  // MultiGet answers kBatchFull beyond it

  std::unique_ptr<fabric::Session> NewSession() override;
  Counts& counts() { return counts_; }
  void SetView(ViewVersion version) { view_.store(version.packed()); }
  ViewVersion view() const { return ViewVersion::FromPacked(view_.load()); }

  Value Find(std::string_view key) {
    auto values = values_.Lock();
    auto at = values->find(std::string(key));
    return at == values->end() ? nullptr : at->second;
  }
  void Insert(std::string_view key, std::string value) {
    auto values = values_.Lock();
    (*values)[std::string(key)] = std::make_shared<const std::string>(std::move(value));
  }
  bool Erase(std::string_view key) {
    auto values = values_.Lock();
    return values->erase(std::string(key)) != 0;
  }
  size_t size() {
    auto values = values_.Lock();
    return values->size();
  }
  wire::WireStatus Store(std::string key, std::string value, bool overwrite) {
    auto values = values_.Lock();
    auto at = values->find(key);
    if (at != values->end() && *at->second == value) return wire::WireStatus::kOk;
    if (at != values->end() && !overwrite) return wire::WireStatus::kAlreadyExists;
    (*values)[std::move(key)] = std::make_shared<const std::string>(std::move(value));
    return wire::WireStatus::kOk;
  }

 private:
  Counts counts_;
  std::atomic<uint64_t> view_{ViewVersion(1, 1).packed()};
  Guarded<std::map<std::string, Value>> values_;
};

// Threading: one thread (the connection's).
class MemorySession final : public fabric::Session {
 public:
  explicit MemorySession(MemoryStore* store) : store_(store) {
    store_->counts().sessions++;
    store_->counts().live_sessions++;
  }
  ~MemorySession() override {
    if (putting_) store_->counts().violations++;
    store_->counts().live_sessions--;
  }

  fabric::Outcome Handle(const wire::FrameHeader& request, std::string_view key, ConstBytes body,
                         fabric::Answer* answer) override {
    if (putting_) store_->counts().violations++;
    store_->counts().handled++;
    if (wire::IsMulti(request.op)) return HandleMulti(request, body, answer);
    if (wire::IsKeyed(request.op)) {
      if (fabric::Outcome gated = Gate(request, request.slot_id()); Refused(gated)) return gated;
      return {.status = HandleKeyed(request, key, body, answer)};
    }
    if (request.op == wire::Op::kHello) {
      wire::HelloBody hello{.boot_id = store_->boot_id, .value_bytes_max = store_->value_bytes_max};
      hello.SetCluster(store_->cluster);
      Append(wire::RawBytes(hello), answer);
    } else if (request.op == wire::Op::kStats) {
      Append(AsBytes("{\"objects\":1}"), answer);
    } else if (request.op == wire::Op::kPeers) {
      if (!store_->peer_words) return {.status = wire::WireStatus::kUnimplemented};
      Append(AsBytes(*store_->peer_words), answer);
    } else if (request.op == wire::Op::kView) {
      ++store_->views_told;
      if (!store_->view_bytes) return {.status = wire::WireStatus::kUnimplemented};
      Append(AsBytes(*store_->view_bytes), answer);
    } else if (request.op == wire::Op::kScan) {
      refused_ = true;
      return {.status = wire::WireStatus::kUnimplemented};
    }
    return {};
  }

  fabric::Outcome BeginPut(const fabric::PutRequest& put, fabric::PutTarget* target) override {
    if (putting_) store_->counts().violations++;
    if (fabric::Outcome gated = Gate(*put.header, put.slot); Refused(gated)) return gated;
    store_->counts().begun++;
    putting_ = true;
    put_key_ = put.key;
    overwrite_ = (put.header->flags & wire::kFlagOverwrite) != 0;
    put_value_.assign(put.value_bytes, '\x5a');
    sums_.assign(PieceCount(put.value_bytes), 0);
    target->value = std::as_writable_bytes(std::span(put_value_));
    target->piece_sums = sums_;
    return {};
  }
  Result<fabric::StagedBytes> Staged(const wire::StagedValue& value) override {
    if (store_->on_staged) store_->on_staged();
    const ConstBytes all = AsBytes(store_->staged);
    if (value.session != 1 || value.secret != 2 || value.offset > all.size() ||
        value.bytes > all.size() - value.offset)
      return Error(StatusCode::kInvalidArgument, "nothing there");
    fabric::StagedBytes staged;
    staged.bytes = all.subspan(value.offset, value.bytes);
    if (value.progress_at != wire::kAllThere) staged.progress = &store_->progress;
    return staged;
  }
  void TakeOver(fabric::Fd socket, NamespaceRef) override {
    store_->taken_over.store(::dup(socket.get()));
  }
  wire::WireStatus EndPut(uint64_t checksum, uint64_t expected) override {
    store_->counts().ended++;
    if (!std::exchange(putting_, false)) store_->counts().violations++;
    if (checksum != CombinePieces(sums_) || checksum != Checksum(AsBytes(put_value_))) {
      store_->counts().violations++;
    }
    if (checksum != expected) return wire::WireStatus::kChecksumMismatch;
    return store_->Store(put_key_, std::move(put_value_), overwrite_);
  }
  void AbortPut() override {
    store_->counts().aborted++;
    if (!std::exchange(putting_, false)) store_->counts().violations++;
    put_value_.clear();
  }

  std::string_view ErrorText() override {
    return refused_ ? std::string_view(store_->error_text) : std::string_view();
  }
  uint32_t retry_ms() override { return store_->retry_ms; }
  ViewVersion view_version() override { return store_->view(); }
  void Sent() override {
    store_->counts().sent++;
    lent_.clear();
  }

 private:
  static bool Refused(const fabric::Outcome& outcome) {
    return outcome.status != wire::WireStatus::kOk || outcome.wait > Duration::zero();
  }
  fabric::Outcome Gate(const wire::FrameHeader& request, SlotId slot) {
    const fabric::Outcome outcome = store_->gate ? store_->gate(request, slot) : fabric::Outcome{};
    refused_ = Refused(outcome);
    return outcome;
  }
  static void Append(ConstBytes bytes, fabric::Answer* answer) {
    answer->body.insert(answer->body.end(), bytes.begin(), bytes.end());
  }
  ConstBytes Lend(MemoryStore::Value value) {
    lent_.push_back(std::move(value));
    return AsBytes(*lent_.back());
  }

  uint8_t CopiesOf(std::string_view key) const {
    return store_->only_hot.empty() || key == store_->only_hot ? store_->copies.load() : uint8_t{0};
  }

  wire::WireStatus HandleKeyed(const wire::FrameHeader& request, std::string_view key,
                               ConstBytes body, fabric::Answer* answer) {
    if (request.op == wire::Op::kRemove) {
      return store_->Erase(key) ? wire::WireStatus::kOk : wire::WireStatus::kMiss;
    }
    MemoryStore::Value value = store_->Find(key);
    if (value == nullptr) return wire::WireStatus::kMiss;
    if (request.op == wire::Op::kExists) {
      answer->checksum = value->size();
      return wire::WireStatus::kOk;
    }
    ConstBytes bytes = Lend(std::move(value));
    if (request.op == wire::Op::kGet) {
      answer->flags = CopiesOf(key);
      answer->checksum = Checksum(bytes) ^ (store_->damaged ? 1 : 0);
    } else {
      const auto range = wire::ReadRaw<wire::RangeBody>(body);
      if (range.offset > bytes.size() || range.length > bytes.size() - range.offset) {
        return wire::WireStatus::kOutOfRange;
      }
      bytes = bytes.subspan(range.offset, range.length);
      PieceHasher hasher;
      hasher.Start({}, kPieceBytes - range.offset % kPieceBytes);
      hasher.Update(bytes);
      answer->checksum = hasher.Finish();
    }
    answer->payload.push_back(bytes);
    return wire::WireStatus::kOk;
  }

  fabric::Outcome HandleMulti(const wire::FrameHeader& request, ConstBytes body,
                              fabric::Answer* answer) {
    wire::ItemReader reader(request, body);
    uint64_t total = 0;
    for (uint32_t index = 0; !reader.done(); ++index) {
      const wire::ItemReader::Item item = reader.Next();
      wire::ItemResult result;
      result.status = Gate(request, SlotId(item.head.slot)).status;
      MemoryStore::Value value =
          result.status == wire::WireStatus::kOk ? store_->Find(item.key) : nullptr;
      if (result.status == wire::WireStatus::kOk) result = ItemOf(request.op, item.key, value);
      if (request.op == wire::Op::kMultiGet && result.status == wire::WireStatus::kOk) {
        if (total > 0 && total + result.value_bytes + 1 > store_->batch_bytes_max) {
          result = {.status = wire::WireStatus::kBatchFull};
          total = store_->batch_bytes_max;  // later items do not fit either
        } else {
          total += result.value_bytes;
          answer->payload.push_back(Lend(std::move(value)));
        }
      }
      if (request.op == wire::Op::kMultiGetRange && result.status == wire::WireStatus::kOk) {
        result = RangeItemOf(wire::RangeOf(request, body, index), std::move(value), answer);
      }
      Append(wire::RawBytes(result), answer);
    }
    return {};
  }
  wire::ItemResult RangeItemOf(wire::RangeBody range, MemoryStore::Value value,
                               fabric::Answer* answer) {
    const ConstBytes bytes = Lend(std::move(value));
    wire::ItemResult result;
    if (range.offset > bytes.size() || range.length > bytes.size() - range.offset) {
      result.status = wire::WireStatus::kOutOfRange;
      return result;
    }
    PieceHasher hasher;
    hasher.Start({}, kPieceBytes - range.offset % kPieceBytes);
    hasher.Update(bytes.subspan(range.offset, range.length));
    result.checksum = hasher.Finish();
    result.value_bytes = range.length;
    result.whole_bytes = static_cast<uint32_t>(bytes.size());
    if (range.length > 0) answer->payload.push_back(bytes.subspan(range.offset, range.length));
    return result;
  }
  wire::ItemResult ItemOf(wire::Op op, std::string_view key, const MemoryStore::Value& value) {
    wire::ItemResult result;
    if (value == nullptr) {
      result.status = wire::WireStatus::kMiss;
      return result;
    }
    if (op == wire::Op::kMultiRemove) {
      store_->Erase(key);
      return result;
    }
    result.value_bytes = value->size();
    if (op == wire::Op::kMultiGet) result.copies = CopiesOf(key);
    if (op == wire::Op::kMultiGet) result.checksum = Checksum(AsBytes(*value));
    return result;
  }

  MemoryStore* store_;
  bool putting_ = false;
  bool overwrite_ = false;
  bool refused_ = false;  // by the gate, just now
  std::string put_key_, put_value_;
  std::vector<uint64_t> sums_;
  std::vector<MemoryStore::Value> lent_;
};

inline std::unique_ptr<fabric::Session> MemoryStore::NewSession() {
  return std::make_unique<MemorySession>(this);
}

}  // namespace ems::testing
