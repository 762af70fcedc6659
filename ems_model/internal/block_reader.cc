#include "ems_model/internal/block_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/sha256.h"

namespace ems::model::internal {
namespace {

constexpr uint64_t kSlowBytesPerSecond = 100'000'000;  // slower than this is taken for an outage
constexpr Duration kReadPatience = std::chrono::seconds(2);
// Shorter ranges cost more than the rest of the block: whole pieces of 64 KiB are hashed anyhow.
constexpr uint64_t kRangeBytesMin = 64 * kKiB;
constexpr size_t kPartsMax = 64;
constexpr uint32_t kReadsMax = 6;  // of a block that does not come the same twice
constexpr Duration kAskPause = std::chrono::seconds(10);

enum class Form : uint8_t {
  kWhole,    // straight into its places
  kRanges,   // the wanted ranges alone
  kScratch,  // whole, beside; then copied
};

}  // namespace

struct BlockReader::Placed {
  uint32_t index = 0;
  bool direct = false;  // what the pool does not have is read from the source
  const ManifestBlock* block = nullptr;
  std::string key;
  std::vector<LoadRange> ranges;
  uint64_t wanted = 0;
  Form form = Form::kWhole;
  std::vector<MutableBytes> parts;  // what a whole block is read into
  std::unique_ptr<std::byte[]> scratch;
  std::vector<Tier> tiers;  // of each range, or of the whole
  size_t first_item = 0;
};

Status BlockReader::Place(uint32_t index, Placed* placed) const {
  placed->index = index;
  placed->block = &parts_.manifest->blocks[index];
  const ManifestBlock& block = *placed->block;
  EMS_RETURN_IF_ERROR(parts_.target->Place(block.file, block.offset, block.bytes, &placed->ranges));
  for (const LoadRange& range : placed->ranges) placed->wanted += range.into.size();
  return OkStatus();
}

void BlockReader::ChooseForm(Placed* placed) const {
  const uint64_t bytes = placed->block->bytes;
  const size_t count = placed->ranges.size();
  const bool whole = placed->wanted == bytes && count <= kPartsMax;
  const bool few = count == 1 || (placed->wanted <= bytes / 2 &&
                                  placed->wanted / std::max<size_t>(count, 1) >= kRangeBytesMin);
  if (whole) {
    placed->form = Form::kWhole;
    for (const LoadRange& range : placed->ranges) placed->parts.push_back(range.into);
  } else if (few && !options_.verify_digests) {
    placed->form = Form::kRanges;
  } else {
    placed->form = Form::kScratch;
    placed->scratch = std::make_unique_for_overwrite<std::byte[]>(bytes);
    placed->parts.push_back({placed->scratch.get(), bytes});
  }
  placed->tiers.resize(placed->form == Form::kRanges ? count : 1);
}

void BlockReader::Work() {
  while (true) {
    const BlockQueue::Task task = parts_.queue->Take(options_.batch_bytes);
    if (task.blocks.empty()) return;
    const bool ask = !task.direct ||
                     (task.ask && Clock::System().Now() >= ask_at_.load(std::memory_order_relaxed));
    if (ask) {
      ReadFromPool(task.blocks, task.direct);
    } else {
      ReadFromSource(task.blocks[0], task.known);
    }
  }
}

Duration BlockReader::TimeoutFor(uint64_t bytes) const {
  const std::chrono::microseconds transfer(bytes / (kSlowBytesPerSecond / 1'000'000));
  return std::clamp<Duration>(deadline_.Remaining(), std::chrono::milliseconds(1),
                              kReadPatience + transfer);
}

void BlockReader::ReadFromPool(std::span<const uint32_t> blocks, bool direct) {
  std::vector<Placed> all(blocks.size());
  std::vector<GetItem> gets;
  std::vector<RangeItem> parts;
  uint64_t bytes = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    Placed& placed = all[i];
    if (const Status ok = Place(blocks[i], &placed); !ok.ok()) return parts_.queue->Fail(ok);
    ChooseForm(&placed);
    placed.direct = direct;
    placed.key = BlockKey(parts_.digests[blocks[i]]);
    const ManifestBlock& block = *placed.block;
    if (placed.form != Form::kRanges) {
      placed.first_item = gets.size();
      bytes += block.bytes;
      gets.push_back({.key = placed.key,
                      .into = std::span<const MutableBytes>(placed.parts),
                      .route_key = RouteKey(block.route),
                      .tier = &placed.tiers[0]});
      continue;
    }
    placed.first_item = parts.size();
    bytes += placed.wanted;
    for (size_t r = 0; r < placed.ranges.size(); ++r) {
      parts.push_back({.key = placed.key,
                       .offset = placed.ranges[r].offset - block.offset,
                       .into = placed.ranges[r].into,
                       .whole_bytes = block.bytes,
                       .route_key = RouteKey(block.route),
                       .tier = &placed.tiers[r]});
    }
  }
  std::vector<Result<uint64_t>> got;
  std::vector<Status> got_parts;
  if (!gets.empty()) got = parts_.pool->Read(gets, TimeoutFor(bytes));
  if (!parts.empty()) got_parts = parts_.pool->ReadRanges(parts, TimeoutFor(bytes));
  for (Placed& placed : all) {
    Status read;
    if (placed.form != Form::kRanges) {
      const Result<uint64_t>& length = got[placed.first_item];
      read = length.status();
      if (length.ok() && *length != placed.block->bytes) {
        read = Error(StatusCode::kOutOfRange, "{} bytes where the block has {}", *length,
                     placed.block->bytes);
      }
    } else {
      for (size_t r = 0; r < placed.ranges.size() && read.ok(); ++r)
        read = got_parts[placed.first_item + r];
    }
    Settle(&placed, read);
  }
}

