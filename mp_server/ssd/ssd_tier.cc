#include "mp_server/ssd/ssd_tier.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <set>
#include <utility>

#include "common/logging.h"
#include "common/random_id.h"
#include "mp_server/ssd/folder.h"
#include "mp_server/ssd/recovery.h"

namespace ems::ssd {
namespace {

constexpr uint64_t kRegionBytesMin = 8 * kMiB;
constexpr uint64_t kRegionBytesMax = 128 * kMiB;
// What the index may take of the capacity: a row takes some 75 bytes, twice that while RocksDB
// merges its files, and its log some more.
constexpr uint64_t kIndexPart = 16;
constexpr uint64_t kIndexBytesMin = 16 * kMiB;
constexpr uint64_t kIndexBytesMost = 64 * kGiB;
// Of a row, with what RocksDB needs besides.
constexpr uint64_t kRowBytes = 200;
// Callbacks of reads that are done but not yet counted so.
constexpr uint32_t kReadsSlack = 16;
// More of them than that wait in the engine's queue.
constexpr uint32_t kIoDepthMax = 512;
constexpr uint64_t kRegionBytesLeast = kMiB;
constexpr uint64_t kRegionsLeast = 4;
// Of the disk that no region is made of, where the index may still grow to so much.
constexpr uint64_t kKeepFreeMax = kGiB;

Result<uint64_t> ParseNumber(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
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

// Takes a damaged index out of the way. Only the newest such copy is kept.
Status SetAside(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const std::string& old : AsideFolders(folder)) fs::remove_all(old, error);
  const std::string aside = fmt::format("{}/{}{}", folder, kAsidePrefix, std::time(nullptr));
  fs::rename(fmt::format("{}/{}", folder, kIndexName), aside, error);
  if (error) {
    return Error(StatusCode::kUnavailable, "cannot set the index of {} aside: {}", folder,
                 error.message());
  }
  EMS_LOG(kError, "mp_server", "SSD tier: its index is damaged and set aside as {}; starting empty",
          aside);
  return OkStatus();
}

}  // namespace

struct SsdTier::Impl {
  explicit Impl(const TierOptions& given) : options(given) {
    if (options.files == nullptr) options.files = &machine_files;
  }

  Status OpenAll();
  Status Divide();
  Status OpenRows(const RegionIndex::Options& wanted);
  Status OpenLog();
  Result<uint64_t> StoreId();
  Status ReadGrant();
  Status StartIo();
  void Stop();
  bool Read(const ObjectName& name, std::optional<std::string> key, const Row& row,
            const ReadTarget& target, std::function<void(ReadOutcome)> done);

