#pragma once
// Turns the open items of a batch into at most one frame for each server, and answers back into
// results.
//
// Bound: a frame carries kBatchItemsMax items and kBatchBytesMax bytes of values; what does not fit
// goes in a later round.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cluster/dht_view.h"
#include "fabric/rpc/rpc_channel.h"
#include "mp_sdk/internal/batch.h"
#include "mp_sdk/internal/local_servers.h"

namespace ems::internal {

// The items that go to one server in one frame. Threading: one thread.
class Frame final : public fabric::AnswerSink {
 public:
  // `staging`: how to name values that the server can fetch from this client's memory. Such values
  // and others do not share a frame: the first item decides, the rest waits for the next round.
  Frame(Batch* batch, NodeId node, std::optional<StagedSession> staging = std::nullopt)
      : batch_(batch), node_(node), staging_(staging) {}

  NodeId node() const { return node_; }
  std::span<BatchItem* const> items() const { return items_; }
  // False when the frame is full, or of the other kind.
  bool TryAdd(BatchItem* item);
  // Finishes the items whose value is above the server's largest with kOutOfRange and leaves them
  // out: one of them would cost the whole frame. False when none is left.
  bool DropLarger(uint64_t value_bytes_max);
  // Writes the request for `view`. `request` must live until the answer is there.
  void Encode(ViewVersion view, fabric::RpcRequest* request);
  // The server cannot be asked: items for which holders of copies are left (Batch::copies) stay
  // open, to ask the next one; the others get this.
  void Fail(const Status& status);
  // The connection ended with `why` after so many bytes of the request had been sent. Finishes the
  // items that the server may have carried out and that must not be carried out twice: their
  // outcome is not known. Errors: kDeadlineExceeded  `why` is    kAborted  otherwise
  void FinishUnknown(uint64_t sent_bytes, const Status& why);
  // Whether its server is asked for copies of hot keys. Such items share no frame with others.
  bool is_of_hot_copies() const { return items_[0]->hot_at != kNoNode; }
  // Until when its answer is waited for: where copies are asked for, half of the time is the
  // owner's.
  TimePoint GiveUpAt() const;
  // Values whose checksum did not match.
  uint64_t checksum_mismatches() const { return mismatches_; }
  // Items answered with kWrongOwner, kStaleNamespace or kRetryLater stay open, and those with
  // kNotDurable that may be repeated, which counts as kRetryLater; the most telling of these.
  wire::WireStatus unsettled() const { return unsettled_; }
  void SetWholeStatus(wire::WireStatus status, std::string_view text);
  // The server did not take values from this client's memory: those items stay open and go with
  // their bytes.
  bool staging_refused() const { return staging_refused_; }

  MutableBytes Expected() const override;
  uint64_t OnHeader(const wire::FrameHeader& header) override;
  Status OnTable(ConstBytes table) override;
  bool NextValue(Value* value) override;
  void OnValue(uint64_t checksum) override;

 private:
  bool multi() const { return items_.size() > 1 || batch_->asks_tier; }
  bool brings_values() const {
    return batch_->op == wire::Op::kGet || batch_->op == wire::Op::kGetRange;
  }
  // Whether the value lies where the server can read it.
  bool IsStaged(const BatchItem& item) const {
    return staging_ && item.staged_offset &&
           staging_->Has(*item.staged_offset, item.value.size_bytes()) &&
           (item.staged_progress == wire::kAllThere ||
            staging_->Has(item.staged_progress, sizeof(uint64_t)));
  }
  // Another frame of its race has the item's memory.
  bool HasLost() const {
    return batch_->race != nullptr && batch_->race->winner != nullptr &&
           batch_->race->winner != this;
  }
  // A copy was no use: the owner is asked.
  static void LeaveHot(BatchItem* item);
  // What came is damaged, or what was sent: the item stays open and goes once more, then it is
  // finished.
  void OnDamaged(BatchItem* item, Status status);
  void Settle(BatchItem* item, wire::WireStatus status, std::string_view text);
  void OnNotDurable(BatchItem* item, std::string_view text);

  Batch* batch_;
  NodeId node_;
  std::optional<StagedSession> staging_;
  const fabric::RpcRequest* request_ = nullptr;
  bool staged_ = false;  // of the two kinds
  bool staging_refused_ = false;
  std::vector<BatchItem*> items_;
  uint64_t value_bytes_ = 0;
  std::vector<wire::ItemResult> results_;  // of a Multi answer
  uint64_t values_left_ = 0;  // bytes of a Multi answer for the values of items yet to be read
  uint64_t single_body_bytes_ = 0;
  uint64_t single_whole_bytes_ = 0;
  uint64_t single_checksum_ = 0;
  size_t next_ = 0;     // item whose value comes next
  size_t current_ = 0;  // item whose value is coming
  MutableBytes grown_;  // of an item that allocates
  uint64_t mismatches_ = 0;
  wire::WireStatus unsettled_ = wire::WireStatus::kOk;
};

// Groups the open items by owner, or by the holder of copies that an item has come to; behind the
// last of these it has the status that its owner gave. Items without an owner are finished with
// kUnavailable. `locals` (may be nullptr) knows which servers take staged values.
std::vector<std::unique_ptr<Frame>> PlanFrames(Batch* batch, const DhtView& view,
                                               LocalServers* locals = nullptr);

}  // namespace ems::internal