void BlockReader::Settle(Placed* placed, const Status& read) {
  Status status = read;
  if (status.ok() && options_.verify_digests) {
    Sha256 hash;
    for (const MutableBytes part : placed->parts) hash.Update(part);
    if (hash.Finish() != parts_.digests[placed->index])
      status = Error(StatusCode::kOutOfRange, "its bytes have another digest");
  }
  switch (status.code()) {
    case StatusCode::kOk:
      break;
    case StatusCode::kNotFound:
      counts_.misses.fetch_add(1, std::memory_order_relaxed);
      [[fallthrough]];
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:  // the namespace, or a view that does not settle
    case StatusCode::kDataLoss:  // its server drops what is damaged, and it is fetched again
    case StatusCode::kCancelled:
      return NotThere(*placed, status);
    case StatusCode::kOutOfRange:
      if (placed->direct) return ReadFromSource(placed->index, true);
      if (options_.fallback_to_source) return parts_.queue->MakeDirect(placed->index);
      return parts_.queue->Fail(Error(StatusCode::kDataLoss,
                                      "what the pool holds as block {} is something else: {}",
                                      placed->index, Message(status)));
    default:
      return parts_.queue->Fail(Prefixed(status, fmt::format("block {}", placed->index)));
  }
  for (size_t i = 0; i < placed->tiers.size(); ++i) {
    const uint64_t bytes =
        placed->form == Form::kRanges ? placed->ranges[i].into.size() : placed->block->bytes;
    (placed->tiers[i] == Tier::kSsd ? counts_.ssd_bytes : counts_.dram_bytes)
        .fetch_add(bytes, std::memory_order_relaxed);
  }
  if (const Status handed = Hand(placed); !handed.ok()) return parts_.queue->Fail(handed);
  parts_.queue->Done(placed->index, true);
}

void BlockReader::NotThere(const Placed& placed, const Status& why) {
  if (!placed.direct) return parts_.queue->Missed(placed.index, why);
  if (why.code() != StatusCode::kNotFound && why.code() != StatusCode::kDataLoss)
    ask_at_.store(Clock::System().Now() + kAskPause, std::memory_order_relaxed);
  ReadFromSource(placed.index, true);
}

Status BlockReader::Hand(Placed* placed) {
  const ManifestBlock& block = *placed->block;
  if (placed->form == Form::kScratch) {
    for (const LoadRange& range : placed->ranges) {
      std::memcpy(range.into.data(), placed->scratch.get() + (range.offset - block.offset),
                  range.into.size());
    }
  }
  counts_.bytes.fetch_add(placed->wanted, std::memory_order_relaxed);
  counts_.blocks.fetch_add(1, std::memory_order_relaxed);
  return parts_.target->Arrived(block.file, block.offset, block.bytes);
}

