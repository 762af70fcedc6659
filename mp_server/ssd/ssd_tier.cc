#include "mp_server/ssd/ssd_tier.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <utility>

#include "common/durable_folder.h"
#include "common/logging.h"
#include "common/parse_number.h"
#include "common/random_id.h"
#include "mp_server/ssd/disk/folder.h"

namespace ems::ssd {
namespace {

constexpr uint64_t kRegionBytesMin = 8 * kMiB;
constexpr uint64_t kRegionBytesMax = 128 * kMiB;  // unless the disk would have too many
constexpr uint64_t kRegionsMost = 4096;           // each is an open file
// What the index may take of the capacity.
constexpr uint64_t kIndexPart = 16;
constexpr uint64_t kIndexBytesMin = 16 * kMiB;
constexpr uint64_t kIndexBytesMost = 64 * kGiB;
// Callbacks of reads that are done but not yet counted so.
constexpr uint32_t kReadsSlack = 16;
// More of them than that wait in the engine's queue.
constexpr uint32_t kIoDepthMax = 512;
constexpr uint64_t kRegionBytesLeast = kMiB;
constexpr uint64_t kRegionsLeast = 4;
// Of the disk that no region is made of, where the index may still grow to so much.
constexpr uint64_t kKeepFreeMax = kGiB;

Result<uint64_t> NumberIn(const std::string& text) {
  if (const auto value = ParseNumber<uint64_t>(text)) return *value;
  return Error(StatusCode::kDataLoss, "\"{}\" is no number", Printable(text));
}

TicketPtr FailedTicket() {
  auto ticket = std::make_shared<Ticket>(nullptr);
  ticket->Finish(false);
  return ticket;
}

constexpr std::string_view kIndexName = "index";
constexpr std::string_view kAsidePrefix = "index.corrupt.";

std::vector<std::string> AsideFolders(const std::string& folder) {
  std::vector<std::string> aside;
  const auto paths = ListFolder(folder);
  if (!paths.ok()) return aside;
  for (const std::filesystem::path& path : *paths) {
    if (path.filename().string().starts_with(kAsidePrefix)) aside.push_back(path.string());
  }
  return aside;
}

uint64_t AsideBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const std::string& aside : AsideFolders(folder)) bytes += FolderBytes(aside);
  return bytes;
}

}  // namespace

SsdTier::SsdTier(const TierOptions& options) : options_(options) {
  if (options_.files == nullptr) options_.files = &machine_files_;
}
SsdTier::~SsdTier() { Stop(); }

void SsdTier::Stop() {
  scrubber_.reset();
  if (reader_ != nullptr)
    reader_->Drain();  // its callbacks use the writer, which tells it of regions
  writer_.reset();
  reader_.reset();
  io_.reset();
  rows_.reset();
}

std::unique_ptr<SsdTier> SsdTier::Open(const TierOptions& options) {
  std::unique_ptr<SsdTier> tier(new SsdTier(options));
  if (const Status opened = tier->OpenAll(); !opened.ok()) {
    tier->Stop();
    tier->offline_reason_ = std::string(Message(opened));
    EMS_LOG(kError, "mp_server", "SSD tier offline, this server works from DRAM alone: {}",
            tier->offline_reason_);
  }
  return tier;
}

Status SsdTier::OpenAll() {
  const TimePoint began = Clock::System().Now();
  index_bytes_ = IndexBytesFor(options_.capacity_bytes);
  EMS_RETURN_IF_ERROR(MakeDurableFolders(options_.folder));
  RegionIndex::Options wanted;
  wanted.folder = options_.folder + "/index";
  wanted.env = options_.env;
  wanted.bytes_max = index_bytes_;
  EMS_RETURN_IF_ERROR(OpenRows(wanted));
  EMS_RETURN_IF_ERROR(Divide());
  EMS_RETURN_IF_ERROR(OpenLog());
  Result<Recovered> found = Recover(rows_.get(), log_.get(), &index_, 0, objects_max_);
  if (!found.ok() && found.status().code() == StatusCode::kDataLoss) {
    rows_.reset();
    log_.reset();
    index_.Clear();
    EMS_LOG(kError, "mp_server", "SSD tier: {}", Message(found.status()));
    EMS_RETURN_IF_ERROR(SetAside());
    EMS_RETURN_IF_ERROR(OpenRows(wanted));
    EMS_RETURN_IF_ERROR(Divide());
    EMS_RETURN_IF_ERROR(OpenLog());
    found = Recover(rows_.get(), log_.get(), &index_, 0, objects_max_);
  }
  EMS_ASSIGN_OR_RETURN(recovered_, std::move(found));
  if (recovered_.dropped_objects > 0) {
    EMS_LOG(kWarn, "mp_server",
            "SSD tier: its index has room for {} objects now (ssd.index_memory_bytes={}, "
            "ssd.capacity_bytes={}): {} of the oldest are dropped",
            objects_max_, FormatBytes(options_.index_memory_bytes),
            FormatBytes(options_.capacity_bytes), recovered_.dropped_objects);
  }
  EMS_RETURN_IF_ERROR(ReadGrant());
  EMS_RETURN_IF_ERROR(StartIo());
  recovery_seconds_ = std::chrono::duration<double>(Clock::System().Now() - began).count();
  EMS_LOG(kInfo, "mp_server",
          "SSD tier open folder={} objects={} stale={} unreadable={} regions={}/{} of {} io={} "
          "direct_io={} seconds={:.2f}",
          options_.folder, recovered_.objects, recovered_.stale_rows, recovered_.unreadable_rows,
          log_->count(), regions_max_, FormatBytes(region_bytes_), io_name_, direct_,
          recovery_seconds_);
  return OkStatus();
}

