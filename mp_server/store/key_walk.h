#pragma once
// A walk over the keys of one namespace in both tiers, a page at a time.
//
// Invariant: a key that exists from the first page to the last, in whichever tier, comes at least
// once. It may come more than once where an index grows meanwhile or the object goes from one tier
// to the other. One in both tiers comes once, as of DRAM: the shards of both indexes hold the same
// hashes, so a shard's DRAM is walked first, and on the SSD what has been in DRAM since before that
// is passed over.
//
// The SSD's index has hashes alone: keys that are on the SSD alone are read from their records.
// What the disk does not read is left out. Bound: kPageBuckets buckets of the indexes and
// kPageReads records a page; kReadsAtOnce reads under way.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mp_server/index/object_index.h"
#include "mp_server/store/tiered_store.h"
#include "proto/key_page.h"

namespace ems::server {

// Where a walk goes on. Any value is a place, if need be behind the end.
struct KeyPlace {
  bool on_ssd = false;
  uint32_t shard = 0;
  uint32_t bucket = 0;
  uint32_t buckets = 0;  // of the SSD's shard, when it was begun
  int64_t began_ns = 0;  // when the shard's walk began, on the store's clock
};

// One page. Threading: one thread (the connection's "ems-io").
class KeyWalk final {
 public:
  static constexpr uint32_t kPageBuckets = 4096;
  static constexpr uint32_t kPageReads = 256;
  static constexpr uint32_t kReadsAtOnce = 16;

  struct Options {
    std::string prefix;
    uint64_t keys_max = 1;   // it ends with the buckets in which either is reached: some 16 more
    uint64_t bytes_max = 1;  // of keys
    std::function<bool(SlotId)> shown;  // whether keys of a slot are
  };
  // `objects` must outlive it.
  KeyWalk(const TieredNamespace* objects, const KeyPlace& from, Options options)
      : objects_(*objects), options_(std::move(options)), place_(from) {}

  enum class Step : uint8_t {
    kMore,    // ask again, when others have had their turn
    kComing,  // `wake` is called, on another thread, for each key that has come
    kBusy,    // the SSD takes no read now: ask again shortly
    kDone,
  };
  // A turn: at most 256 buckets, under one lock, and a leaf lock for each object found on the SSD.
  // Does not block.
  Step GoOn(const Wake& wake);

  // Once it is done: what was found, and where the rest begins, or that there is none.
  std::vector<wire::ListedKey>& found() { return found_; }
  const KeyPlace& place() const { return place_; }
  bool ended() const { return place_.shard >= ObjectIndex::kShards; }

 private:
  // A key on its way from the SSD; lives until the read has ended.
  struct Reading {
    Reading(const ssd::ObjectName& of, const ssd::Row& at) : name(of), row(at) {}
    const ssd::ObjectName name;
    const ssd::Row row;
    std::string key;
    std::atomic<bool> done{false};
    ssd::ReadOutcome outcome = ssd::ReadOutcome::kFailed;
  };

  bool Full() const;
  // How many more keys there is room for.
  uint64_t Room() const;
  void LookInDram();
  void LookOnSsd();
  Step ReadOnSsd(const Wake& wake);
  void Take(const Reading& read);

  const TieredNamespace& objects_;
  const Options options_;
  KeyPlace place_;
  KeyPlace next_;                                             // behind wanted_ and reads_
  std::vector<std::pair<ssd::ObjectName, ssd::Row>> wanted_;  // whose keys are to be read
  std::vector<std::shared_ptr<Reading>> reads_;
  std::vector<wire::ListedKey> found_;
  uint64_t found_bytes_ = 0;
  uint64_t buckets_ = 0;
  uint64_t read_ = 0;
};

}  // namespace ems::server