  TierOptions options;
  RegionFiles machine_files;
  std::string io_name;
  std::unique_ptr<RegionIndex> rows;
  std::unique_ptr<RegionLog> log;
  SsdIndex index;
  std::unique_ptr<IoEngine> io;
  std::unique_ptr<RecordReader> reader;
  std::unique_ptr<LogWriter> writer;  // null: offline
  std::unique_ptr<Scrubber> scrubber;
  std::string offline_reason;
  Recovered recovered;
  double recovery_seconds = 0;
  uint64_t index_bytes = 0;
  uint64_t region_bytes = 0;
  uint64_t regions_max = 0;
  uint64_t objects_max = 0;
  bool direct = true;
  std::atomic<uint64_t> dropped_damaged{0};
  std::atomic<bool> trusted{false};  // a view has been installed: what is stored may be shown
  // The caller of SetOwnedSlots's.
  GrantRecord before;
  uint64_t lineage = 0;
  std::set<NamespaceRef> namespaces;
  bool namespaces_checked = false;
};

SsdTier::SsdTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SsdTier::~SsdTier() { impl_->Stop(); }

void SsdTier::Impl::Stop() {
  scrubber.reset();
  if (reader != nullptr)
    reader->Drain();  // its callbacks use the writer, which tells it of regions
  writer.reset();
  reader.reset();
  io.reset();
  rows.reset();
}

std::unique_ptr<SsdTier> SsdTier::Open(const TierOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (const Status opened = impl->OpenAll(); !opened.ok()) {
    impl->Stop();
    impl->offline_reason = std::string(Message(opened));
    EMS_LOG(kError, "mp_server", "SSD tier offline, this server works from DRAM alone: {}",
            impl->offline_reason);
  }
  return std::unique_ptr<SsdTier>(new SsdTier(std::move(impl)));
}

Status SsdTier::Impl::OpenAll() {
  const TimePoint began = Clock::System().Now();
  index_bytes = std::clamp(options.capacity_bytes / kIndexPart, kIndexBytesMin, kIndexBytesMost);
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return Error(StatusCode::kUnavailable, "{}: {}", options.folder, error.message());
  RegionIndex::Options wanted;
  wanted.folder = options.folder + "/index";
  wanted.env = options.env;
  EMS_RETURN_IF_ERROR(OpenRows(wanted));
  EMS_RETURN_IF_ERROR(Divide());
  EMS_RETURN_IF_ERROR(OpenLog());
  Result<Recovered> found = Recover(rows.get(), log.get(), &index);
  if (!found.ok() && found.status().code() == StatusCode::kDataLoss) {
    rows.reset();
    log.reset();
    index.Clear();
    EMS_RETURN_IF_ERROR(SetAside(options.folder));
    EMS_RETURN_IF_ERROR(OpenRows(wanted));
    EMS_RETURN_IF_ERROR(Divide());
    EMS_RETURN_IF_ERROR(OpenLog());
    found = Recover(rows.get(), log.get(), &index);
  }
  EMS_ASSIGN_OR_RETURN(recovered, std::move(found));
  EMS_RETURN_IF_ERROR(ReadGrant());
  EMS_RETURN_IF_ERROR(StartIo());
  recovery_seconds = std::chrono::duration<double>(Clock::System().Now() - began).count();
  EMS_LOG(kInfo, "mp_server",
          "SSD tier open folder={} objects={} stale={} unreadable={} regions={}/{} of {} io={} "
          "direct_io={} seconds={:.2f}",
          options.folder, recovered.objects, recovered.stale_rows, recovered.unreadable_rows,
          log->regions().size(), regions_max, FormatBytes(region_bytes), io_name, direct,
          recovery_seconds);
  return OkStatus();
}

// A version that knows no grants writes the view alone: then that of an earlier one says nothing.
Status SsdTier::Impl::ReadGrant() {
  lineage = options.lineage;
  EMS_ASSIGN_OR_RETURN(const std::string view, rows->Meta(kViewMeta));
  if (view.empty()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const uint64_t packed, ParseNumber(view));
  before.view = ViewVersion::FromPacked(packed);
  EMS_ASSIGN_OR_RETURN(const std::string text, rows->Meta(kGrantMeta));
  if (text.empty()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const GrantRecord grant, GrantRecord::FromText(text));
  if (grant.view != before.view) return OkStatus();
  before = grant.lineage != 0 ? grant : GrantRecord();
  return OkStatus();
}

// How the capacity is cut. The size of regions stays what it was when the tier was made, unless
// another one is asked for: those of another size are given up.
Status SsdTier::Impl::Divide() {
  EMS_ASSIGN_OR_RETURN(const std::string made_with, rows->Meta(kRegionBytesMeta));
  region_bytes =
      std::clamp(options.capacity_bytes / 32 / kMiB * kMiB, kRegionBytesMin, kRegionBytesMax);
  if (options.region_bytes != 0) {
    region_bytes = RoundUp(options.region_bytes, kBlockBytes);
  } else if (!made_with.empty()) {
    EMS_ASSIGN_OR_RETURN(region_bytes, ParseNumber(made_with));
  }
  objects_max = index_bytes / kRowBytes;
  const uint64_t kept = index_bytes + AsideBytes(options.folder);
  regions_max = (options.capacity_bytes - std::min(options.capacity_bytes, kept)) / region_bytes;
  if (region_bytes < kRegionBytesLeast || region_bytes % kBlockBytes != 0 ||
      regions_max < kRegionsLeast) {
    return Error(StatusCode::kInvalidArgument,
                 "{} regions (4 at least) of {} (1 MiB at least) in ssd.capacity_bytes {}",
                 regions_max, FormatBytes(region_bytes), FormatBytes(options.capacity_bytes));
  }
  if (made_with == std::to_string(region_bytes)) return OkStatus();
  RowBatch batch;
  batch.PutMeta(kRegionBytesMeta, std::to_string(region_bytes));
  return rows->Write(batch, true);
}

Status SsdTier::Impl::OpenRows(const RegionIndex::Options& wanted) {
  Result<std::unique_ptr<RegionIndex>> opened = RegionIndex::Open(wanted);
  if (!opened.ok() && opened.status().code() == StatusCode::kDataLoss) {
    EMS_LOG(kError, "mp_server", "SSD tier: {}", Message(opened.status()));
    EMS_RETURN_IF_ERROR(SetAside(options.folder));
    opened = RegionIndex::Open(wanted);
  }
  EMS_ASSIGN_OR_RETURN(rows, std::move(opened));
  return OkStatus();
}

Result<uint64_t> SsdTier::Impl::StoreId() {
  EMS_ASSIGN_OR_RETURN(const std::string text, rows->Meta(kStoreIdMeta));
  if (!text.empty()) return ParseNumber(text);
  const uint64_t id = RandomId();
  RowBatch batch;
  batch.PutMeta(kStoreIdMeta, std::to_string(id));
  EMS_RETURN_IF_ERROR(rows->Write(batch, true));
  return id;
}

Status SsdTier::Impl::OpenLog() {
  RegionLog::Options wanted;
  wanted.folder = options.folder + "/regions";
  wanted.region_bytes = region_bytes;
  wanted.regions_max = static_cast<uint32_t>(regions_max);
  wanted.files = options.files;
  wanted.keep_free_bytes = std::min(index_bytes, kKeepFreeMax);
  EMS_ASSIGN_OR_RETURN(wanted.store_id, StoreId());
  EMS_ASSIGN_OR_RETURN(log, RegionLog::Open(wanted));
  return OkStatus();
}

Status SsdTier::Impl::StartIo() {
  std::string why;
  const uint32_t depth =
      std::min(kIoDepthMax, LogWriter::kWriteDepth +
                                (options.reads_max + kReadsSlack) * RecordReader::kPartsMax);
  EMS_ASSIGN_OR_RETURN(io, MakeIoEngine(options.io, depth, &why));
  if (!why.empty()) EMS_LOG(kWarn, "mp_server", "SSD tier: {}; using threads instead", why);
  io_name = std::string(io->name());
  if (options.wrap_io) io = options.wrap_io(std::move(io));
  RecordReader::Options read;
  read.io = io.get();
  read.store_id = log->options().store_id;
  read.reads_max = options.reads_max + kReadsSlack;
  read.regions_max = static_cast<uint32_t>(regions_max);
  read.clock = options.clock;
  for (const auto& region : log->regions())
    read.regions_max = std::max(read.regions_max, region->id + 1);
  reader = std::make_unique<RecordReader>(read);
  for (const auto& region : log->regions()) reader->SetRegion(region->id, region->fd.get());
  direct = log->direct();
  LogWriter::Options write;
  write.log = log.get();
  write.index = &index;
  write.rows = rows.get();
  write.io = io.get();
  write.dirty_bytes_max = options.dirty_bytes_max;
  write.objects_max = objects_max;
  write.next_sequence = recovered.next_sequence;
  write.clock = options.clock;
  write.on_region = [this](uint32_t region, int fd) { reader->SetRegion(region, fd); };
  writer = std::make_unique<LogWriter>(std::move(write));
  if (options.scrub_bytes_per_s == 0) return OkStatus();
  scrubber = std::make_unique<Scrubber>(
      Scrubber::Options{.index = &index,
                        .read =
                            [this](const ObjectName& name, const Row& row, const ReadTarget& target,
                                   std::function<void(ReadOutcome)> done) {
                              return Read(name, std::nullopt, row, target, std::move(done));
                            },
                        .bytes_per_s = options.scrub_bytes_per_s,
                        .pass_at_least = options.scrub_pass_at_least,
                        .clock = options.clock});
  return OkStatus();
}

std::optional<StoredInfo> SsdTier::Find(const ObjectName& name, bool hit) {
  if (impl_->writer == nullptr || !impl_->trusted.load(std::memory_order_acquire))
    return std::nullopt;
  const SsdIndex::Found found = impl_->index.Find(name, hit);
  if (!found.stored) return std::nullopt;
  return StoredInfo{found.row};
}

bool SsdTier::Pending(const ObjectName& name) {
  return impl_->writer != nullptr && impl_->index.Find(name, false).pending;
}

TicketPtr SsdTier::Put(const ObjectName& name, std::unique_ptr<DirtyObject> object, bool durable,
                       std::function<void()> wake) {
  if (impl_->writer != nullptr)
    return impl_->writer->Put(name, std::move(object), durable, std::move(wake));
  return durable ? FailedTicket() : nullptr;
}

TicketPtr SsdTier::Remove(const ObjectName& name, std::function<void()> wake) {
  return impl_->writer == nullptr ? nullptr : impl_->writer->Remove(name, std::move(wake));
}

TicketPtr SsdTier::MakeDurable(const ObjectName& name, std::function<void()> wake) {
  return impl_->writer == nullptr ? FailedTicket()
                                  : impl_->writer->MakeDurable(name, std::move(wake));
}

TicketPtr SsdTier::MakeForgotten(const ObjectName& name, std::function<void()> wake) {
  return impl_->writer == nullptr ? nullptr : impl_->writer->MakeForgotten(name, std::move(wake));
}

std::string SsdTier::reason() const {
  if (impl_->writer == nullptr) return impl_->offline_reason;
  return state() == TierState::kOk ? std::string() : impl_->writer->state_reason();
}

uint64_t SsdTier::value_bytes_max() const {
  // Head and rounding: the key, 8 bytes for each 64 KiB, three blocks.
  const uint64_t room = impl_->region_bytes - std::min(impl_->region_bytes, 8 * kBlockBytes);
  return std::min(room - room / 4096, impl_->options.dirty_bytes_max);
}

bool SsdTier::HasRoomFor(uint64_t value_bytes) const {
  return impl_->writer != nullptr && impl_->writer->HasRoomFor(value_bytes);
}

bool SsdTier::Impl::Read(const ObjectName& name, std::optional<std::string> key, const Row& row,
                         const ReadTarget& target, std::function<void(ReadOutcome)> done) {
  const bool wanted = key.has_value();  // not for the scrubber
  auto checked = [this, name, row, wanted, done = std::move(done)](ReadOutcome outcome) {
    const bool bad = outcome == ReadOutcome::kDamaged || outcome == ReadOutcome::kGone ||
                     (outcome == ReadOutcome::kFailed && wanted);
    if (bad) {
      // Still what the index says? Then it is not what it should be; otherwise it was given up
      // meanwhile, which is no fault.
      if (const OwedDelete owed = index.DropRecord(name, row); owed) {
        dropped_damaged.fetch_add(1, std::memory_order_relaxed);
        writer->Forget({owed}, {});
      } else {
        outcome = ReadOutcome::kGone;
      }
    }
    done(outcome);
  };
  return reader->Read(name, std::move(key), row, target, std::move(checked));
}

bool SsdTier::Read(const ObjectName& name, std::string key, const StoredInfo& stored,
                   const ReadTarget& target, std::function<void(ReadOutcome)> done) {
  return impl_->writer != nullptr &&
         impl_->Read(name, std::move(key), stored.row, target, std::move(done));
}

bool SsdTier::continues() const {
  return impl_->writer != nullptr && impl_->lineage != 0 && impl_->before.lineage == impl_->lineage;
}

void SsdTier::BeginLineage(uint64_t lineage) {
  impl_->lineage = lineage;
  // A life of the server was without this tier: what it did is not known here.
  if (impl_->before.lineage != 0) impl_->before = {};
}

void SsdTier::SetOwnedSlots(const SlotGrant& grant) {
  if (impl_->writer == nullptr) return;
  // A version without lineages took views of others who had its name for its own.
  const bool first = !impl_->trusted.load(std::memory_order_relaxed);
  if (first && impl_->before.lineage == 0 && grant.history != 0) impl_->before = {};
  const GrantRecord before = std::exchange(impl_->before, grant.Record(impl_->lineage));
  const std::bitset<kSlotCount> kept = grant.Kept(before);
  uint64_t lost = 0, doubtful = 0;
  std::vector<OwedDelete> owed;
  impl_->index.DropIf(
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
  impl_->trusted.store(true, std::memory_order_release);
  impl_->index.Observe(impl_->options.observer);
  if (!first && owed.empty() && impl_->before == before) return;
  // Without a lineage no later life can tell whether one without this tier was in between.
  const GrantRecord record = impl_->lineage != 0 ? impl_->before : GrantRecord();
  impl_->writer->Forget(std::move(owed),
                        {{std::string(kViewMeta), std::to_string(record.view.packed())},
                         {std::string(kGrantMeta), record.ToText()}});
}

void SsdTier::SetNamespaces(const std::vector<NamespaceLimits>& limits) {
  if (impl_->writer == nullptr) return;
  impl_->writer->SetLimits(limits);
  const std::set<NamespaceRef> before = std::exchange(impl_->namespaces, [&] {
    std::set<NamespaceRef> refs;
    for (const NamespaceLimits& one : limits) refs.insert(one.ref);
    return refs;
  }());
  const bool gone = std::any_of(before.begin(), before.end(),
                                [&](NamespaceRef ref) { return !impl_->namespaces.contains(ref); });
  if (!gone && std::exchange(impl_->namespaces_checked, true)) return;
  std::vector<OwedDelete> owed;
  impl_->index.DropIf(
      [&](const ObjectName& name, const Row&) { return !impl_->namespaces.contains(name.ns); },
      &owed);
  if (!owed.empty()) impl_->writer->Forget(std::move(owed), {});
}

bool SsdTier::SomeNames(SsdIndex::NamesCursor* cursor, std::vector<ObjectName>* names) {
  return impl_->writer != nullptr && impl_->trusted.load(std::memory_order_acquire) &&
         impl_->index.SomeNames(cursor, names);
}

TierState SsdTier::state() const {
  return impl_->writer == nullptr ? TierState::kOffline : impl_->writer->state();
}

SsdIndex::Totals SsdTier::totals_of(NamespaceRef ns) const { return impl_->index.totals_of(ns); }

uint32_t SsdTier::reads_max() const { return impl_->options.reads_max; }

TierStats SsdTier::stats() const {
  TierStats stats;
  stats.state = state();
  stats.capacity_bytes = impl_->options.capacity_bytes;
  stats.reason = reason();
  if (impl_->writer == nullptr) return stats;
  stats.io_engine = impl_->io_name;
  stats.direct_io = impl_->direct;
  stats.region_bytes = impl_->region_bytes;
  stats.regions_max = impl_->regions_max;
  const SsdIndex::Totals totals = impl_->index.totals();
  stats.objects = totals.objects;
  stats.value_bytes = totals.value_bytes;
  stats.recovered_objects = impl_->recovered.objects;
  stats.recovery_seconds = impl_->recovery_seconds;
  stats.dropped_damaged = impl_->dropped_damaged.load(std::memory_order_relaxed);
  stats.writer = impl_->writer->stats();
  stats.reader = impl_->reader->stats();
  if (impl_->scrubber != nullptr) stats.scrubber = impl_->scrubber->stats();
  stats.disk_bytes = stats.writer.regions * impl_->region_bytes + stats.writer.index_bytes;
  return stats;
}

}  // namespace ems::ssd
