#pragma once
// A batch of keys as one call: checked, run now or later, its results told in the caller's arrays.
//
// Invariant: the arrays say the same as the outcome. Run later, it owns keys and lists of pieces;
// run now, it borrows them. Bound: EMS_BATCH_MAX items of EMS_PIECES_MAX pieces.
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/call_queue.h"
#include "integrations/c/internal/handles.h"

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

inline const Status& StatusOf(const Status& result) { return result; }
inline const Status& StatusOf(const Result<uint64_t>& result) { return result.status(); }
inline Status StatusOf(const Result<bool>& there) {
  return there.ok() && !*there ? Miss() : there.status();
}

// Tells the results of `count` items in `codes`, which may be NULL.
template <typename Results>
Outcome TellAll(const Results& results, size_t count, ems_status* codes) {
  EMS_CHECK(results.size() == count, "{} results of {} items", results.size(), count);
  Tally tally;
  for (size_t i = 0; i < count; ++i) {
    const ems_status code = tally.Add(StatusOf(results[i]));
    if (codes != nullptr) codes[i] = code;
  }
  return tally.Finish();
}

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
  // `core` must outlive it. `own`: copies keys and lists of pieces.
  // Errors: kInvalidArgument  names the item
  static Result<std::unique_ptr<BatchCall>> Make(const ClientCore* core, BatchKind kind,
                                                 const BatchArguments& arguments, bool own);

  Outcome Run(Duration timeout) override;
  void Refuse(ems_status code) noexcept override;

  // With the client's default, as the whole call may take.
  Duration timeout() const { return core_->TimeoutOf(choice_.timeout(), bytes_); }

 private:
  BatchCall(const ClientCore* core, BatchKind kind, const BatchArguments& arguments)
      : core_(core),
        kind_(kind),
        count_(arguments.count),
        codes_(arguments.codes),
        lengths_(arguments.lengths) {}
  Status Check(const BatchArguments& arguments, bool own);
  bool has_values() const { return kind_ == BatchKind::kPut || kind_ == BatchKind::kGet; }
  // Where `text` stays: copied behind what text_ holds when `own`.
  std::string_view Keep(std::string_view text, bool own);
  void AddItem(std::string_view key, const ems_pieces& value);

  const ClientCore* const core_;
  const BatchKind kind_;
  const size_t count_;
  ems_status* const codes_;
  uint64_t* const lengths_;
  CallChoice choice_;
  uint64_t bytes_ = 0;                   // of all values or rooms
  std::vector<char> text_;               // reserved in advance: does not move
  std::vector<ConstBytes> const_parts_;  // likewise
  std::vector<MutableBytes> mutable_parts_;
  std::vector<PutItem> puts_;
  std::vector<GetItem> gets_;
  std::vector<KeyItem> keys_;
};

}  // namespace ems::capi