// A version that knows no grants writes the view alone: then that of an earlier one says nothing.
Status SsdTier::ReadGrant() {
  lineage_ = options_.lineage;
  EMS_ASSIGN_OR_RETURN(const std::string view, rows_->Meta(kViewMeta));
  if (view.empty()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const uint64_t packed, NumberIn(view));
  before_.view = ViewVersion::FromPacked(packed);
  EMS_ASSIGN_OR_RETURN(const std::string text, rows_->Meta(kGrantMeta));
  if (text.empty()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const GrantRecord grant, GrantRecord::FromText(text));
  if (grant.view != before_.view) return OkStatus();
  before_ = grant.lineage != 0 ? grant : GrantRecord();
  return OkStatus();
}

uint64_t IndexBytesFor(uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / kIndexPart, kIndexBytesMin, kIndexBytesMost);
}

uint64_t RegionBytesFor(uint64_t capacity_bytes) {
  const uint64_t part = capacity_bytes / 32 / kMiB * kMiB;
  return std::max(std::clamp(part, kRegionBytesMin, kRegionBytesMax),
                  RoundUp(capacity_bytes / kRegionsMost, kMiB));
}

// How the capacity is cut. The size of regions stays what it was when the tier was made, unless
// another one is asked for: those of another size are dropped.
Status SsdTier::Divide() {
  EMS_ASSIGN_OR_RETURN(const std::string made_with, rows_->Meta(kRegionBytesMeta));
  region_bytes_ = RegionBytesFor(options_.capacity_bytes);
  if (options_.region_bytes != 0) {
    region_bytes_ = RoundUp(options_.region_bytes, kBlockBytes);
  } else if (!made_with.empty()) {
    EMS_ASSIGN_OR_RETURN(region_bytes_, NumberIn(made_with));
  }
  objects_max_ = RegionIndex::RowsMax(index_bytes_);
  if (options_.index_memory_bytes != 0) {
    const uint64_t in_memory = options_.index_memory_bytes / SsdIndex::kObjectMemoryBytes;
    objects_max_ = std::min(objects_max_, std::max<uint64_t>(in_memory, 1));
  }
  aside_bytes_ = AsideBytes(options_.folder);
  // An index of a larger tier, or of an older version, takes more until it is merged.
  const uint64_t kept = std::max(index_bytes_, rows_->disk_bytes_needed()) + aside_bytes_;
  regions_max_ =
      (options_.capacity_bytes - std::min(options_.capacity_bytes, kept)) / region_bytes_;
  if (region_bytes_ < kRegionBytesLeast || region_bytes_ % kBlockBytes != 0 ||
      regions_max_ < kRegionsLeast) {
    return Error(StatusCode::kInvalidArgument,
                 "{} regions (4 at least) of {} (1 MiB at least) in ssd.capacity_bytes {}",
                 regions_max_, FormatBytes(region_bytes_), FormatBytes(options_.capacity_bytes));
  }
  if (made_with == std::to_string(region_bytes_)) return OkStatus();
  RowBatch batch;
  batch.PutMeta(kRegionBytesMeta, std::to_string(region_bytes_));
  return rows_->Write(batch, true);
}

