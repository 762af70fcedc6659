#include "mp_server/store/key_walk.h"

#include <algorithm>
#include <utility>

#include "mp_server/store/namespace_store.h"

namespace ems::server {
namespace {

// Both indexes are in as many shards, by the same bits of the hash.
static_assert(ObjectIndex::kShards == ssd::SsdIndex::kShards);

constexpr uint32_t kTurnBuckets = ssd::SsdIndex::kBucketsMax;
constexpr uint32_t kLeastBuckets = 16;  // a bucket has about one object, of any namespace

uint32_t Milliseconds(int64_t ns) {
  return static_cast<uint32_t>(std::clamp<int64_t>(ns / 1'000'000, 0, wire::kUnknownMs - 1));
}

}  // namespace

bool KeyWalk::Full() const {
  return ended() || found_.size() >= options_.keys_max || found_bytes_ >= options_.bytes_max ||
         buckets_ >= kPageBuckets || read_ >= kPageReads;
}

uint64_t KeyWalk::Room() const {
  const uint64_t bytes = options_.bytes_max - std::min(options_.bytes_max, found_bytes_);
  return std::max<uint64_t>(
      1, std::min(options_.keys_max - std::min<uint64_t>(options_.keys_max, found_.size()),
                  bytes / kKeyBytesMax));
}

KeyWalk::Step KeyWalk::GoOn(const Wake& wake) {
  if (!reads_.empty() || !wanted_.empty()) return ReadOnSsd(wake);
  if (Full()) return Step::kDone;
  buckets_ += kTurnBuckets;
  if (!place_.on_ssd) {
    LookInDram();
  } else {
    LookOnSsd();
    if (!wanted_.empty()) return ReadOnSsd(wake);
    place_ = next_;
  }
  return Full() ? Step::kDone : Step::kMore;
}

void KeyWalk::LookInDram() {
  const int64_t now = objects_.dram_->clock().Now().time_since_epoch().count();
  if (place_.bucket == 0) place_.began_ns = now;
  ObjectIndex::SweepCursor cursor{place_.shard, place_.bucket};
  std::vector<ObjectIndex::Listed> keys;
  (void)objects_.dram_->objects().index().SomeKeys(options_.prefix, Room(), &cursor, &keys);
  for (ObjectIndex::Listed& one : keys) {
    if (!options_.shown(SlotId(one.slot))) continue;
    found_bytes_ += one.key.size();
    found_.push_back({.key = std::move(one.key),
                      .value_bytes = one.value_bytes,
                      .tier = wire::ItemTier::kDram,
                      .age_ms = Milliseconds(now - one.linked_ns),
                      .idle_ms = Milliseconds(now - one.used_ns)});
  }
  if (cursor.shard == place_.shard) {
    place_.bucket = static_cast<uint32_t>(cursor.bucket);
  } else if (objects_.store_->has_ssd()) {
    place_ = {.on_ssd = true, .shard = place_.shard, .began_ns = place_.began_ns};
  } else {
    place_ = {.shard = place_.shard + 1};
  }
}

void KeyWalk::LookOnSsd() {
  ssd::SsdIndex::Cursor cursor{place_.shard, place_.bucket, place_.buckets};
  ssd::SsdIndex::Stored stored;
  const uint64_t most = std::clamp<uint64_t>(Room(), kLeastBuckets, kTurnBuckets);
  const bool there =
      objects_.store_->ssd_ != nullptr && objects_.store_->ssd_->SomeStored(&cursor, &stored, most);
  next_ = place_;
  next_.bucket = static_cast<uint32_t>(cursor.bucket);
  next_.buckets = static_cast<uint32_t>(cursor.buckets);
  if (!there || cursor.shard != place_.shard) next_ = {.shard = place_.shard + 1};
  for (const auto& [name, row] : stored) {
    const bool mine = name.ns == objects_.ns_ && row.key_bytes >= options_.prefix.size() &&
                      options_.shown(SlotId(row.slot));
    if (mine && !objects_.dram_->objects().index().HasBefore(name.hash, place_.began_ns))
      wanted_.emplace_back(name, row);
  }
}

KeyWalk::Step KeyWalk::ReadOnSsd(const Wake& wake) {
  const auto coming = [](const auto& read) { return !read->done.load(std::memory_order_acquire); };
  if (std::ranges::any_of(reads_, coming)) return Step::kComing;
  for (const auto& read : reads_) Take(*read);
  reads_.clear();
  while (!wanted_.empty() && reads_.size() < kReadsAtOnce) {
    const auto& [name, row] = wanted_.back();
    const auto read = std::make_shared<Reading>(name, row);
    const bool begun = objects_.store_->ssd_->ReadKey(
        name, row, &read->key, [read, wake](ssd::ReadOutcome outcome) {
          read->outcome = outcome;
          read->done.store(true, std::memory_order_release);
          wake();
        });
    if (!begun) return reads_.empty() ? Step::kBusy : Step::kComing;
    wanted_.pop_back();
    reads_.push_back(read);
    ++read_;
  }
  if (!reads_.empty()) return Step::kComing;
  place_ = next_;
  return Full() ? Step::kDone : Step::kMore;
}

void KeyWalk::Take(const Reading& read) {
  if (read.outcome == ssd::ReadOutcome::kGone) {  // or its record lies elsewhere by now
    const auto stored = objects_.store_->ssd_->Find(read.name, false);
    if (stored && !ssd::SameRecord(stored->row, read.row))
      wanted_.emplace_back(read.name, stored->row);
  }
  if (read.outcome != ssd::ReadOutcome::kOk || !read.key.starts_with(options_.prefix)) return;
  found_bytes_ += read.key.size();
  found_.push_back(
      {.key = read.key, .value_bytes = read.row.value_bytes, .tier = wire::ItemTier::kSsd});
}

}  // namespace ems::server
