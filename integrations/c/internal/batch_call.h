#pragma once
// A batch of keys as one call: checked, run now or later, its results told in the caller's arrays.
//
// Invariant: the arrays say the same as the outcome. Run later, it owns keys and lists of pieces;
// run now, it borrows them. Bound: EMS_BATCH_MAX items of EMS_PIECES_MAX pieces.
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/call_queue.h"
#include "mp_sdk/client.h"

namespace ems::capi {

// The code of a batch from those of its items: EMS_OK, or the first that is neither ok nor a miss,
// or a miss. Feed it in order. Threading: one thread.
class Tally final {
 public:
  // Keeps a status with its index; returns its code.
  ems_status Add(const Status& status);
  // With the number of ok items as value. Cost: allocates a text, unless all are ok or misses.
  Outcome Finish() const;

 private:
  size_t at_ = 0, ok_ = 0, missed_ = 0;
  size_t failed_at_ = 0;
  Status failed_;
};

enum class BatchKind { kPut, kGet, kExists, kRemove };

// Arguments of a batch as they came, so far unchecked.
struct BatchArguments {
  const ems_item* items = nullptr;
  size_t count = 0;
  const ems_call_options* options = nullptr;
  ems_status* codes = nullptr;
  uint64_t* lengths = nullptr;
};

class BatchCall final : public Call {
 public:
  // `client` must outlive it. `own`: copies keys and lists of pieces.
  // Errors: kInvalidArgument  names the item
  static Result<std::unique_ptr<BatchCall>> Make(Client* client, BatchKind kind,
                                                 const BatchArguments& arguments, bool own);

  Outcome Run(Duration timeout) override;
  void Refuse(ems_status code) noexcept override;

  Duration timeout() const { return choice_.timeout(); }  // 0: the client's default
  uint64_t bytes() const { return bytes_; }               // of all values or rooms

 private:
  BatchCall(Client* client, BatchKind kind, const BatchArguments& arguments)
      : client_(client),
        kind_(kind),
        count_(arguments.count),
        codes_(arguments.codes),
        lengths_(arguments.lengths) {}
  Status Check(const BatchArguments& arguments, bool own);
  bool has_values() const { return kind_ == BatchKind::kPut || kind_ == BatchKind::kGet; }
  // Where `text` stays: copied behind what text_ holds when `own`.
  std::string_view Keep(std::string_view text, bool own);
  void AddItem(std::string_view key, const ems_pieces& value);
  void Tell(size_t i, const Status& status, uint64_t length, Tally* tally);

  Client* const client_;
  const BatchKind kind_;
  const size_t count_;
  ems_status* const codes_;
  uint64_t* const lengths_;
  CallChoice choice_;
  uint64_t bytes_ = 0;
  std::vector<char> text_;               // reserved in advance: does not move
  std::vector<ConstBytes> const_parts_;  // likewise
  std::vector<MutableBytes> mutable_parts_;
  std::vector<PutItem> puts_;
  std::vector<GetItem> gets_;
  std::vector<KeyItem> keys_;
};

}  // namespace ems::capi