Status SsdTier::OpenRows(const RegionIndex::Options& wanted) {
  Result<std::unique_ptr<RegionIndex>> opened = RegionIndex::Open(wanted);
  if (!opened.ok() && opened.status().code() == StatusCode::kDataLoss) {
    EMS_LOG(kError, "mp_server", "SSD tier: {}", Message(opened.status()));
    EMS_RETURN_IF_ERROR(SetAside());
    opened = RegionIndex::Open(wanted);
  }
  EMS_ASSIGN_OR_RETURN(rows_, std::move(opened));
  return OkStatus();
}

// Takes a damaged index out of the way; only the newest such copy is kept. The tier starts empty:
// the records in the regions say what was put, not what was removed since, so an index made of them
// would bring removed values back.
Status SsdTier::SetAside() {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const std::string& old : AsideFolders(options_.folder)) fs::remove_all(old, error);
  index_set_aside_ = fmt::format("{}/{}{}", options_.folder, kAsidePrefix, std::time(nullptr));
  fs::rename(fmt::format("{}/{}", options_.folder, kIndexName), index_set_aside_, error);
  if (error) {
    return Error(StatusCode::kUnavailable, "cannot set the index of {} aside: {}", options_.folder,
                 error.message());
  }
  EMS_LOG(kError, "mp_server", "SSD tier: its index is damaged and set aside as {}; starting empty",
          index_set_aside_);
  return OkStatus();
}

Result<uint64_t> SsdTier::StoreId() {
  EMS_ASSIGN_OR_RETURN(const std::string text, rows_->Meta(kStoreIdMeta));
  if (!text.empty()) return NumberIn(text);
  const uint64_t id = RandomId();
  RowBatch batch;
  batch.PutMeta(kStoreIdMeta, std::to_string(id));
  EMS_RETURN_IF_ERROR(rows_->Write(batch, true));
  return id;
}

Status SsdTier::OpenLog() {
  RegionLog::Options wanted;
  wanted.folder = options_.folder + "/regions";
  wanted.region_bytes = region_bytes_;
  wanted.regions_max = static_cast<uint32_t>(regions_max_);
  wanted.files = options_.files;
  wanted.keep_free_bytes = std::min(index_bytes_, kKeepFreeMax);
  EMS_ASSIGN_OR_RETURN(wanted.store_id, StoreId());
  EMS_ASSIGN_OR_RETURN(log_, RegionLog::Open(wanted));
  return OkStatus();
}

Status SsdTier::StartIo() {
  std::string why;
  const uint32_t depth =
      std::min(kIoDepthMax, LogWriter::kWriteDepth +
                                (options_.reads_max + kReadsSlack) * RecordReader::kPartsMax);
  EMS_ASSIGN_OR_RETURN(io_, MakeIoEngine(options_.io, depth, &why));
  if (!why.empty()) EMS_LOG(kWarn, "mp_server", "SSD tier: {}; using threads instead", why);
  io_name_ = std::string(io_->name());
  if (options_.wrap_io) io_ = options_.wrap_io(std::move(io_));
  RecordReader::Options read;
  read.io = io_.get();
  read.store_id = log_->options().store_id;
  read.reads_max = options_.reads_max + kReadsSlack;
  read.regions_max = static_cast<uint32_t>(regions_max_);
  read.clock = options_.clock;
  for (const auto& region : log_->regions())
    read.regions_max = std::max(read.regions_max, region->id + 1);
  reader_ = std::make_unique<RecordReader>(read);
  for (const auto& region : log_->regions()) reader_->SetRegion(region->id, region->fd.get());
  direct_ = log_->direct();
  LogWriter::Options write;
  write.log = log_.get();
  write.index = &index_;
  write.rows = rows_.get();
  write.io = io_.get();
  write.dirty_bytes_max = options_.dirty_bytes_max;
  write.overwrite_quiet = options_.overwrite_quiet;
  write.objects_max = objects_max_;
  write.small_bytes = SmallValues::BytesFor(regions_max_ * region_bytes_, objects_max_,
                                            RegionIndex::RowsMax(index_bytes_));
  write.next_sequence = recovered_.next_sequence;
  write.clock = options_.clock;
  write.on_region = [this](uint32_t region, int fd) { reader_->SetRegion(region, fd); };
  writer_ = std::make_unique<LogWriter>(std::move(write));
  if (options_.scrub_bytes_per_s == 0) return OkStatus();
  scrubber_ = std::make_unique<Scrubber>(
      Scrubber::Options{.index = &index_,
                        .read =
                            [this](const ObjectName& name, const Row& row, const ReadTarget& target,
                                   std::function<void(ReadOutcome)> done) {
                              return ReadRecord(name, std::nullopt, row, target, std::move(done));
                            },
                        .bytes_per_s = options_.scrub_bytes_per_s,
                        .pass_at_least = options_.scrub_pass_at_least,
                        .clock = options_.clock});
  return OkStatus();
}

