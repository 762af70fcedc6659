#pragma once
// What tells a store that has lost rows from a whole one. RocksDB ends its logs and MANIFESTs where
// they can be read no further, whether a power cut has torn them there or a bit has flipped, and
// what was acknowledged behind that place is gone without a word.
//
// The ledger is a row that each change writes anew: how many changes there were, and the sum of all
// other rows. Rows that are lost in the middle do not add up. Where the end is lost, rows and
// ledger are those of an earlier time: the note, a file of its own, knows how many changes there
// were.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::controller {

struct RowLedger {
  uint64_t changes = 0;
  uint64_t sum = 0;  // of the hashes of all rows, modulo 2^64

  void Add(std::string_view key, std::string_view value);
  void Take(std::string_view key, std::string_view value);

  std::string ToText() const;
  static std::optional<RowLedger> FromText(std::string_view text);
};

// Invariant: it is never ahead of the disk: a change is noted when it has been synced. It may lag,
// because it is not synced itself. Format: two records {number, checksum}, 4096 bytes apart,
// written in turn; the larger sound one counts.
// Threading: one thread (holder).
class ChangeNote final {
 public:
  ChangeNote() = default;
  // Makes the file if there is none. Errors: kUnavailable
  static Result<ChangeNote> Open(const std::string& path);
  // 0: none has been noted, or the file is damaged.
  uint64_t last() const { return last_; }
  // A write that fails leaves an earlier number. Cost: a system call, no sync.
  void Set(uint64_t change);

 private:
  fabric::Fd file_;
  uint64_t last_ = 0;
};

}  // namespace ems::controller
