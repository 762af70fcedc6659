#pragma once
// How far each file that the index appends to (logs and MANIFESTs of RocksDB) has been synced, and
// the checksum of all bytes up to there. It tells damage from a torn end, which RocksDB cannot: a
// log that can be read no further recovers to what is in front of that place, whether a power cut
// has torn it or a bit has flipped, and the Puts and Removes behind it are gone without a word.
//
// Invariant: an end is never ahead of the disk: it is written after the sync, and durably forgotten
// before its file goes. It may lag, because it is not synced itself: after a power cut an older one
// may be there, and what lies between the two is judged by RocksDB alone.
//
// Format: a file of two slots of 512 bytes, 4096 apart, written in turn; the newer sound one
// counts. Bound: kFilesMax files, those
// synced last.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::ssd {

// Threading: thread-safe.
class SyncedEnds final {
 public:
  static constexpr size_t kFilesMax = 20;
  static constexpr std::string_view kFileName = "SYNCED";

  // Of the index in `folder`.
  explicit SyncedEnds(std::string folder) : folder_(std::move(folder)) {}
  SyncedEnds(const SyncedEnds&) = delete;
  SyncedEnds& operator=(const SyncedEnds&) = delete;

  // Whether a file of this name has an end that is kept: a log or a MANIFEST.
  static bool Covers(std::string_view file_name);

  // Reads the ends and compares the files with them; nobody else may work on the folder. Cost:
  // reads the files, some tens of MiB at most. Errors: kDataLoss  a file ends too early, is another
  // one or is gone    kUnavailable  the disk refuses
  Status LoadAndCheck();
  // Whether there were any to load. False: the index is new, or of a version that kept none, or the
  // file with them is lost; until Keep they are kept in memory alone.
  bool found();
  // Makes the file. Durable when it returns. Errors: kUnavailable
  Status Keep();

  // So many bytes of the file have been synced. Not durable itself. Errors: kUnavailable
  Status Set(std::string_view file_name, uint64_t bytes, uint64_t checksum);
  // The file is about to be deleted or replaced. Durable when it returns. Errors: kUnavailable
  Status Forget(std::string_view file_name);

 private:
  struct End {
    uint64_t file = 0;  // twice its number, and 1 for a MANIFEST
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // XXH3-64 of so many bytes
  };
  struct Slot;
  struct State {
    fabric::Fd fd;
    uint64_t generation = 0;  // of the slot written last
    std::vector<End> ends;
    bool found = false;
  };
  Status Load(State* state) const;
  Status WriteSlot(State* state) const;
  Status Check(const End& end) const;
  Result<bool> OthersWorkedHere(const std::vector<End>& ends) const;
  std::string PathOf(std::string_view name) const;

  const std::string folder_;
  // Held while a slot is written, so that slots are in order; only threads that sync wait for it.
  Guarded<State> state_;
};

}  // namespace ems::ssd