std::optional<StoredInfo> SsdTier::Find(const ObjectName& name, bool hit) {
  if (writer_ == nullptr || !trusted_.load(std::memory_order_acquire)) return std::nullopt;
  const SsdIndex::Found found = index_.Find(name, hit);
  if (!found.stored) return std::nullopt;
  return StoredInfo{found.row};
}

bool SsdTier::Pending(const ObjectName& name) {
  return writer_ != nullptr && index_.Find(name, false).pending;
}

TicketPtr SsdTier::Put(const ObjectName& name, std::unique_ptr<DirtyObject> object, bool durable,
                       std::function<void()> wake) {
  if (writer_ != nullptr) return writer_->Put(name, std::move(object), durable, std::move(wake));
  return durable ? FailedTicket() : nullptr;
}

TicketPtr SsdTier::Remove(const ObjectName& name, std::function<void()> wake) {
  return writer_ == nullptr ? nullptr : writer_->Remove(name, std::move(wake));
}

TicketPtr SsdTier::MakeDurable(const ObjectName& name, std::function<void()> wake) {
  return writer_ == nullptr ? FailedTicket() : writer_->MakeDurable(name, std::move(wake));
}

TicketPtr SsdTier::MakeForgotten(const ObjectName& name, std::function<void()> wake) {
  return writer_ == nullptr ? nullptr : writer_->MakeForgotten(name, std::move(wake));
}

std::string SsdTier::reason() const {
  if (writer_ == nullptr) return offline_reason_;
  return state() == TierState::kOk ? std::string() : writer_->state_reason();
}

uint64_t SsdTier::value_bytes_max() const {
  // Head and rounding: the key, 8 bytes for each 64 KiB, three blocks.
  const uint64_t room = region_bytes_ - std::min(region_bytes_, 8 * kBlockBytes);
  return std::min(room - room / 4096, options_.dirty_bytes_max);
}

bool SsdTier::HasRoomFor(uint64_t value_bytes) const {
  return writer_ != nullptr && writer_->HasRoomFor(value_bytes);
}

void SsdTier::HurryHeldBack() {
  if (writer_ != nullptr) writer_->HurryHeldBack();
}

bool SsdTier::RefusesSmall(NamespaceRef ns, uint64_t value_bytes) {
  return writer_ != nullptr && writer_->RefusesSmall(ns, value_bytes);
}

bool SsdTier::ReadRecord(const ObjectName& name, std::optional<std::string> key, const Row& row,
                         const ReadTarget& target, std::function<void(ReadOutcome)> done) {
  const bool wanted = key.has_value();  // not for the scrubber
  auto checked = [this, name, row, wanted, done = std::move(done)](ReadOutcome outcome) {
    const bool bad = outcome == ReadOutcome::kDamaged || outcome == ReadOutcome::kGone ||
                     (outcome == ReadOutcome::kFailed && wanted);
    if (bad) {
      // Still what the index says? Then it is not what it should be; otherwise it was reclaimed
      // meanwhile, which is no fault.
      if (const OwedDelete owed = index_.DropRecord(name, row); owed) {
        dropped_damaged_.fetch_add(1, std::memory_order_relaxed);
        writer_->Forget({owed}, {});
      } else {
        outcome = ReadOutcome::kGone;
      }
    }
    done(outcome);
  };
  return reader_->Read(name, std::move(key), row, target, std::move(checked));
}

bool SsdTier::Read(const ObjectName& name, std::string key, const StoredInfo& stored,
                   const ReadTarget& target, std::function<void(ReadOutcome)> done) {
  return writer_ != nullptr &&
         ReadRecord(name, std::move(key), stored.row, target, std::move(done));
}

bool SsdTier::ReadKey(const ObjectName& name, const Row& row, std::string* key,
                      std::function<void(ReadOutcome)> done) {
  return writer_ != nullptr && ReadRecord(name, std::nullopt, row, {.key = key}, std::move(done));
}

bool SsdTier::continues() const {
  return writer_ != nullptr && lineage_ != 0 && before_.lineage == lineage_;
}

void SsdTier::BeginLineage(uint64_t lineage) {
  lineage_ = lineage;
  // A life of the server was without this tier: what it did is not known here.
  if (before_.lineage != 0) before_ = {};
}