void BlockReader::ReadFromSource(uint32_t block, bool known) {
  Placed placed;
  Status status = Place(block, &placed);
  if (status.ok()) {
    status = ReadFromSource(&placed, known);
    const bool may_pass = status.code() == StatusCode::kUnavailable ||
                          (status.code() == StatusCode::kDeadlineExceeded && !deadline_.Passed());
    if (may_pass) return parts_.queue->SourceFailed(block, status, kSourcePatience);
  }
  if (status.ok()) status = Hand(&placed);
  if (!status.ok()) return parts_.queue->Fail(status);
  parts_.queue->Done(block, false);
}

Status BlockReader::ReadFromSource(Placed* placed, bool known) {
  const ManifestBlock& block = *placed->block;
  const ManifestFile& file = parts_.manifest->files[block.file];
  const bool plain =
      !known && file.sum.empty() && parts_.manifest->source.first_read == FirstRead::kOnce;
  if (placed->ranges.size() == 1 && placed->wanted == block.bytes) {
    placed->form = Form::kWhole;
    return ReadTrusted(placed->index, known, placed->ranges[0].into);
  }
  if (plain && placed->ranges.size() == 1) {
    placed->form = Form::kRanges;
    EMS_ASSIGN_OR_RETURN(WeightSource* const source, parts_.source(0));
    const LoadRange& range = placed->ranges[0];
    counts_.source_bytes.fetch_add(range.into.size(), std::memory_order_relaxed);
    return source->Read({.path = file.path, .bytes = file.bytes, .tag = file.tag}, range.offset,
                        range.into, deadline_);
  }
  placed->form = Form::kScratch;
  placed->scratch = std::make_unique_for_overwrite<std::byte[]>(block.bytes);
  return ReadTrusted(placed->index, known, {placed->scratch.get(), block.bytes});
}

Status BlockReader::ReadTrusted(uint32_t index, bool known, MutableBytes into) {
  const ManifestBlock& block = parts_.manifest->blocks[index];
  const ManifestFile& file = parts_.manifest->files[block.file];
  std::optional<BlockDigest> wanted;
  if (known) {
    wanted = parts_.digests[index];
  } else if (!file.sum.empty()) {
    EMS_ASSIGN_OR_RETURN(
        wanted,
        parts_.survey->DigestOf(index, {.source = [this] { return parts_.source(0); },
                                        .over = [this] { return parts_.queue->state().over(); },
                                        .deadline = deadline_,
                                        .source_bytes = &counts_.source_bytes}));
  }
  const FirstRead first_read = parts_.manifest->source.first_read;
  const bool twice = !wanted && first_read != FirstRead::kOnce;
  std::optional<BlockDigest> before;
  for (uint32_t reads = 0; reads < kReadsMax; ++reads) {
    // Threads do not all begin on one stream: it has half of the rate. What is read once has but
    // one.
    const uint32_t stream = first_read == FirstRead::kOnce ? 0 : (index + reads) % 2;
    EMS_ASSIGN_OR_RETURN(WeightSource* const source, parts_.source(stream));
    counts_.source_bytes.fetch_add(into.size(), std::memory_order_relaxed);
    EMS_ASSIGN_OR_RETURN(
        const bool compared,
        source->ReadCompared({.path = file.path, .bytes = file.bytes, .tag = file.tag},
                             block.offset, into, deadline_));
    if (!wanted && !twice) return OkStatus();
    if (twice && compared && first_read == FirstRead::kTwiceUnlessChecked) return OkStatus();
    const BlockDigest digest = Sha256().Digest(into);
    if (digest == (wanted ? wanted : before)) return OkStatus();
    // Other bytes than those read before may have been damaged on the way. The source has others
    // if the same ones come again.
    if (digest == before) {
      return Error(StatusCode::kFailedPrecondition,
                   "the source has changed: bytes {}+{} of {} are not those read before; add it as "
                   "another version",
                   block.offset, block.bytes, file.path);
    }
    before = digest;
  }
  return Error(StatusCode::kDataLoss,
               "damaged at the source or on the way: bytes {}+{} of {} differ between reads, {} "
               "times one after the other",
               block.offset, block.bytes, file.path, kReadsMax);
}

}  // namespace ems::model::internal
