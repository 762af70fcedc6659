#pragma once
// The files that values lie in: regions of equal size, each written once from its start to its end,
// then read, then taken for something else as a whole.
//
// Invariant: a region belongs to one namespace and has a sequence that no other use of any region
// has had; both stand in its header on the disk before a record does. Regions are preallocated, so
// their number times their size is what the tier takes of the disk, now and after a restart.
// Bound: regions_max.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "fabric/net/socket.h"
#include "mp_server/ssd/disk/record.h"

namespace ems::ssd {

// Files and their faults. The product's works on the machine's files; another may stand in between.
// Threading: thread-safe.
class RegionFiles {
 public:
  virtual ~RegionFiles() = default;
  // Opens or makes the file; `direct` is false when its file system cannot do direct I/O.
  virtual Result<fabric::Fd> Open(const std::string& path, bool create, bool* direct);
  // Gives the file all its bytes. Errors: kResourceExhausted  no space    kUnavailable
  virtual Status Preallocate(int fd, uint64_t bytes);
  // What the file system of `folder` has left; UINT64_MAX when it does not say.
  virtual uint64_t FreeBytes(const std::string& folder);
  // Durable against power loss. Errors: kUnavailable, kResourceExhausted  and what was written
  // since the last one that succeeded is unknown
  virtual Status Sync(int fd);
  virtual Status Read(int fd, MutableBytes into, uint64_t offset);
  virtual Status Write(int fd, ConstBytes bytes, uint64_t offset);
};

enum class RegionState : uint8_t {
  kFree,    // nothing in it
  kOpen,    // records are being added
  kSealed,  // full
  kBad,     // a write failed here: nothing more is added, what is there can be read
};

struct Region {
  uint32_t id = 0;
  RegionState state = RegionState::kFree;
  uint64_t sequence = 0;
  NamespaceRef ns;
  uint64_t fill_bytes = 0;        // where the next record goes; the header is in front of the first
  uint64_t writes_under_way = 0;  // until their rows are in the index
  // Of it to other regions: its records count until those rows are in the index.
  uint64_t moves_under_way = 0;
  uint64_t moved_objects = 0, moved_bytes = 0;  // in this use, by all moves that were begun
  bool looked_ahead = false;  // what goes next has been looked for since it was begun
  bool unsynced = false;      // written to since the last sync
  bool lost_writes = false;   // a sync has failed
  fabric::Fd fd;
  // Members whose records have been written since the last sync: with a failing one they are lost.
  std::vector<Hash128> unsynced_members;
  std::vector<Hash128> members;  // all that was ever put here in this use; some have moved on
};

// Threading: one thread (the tier's log thread); Fd() of a region may be read by others as long as
// the log lives.
class RegionLog final {
 public:
  struct Options {
    std::string folder;
    uint64_t region_bytes = 0;  // a multiple of kBlockBytes
    uint32_t regions_max = 0;
    uint64_t store_id = 0;
    uint64_t keep_free_bytes = 0;  // of the file system, for the index: no region is made of these
    RegionFiles* files = nullptr;  // must outlive the log
  };
  // Opens what is there. Regions beyond regions_max, or of another size are deleted; one of
  // another store, or whose header cannot be read, is free.
  // Errors: kUnavailable  the folder cannot be made or read
  static Result<std::unique_ptr<RegionLog>> Open(const Options& options);

  // A region that nothing is in: a free one, or one that is made now. It is kFree still. Cost: none
  // that grows with the number of regions.
  // Errors: kOutOfRange  all regions_max are in use    kResourceExhausted  the disk is full
  //   kUnavailable  it refuses for another reason
  Result<Region*> TakeFree();
  // Begins a new use: writes the header. Errors: kUnavailable; the region is kBad then
  Status Begin(Region* region, NamespaceRef ns);
  // The use is over. What is in there is garbage from now on.
  void Release(Region* region);

  // Null: there is none. Cost: O(1).
  Region* Find(uint32_t id);
  // For a walk; regions are never taken out.
  const std::vector<std::unique_ptr<Region>>& regions() {
    looked_at_ += regions_.size();
    return regions_;
  }
  size_t count() const { return regions_.size(); }
  // So many are kFree.
  size_t free_count() const { return free_.size(); }
  // How many regions each namespace has that are not free; none of those that have none.
  const std::map<NamespaceRef, uint64_t>& in_use() const { return in_use_; }
  // Regions that were looked at by all calls so far: what they cost.
  uint64_t looked_at() const { return looked_at_; }
  // Larger than every sequence so far.
  uint64_t next_sequence() const { return next_sequence_; }
  void RaiseSequence(uint64_t above) {
    if (next_sequence_ <= above) next_sequence_ = above + 1;
  }
  const Options& options() const { return options_; }
  bool direct() const { return direct_; }

 private:
  explicit RegionLog(Options options) : options_(std::move(options)) {}
  std::string PathOf(uint32_t id) const;
  Status Load();
  Result<std::unique_ptr<Region>> LoadOne(uint32_t id, const std::string& path);
  Result<Region*> Make();
  Region* Add(std::unique_ptr<Region> region);
  void CountIn(Region* region);

  const Options options_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::unordered_map<uint32_t, Region*> by_id_;
  std::set<uint32_t> free_;  // ids of those that are kFree
  std::map<NamespaceRef, uint64_t> in_use_;
  uint32_t next_id_ = 0;  // all below have been given
  uint64_t looked_at_ = 0;
  uint64_t next_sequence_ = 1;
  bool direct_ = true;
};

}  // namespace ems::ssd