void SsdTier::SetOwnedSlots(const SlotGrant& grant) {
  if (writer_ == nullptr) return;
  // A version without lineages took views of others who had its name for its own.
  const bool first = !trusted_.load(std::memory_order_relaxed);
  if (first && before_.lineage == 0 && grant.history != 0) before_ = {};
  const GrantRecord before = std::exchange(before_, grant.Record(lineage_));
  const std::bitset<kSlotCount> kept = grant.Kept(before);
  uint64_t lost = 0, doubtful = 0;
  std::vector<OwedDelete> owed;
  index_.DropIf(
      [&](const ObjectName&, const Row& row) {
        const size_t slot = row.slot % kSlotCount;
        if (kept[slot]) return false;
        ++(grant.owned[slot] ? doubtful : lost);
        return true;
      },
      &owed);
  if (!owed.empty()) {
    EMS_LOG(kInfo, "mp_server",
            "SSD tier: {} objects dropped: of {} the slots are others' now, {} others may have "
            "changed since view {}.{}",
            owed.size(), lost, doubtful, before.view.term(), before.view.epoch());
  }
  trusted_.store(true, std::memory_order_release);
  index_.Observe(options_.observer);
  if (!first && owed.empty() && before_ == before) return;
  // Without a lineage no later life can tell whether one without this tier was in between.
  const GrantRecord record = lineage_ != 0 ? before_ : GrantRecord();
  writer_->Forget(std::move(owed), {{std::string(kViewMeta), std::to_string(record.view.packed())},
                                    {std::string(kGrantMeta), record.ToText()}});
}

void SsdTier::SetNamespaces(const std::vector<NamespaceLimits>& limits) {
  if (writer_ == nullptr) return;
  writer_->SetLimits(limits);
  const std::set<NamespaceRef> before = std::exchange(namespaces_, [&] {
    std::set<NamespaceRef> refs;
    for (const NamespaceLimits& one : limits) refs.insert(one.ref);
    return refs;
  }());
  const bool gone = std::any_of(before.begin(), before.end(),
                                [&](NamespaceRef ref) { return !namespaces_.contains(ref); });
  if (!gone && std::exchange(namespaces_checked_, true)) return;
  std::vector<OwedDelete> owed;
  index_.DropIf([&](const ObjectName& name, const Row&) { return !namespaces_.contains(name.ns); },
                &owed);
  if (owed.empty()) return;
  EMS_LOG(kInfo, "mp_server", "SSD tier: {} objects dropped: their namespaces are gone",
          owed.size());
  writer_->Forget(std::move(owed), {});
}

bool SsdTier::SomeStored(SsdIndex::Cursor* cursor, SsdIndex::Stored* some, size_t buckets_max) {
  return writer_ != nullptr && trusted_.load(std::memory_order_acquire) &&
         index_.SomeStored(cursor, some, buckets_max);
}

TierState SsdTier::state() const {
  return writer_ == nullptr ? TierState::kOffline : writer_->state();
}

uint32_t SsdTier::reads_max() const { return options_.reads_max; }

TierStats SsdTier::stats() const {
  TierStats stats;
  stats.state = state();
  stats.capacity_bytes = options_.capacity_bytes;
  stats.reason = reason();
  stats.index_set_aside = index_set_aside_;
  stats.free_bytes = options_.files->FreeBytes(options_.folder);
  if (writer_ == nullptr) return stats;
  stats.io_engine = io_name_;
  stats.direct_io = direct_;
  stats.region_bytes = region_bytes_;
  stats.regions_max = regions_max_;
  const SsdIndex::Totals totals = index_.totals();
  stats.objects = totals.objects;
  stats.value_bytes = totals.value_bytes;
  stats.index_memory_bytes = totals.objects * SsdIndex::kObjectMemoryBytes;
  stats.index_memory_bytes_max = options_.index_memory_bytes;
  stats.recovered_objects = recovered_.objects;
  stats.dropped_to_fit = recovered_.dropped_objects;
  stats.recovery_seconds = recovery_seconds_;
  stats.dropped_damaged = dropped_damaged_.load(std::memory_order_relaxed);
  stats.writer = writer_->stats();
  stats.reader = reader_->stats();
  if (scrubber_ != nullptr) stats.scrubber = scrubber_->stats();
  stats.disk_bytes = stats.writer.regions * region_bytes_ + rows_->disk_bytes() + aside_bytes_;
  return stats;
}

}  // namespace ems::ssd
