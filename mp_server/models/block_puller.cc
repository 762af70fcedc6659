#include "mp_server/models/block_puller.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "common/copy.h"
#include "common/sha256.h"
#include "mp_server/store/namespace_store.h"

namespace ems::server {
namespace {

// Of one read, beside what its bytes take at the slowest rate at which a source counts as alive.
// One that stalls is ended by its source's own timeouts, long before.
constexpr Duration kReadPatience = std::chrono::minutes(5);
constexpr uint64_t kReadBytesPerSMin = 2 * kKiB;
constexpr Duration kRoomPatience = std::chrono::seconds(10);
constexpr Duration kKeptPatience = std::chrono::seconds(1);  // then what is kept makes room
constexpr Duration kFetchPatience = std::chrono::seconds(10);
constexpr uint32_t kReadsMax = 6;  // of a block that does not come the same twice
constexpr Duration kLookAgain = std::chrono::milliseconds(5);

}  // namespace

Result<bool> BlockPuller::Find(NamespaceRef ns, const std::string& key, uint64_t bytes,
                               const ReadOptions& read, ModelPull::Outcome* outcome) {
  const Deadline deadline = Deadline::After(kFetchPatience);
  while (!deadline.Passed()) {
    const TieredNamespace objects = store_->Open(ns);
    TieredNamespace::Got got = objects.Get(key, read);
    if (got.pin) {
      if (got.pin.value().size() != bytes) return false;
      outcome->pin = std::move(got.pin);
      return true;
    }
    if (!got.on_ssd) return false;
    const auto landed = std::make_shared<StopFlag>();
    const TieredNamespace::Started started = objects.StartFetch(key, [landed] { landed->Set(); });
    if (started.fetch == nullptr) {
      if (!started.busy) return false;
      if (stop_->WaitFor(kLookAgain)) break;
      continue;
    }
    while (!landed->WaitFor(std::chrono::milliseconds(100)) && !stop_->IsSet() &&
           !deadline.Passed()) {
    }
    if (started.fetch->state() == Fetch::State::kMiss) return false;
    if (started.fetch->state() == Fetch::State::kHere)
      outcome->promoted_bytes = started.fetch->pin().value().size();
  }
  if (stop_->IsSet()) return Error(StatusCode::kCancelled, "stopping");
  return false;  // an SSD that is too slow: the source is asked
}

Result<bool> BlockPuller::Store(const ModelPull::Task& task, const std::string& key,
                                ConstBytes bytes, ModelPull::Outcome* outcome) {
  const Deadline lease = Deadline::After(kRoomPatience);
  std::optional<Deadline> room;  // since the slot was this server's
  while (true) {
    // Not for ever under one view: whoever gave the task looks at the view again. A lease that has
    // ended may be back in a moment, and with it the same slots: these bytes are not read again.
    const Verdict verdict = ownership_->CheckWrite(task.slot, ViewVersion());
    if (verdict == Verdict::kHold || verdict == Verdict::kFenced) {
      if (stop_->WaitFor(kLookAgain)) return Error(StatusCode::kCancelled, "stopping");
      if (lease.Passed()) return false;
      continue;
    }
    if (verdict != Verdict::kYes) return false;
    if (!room) room = Deadline::After(kRoomPatience);
    auto reserved = store_->Open(task.ns).Reserve(task.slot, key, bytes.size());
    if (reserved.ok()) {
      Reservation reservation = *std::move(reserved);
      EMS_CHECK(reservation.value().size() == bytes.size(), "room for {} bytes, not {}",
                reservation.value().size(), bytes.size());
      PieceHasher hasher;
      hasher.Start(reservation.piece_sums());
      CopyValue(reservation.value(), bytes.data(), &hasher);
      bool stored = false;
      ssd::TicketPtr ticket;
      // The key is the digest of these bytes: if another value has it, that one is wrong.
      const Status published = store_->Publish(
          std::move(reservation), hasher.Finish(), true, false, [] {}, &stored, &ticket);
      // Slot or namespace were lost meanwhile.
      if (published.code() == StatusCode::kFailedPrecondition) return false;
      EMS_RETURN_IF_ERROR(published);
      outcome->shared = !stored;
      return true;
    }
    if (reserved.status().code() == StatusCode::kFailedPrecondition) return false;
    // Not while memory is only being made.
    const bool for_long = room->Remaining() < kRoomPatience - kKeptPatience;
    if (for_long && orphans_ != nullptr && orphans_->Clear()) continue;
    if (reserved.status().code() != StatusCode::kResourceExhausted || room->Passed())
      return Prefixed(reserved.status(),
                      fmt::format("no room for a block of {}", task.manifest->model));
    if (stop_->WaitFor(kLookAgain)) return Error(StatusCode::kCancelled, "stopping");
  }
}

Result<bool> BlockPuller::TakeBack(const ModelPull::Task& task, const std::string& key,
                                   ModelPull::Outcome* outcome) {
  if (orphans_ == nullptr || ownership_->CheckWrite(task.slot, ViewVersion()) != Verdict::kYes)
    return false;
  ObjectPin pin = orphans_->Take(task.ns, key);
  if (!pin || pin.value().size() != task.manifest->blocks[task.block].bytes) return false;
  Sha256 sha256;
  if (sha256.Digest(pin.value()) != *task.digest) return false;
  const Result<bool> ours = Store(task, key, pin.value(), outcome);
  outcome->shared = false;  // nothing was read
  if (ours.status().code() == StatusCode::kResourceExhausted)
    return false;  // what is kept is in the way
  if (ours.ok() && !*ours) orphans_->Keep(task.ns, std::move(pin));
  return ours;
}

// What is waited for in turn, all of it on one stream, twice over.
Duration BlockPuller::ReadPatience(uint64_t block_bytes, uint64_t bytes_per_s_max) const {
  const Duration slowest = kReadPatience + std::chrono::seconds(block_bytes / kReadBytesPerSMin);
  if (bytes_per_s_max == 0) return slowest;
  const double seconds =
      4.0 * readers_max_ * static_cast<double>(block_bytes) / static_cast<double>(bytes_per_s_max);
  const double most = std::chrono::duration<double>(Deadline::kMost).count();
  return std::max(slowest, std::chrono::duration_cast<Duration>(
                               std::chrono::duration<double>(std::min(seconds, most))));
}

Status BlockPuller::Read(const ModelPull::Task& task, const OpenSource& open, MutableBytes bytes,
                         ModelPull::Outcome* outcome) {
  const model::ManifestBlock& block = task.manifest->blocks[task.block];
  const model::ManifestFile& file = task.manifest->files[block.file];
  const model::FirstRead first_read = task.manifest->source.first_read;
  const Duration patience = ReadPatience(block.bytes, task.manifest->source.bytes_per_s_max);
  // A tag that nobody takes for a sum proves nothing: comparing it would read all files again.
  const model::SourceFile wanted{.path = file.path,
                                 .bytes = file.bytes,
                                 .tag = file.tag,
                                 .md5_tag = file.sum.starts_with("md5:")};
  Sha256 sha256;
  bool compared = false;
  uint32_t reads = 0;
  const auto read = [&]() -> Status {
    // Workers do not all begin on one stream: it has half of the rate. What is read once has but
    // one.
    const bool one_stream = first_read == model::FirstRead::kOnce;
    EMS_ASSIGN_OR_RETURN(const auto source, open(one_stream ? 0 : (task.block + reads) % 2));
    ++reads;
    EMS_ASSIGN_OR_RETURN(
        compared, source->ReadCompared(wanted, block.offset, bytes, Deadline::After(patience)));
    outcome->source_bytes += block.bytes;
    outcome->digest = sha256.Digest(bytes);
    return OkStatus();
  };
  const auto damaged = [&] {
    return Error(
        StatusCode::kDataLoss,
        "damaged at the source or on the way: bytes {}+{} of {} differ between reads, {} times one "
        "after the other",
        block.offset, block.bytes, file.path, kReadsMax);
  };
  EMS_RETURN_IF_ERROR(read());
  if (task.digest && task.certain) {
    // Other bytes than those read before may have been damaged on the way. The source has others
    // if the same ones come again.
    while (*task.digest != outcome->digest) {
      if (reads == kReadsMax) return damaged();
      const model::BlockDigest before = outcome->digest;
      EMS_RETURN_IF_ERROR(read());
      if (before != outcome->digest) continue;
      return Error(StatusCode::kFailedPrecondition,
                   "the source has changed: bytes {}+{} of {} are not those read before; add it as "
                   "another version",
                   block.offset, block.bytes, file.path);
    }
    return OkStatus();
  }
  const bool in_any_case = first_read == model::FirstRead::kTwice;
  // The sum of a file is compared later, before anybody is given it.
  if (first_read == model::FirstRead::kOnce || (!in_any_case && !file.sum.empty()))
    return OkStatus();
  while (reads < kReadsMax) {
    if (compared && !in_any_case) return OkStatus();
    const model::BlockDigest before = outcome->digest;
    EMS_RETURN_IF_ERROR(read());
    if (before == outcome->digest) return OkStatus();
  }
  return damaged();
}

Result<BlockPuller::Pulled> BlockPuller::Pull(const ModelPull::Task& task, const OpenSource& open,
                                              std::vector<std::byte>* buffer) {
  const std::shared_ptr<NamespaceStore> weights = store_->dram().Open(task.ns);
  if (weights != nullptr) weights->objects().UseVersion(task.model_id);
  Result<Pulled> pulled = Bring(task, open, buffer);
  if (weights != nullptr && pulled.ok() && pulled->ours)
    weights->objects().JoinVersion(model::BlockKey(pulled->outcome.digest), task.model_id);
  return pulled;
}

Result<BlockPuller::Pulled> BlockPuller::Bring(const ModelPull::Task& task, const OpenSource& open,
                                               std::vector<std::byte>* buffer) {
  Pulled pulled;
  EMS_CHECK(task.block < task.manifest->blocks.size(), "block {} of {}", task.block,
            task.manifest->blocks.size());
  const model::ManifestBlock& block = task.manifest->blocks[task.block];
  // What cannot be kept is not read: whoever has given the task gives it again, and again.
  if (ownership_->CheckRead(task.slot, ViewVersion()) != Verdict::kYes || !store_->Open(task.ns)) {
    pulled.ours = false;
    return pulled;
  }
  if (task.digest) {
    pulled.outcome.digest = *task.digest;
    EMS_ASSIGN_OR_RETURN(const bool found, Find(task.ns, model::BlockKey(*task.digest), block.bytes,
                                                {}, &pulled.outcome));
    if (found) return pulled;
    EMS_ASSIGN_OR_RETURN(const bool back,
                         TakeBack(task, model::BlockKey(*task.digest), &pulled.outcome));
    if (back) {
      if (task.pin)
        pulled.outcome.pin = store_->Open(task.ns).Get(model::BlockKey(*task.digest), {}).pin;
      return pulled;
    }
  }
  // Nor what could not be stored now: a server without a lease may be so for hours.
  const Verdict write = ownership_->CheckWrite(task.slot, ViewVersion());
  if (write != Verdict::kYes && write != Verdict::kHold) {
    pulled.ours = false;
    return pulled;
  }
  if (buffer->size() < block.bytes) buffer->resize(block.bytes);
  const MutableBytes bytes = MutableBytes(*buffer).first(block.bytes);
  EMS_RETURN_IF_ERROR(Read(task, open, bytes, &pulled.outcome));
  const std::string key = model::BlockKey(pulled.outcome.digest);
  EMS_ASSIGN_OR_RETURN(pulled.ours, Store(task, key, bytes, &pulled.outcome));
  if (pulled.ours && task.pin) pulled.outcome.pin = store_->Open(task.ns).Get(key, {}).pin;
  return pulled;
}

}  // namespace ems::server
