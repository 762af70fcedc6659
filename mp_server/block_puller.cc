#include "mp_server/block_puller.h"

#include <utility>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/sha256.h"

namespace ems::server {
namespace {

constexpr Duration kReadPatience = std::chrono::minutes(5);  // the source has timeouts of its own
constexpr Duration kRoomPatience = std::chrono::seconds(10);
constexpr Duration kFetchPatience = std::chrono::seconds(10);
constexpr Duration kLookAgain = std::chrono::milliseconds(5);

}  // namespace

Result<bool> BlockPuller::Find(const ModelPull::Task& task, const std::string& key,
                               ModelPull::Outcome* outcome) {
  const Deadline deadline = Deadline::After(kFetchPatience);
  while (!deadline.Passed()) {
    if (ObjectPin pin = store_->dram().Get(task.ns, key, true)) {
      outcome->pin = std::move(pin);
      return true;
    }
    if (!store_->OnSsd(task.ns, key)) return false;
    const auto landed = std::make_shared<StopFlag>();
    const TieredStore::Started started =
        store_->StartFetch(task.ns, key, [landed] { landed->Set(); });
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
      outcome->promoted_bytes = started.fetch->value().size();
  }
  if (stop_->IsSet()) return Error(StatusCode::kCancelled, "stopping");
  return false;  // an SSD that is too slow: the source is asked
}

Result<bool> BlockPuller::Store(const ModelPull::Task& task, const std::string& key,
                                ConstBytes bytes, ModelPull::Outcome* outcome) {
  const Deadline deadline = Deadline::After(kRoomPatience);
  while (true) {
    // Not for ever under one view: whoever gave the task looks at the view again.
    const Verdict verdict = ownership_->CheckWrite(task.slot, ViewVersion());
    if (verdict == Verdict::kHold) {
      if (stop_->WaitFor(kLookAgain)) return Error(StatusCode::kCancelled, "stopping");
      if (deadline.Passed()) return false;
      continue;
    }
    if (verdict != Verdict::kYes) return false;
    auto reserved = store_->dram().Reserve(task.ns, task.slot, key, bytes.size());
    if (reserved.ok()) {
      Reservation reservation = *std::move(reserved);
      PieceHasher hasher;
      hasher.Start(reservation.piece_sums());
      CopyValue(reservation.value(), bytes.data(), &hasher);
      bool stored = false;
      ssd::TicketPtr ticket;
      const Status published = store_->Publish(
          std::move(reservation), hasher.Finish(), false, false, [] {}, &stored, &ticket);
      // Slot or namespace were lost meanwhile.
      if (published.code() == StatusCode::kFailedPrecondition) return false;
      EMS_RETURN_IF_ERROR(published);
      outcome->shared = !stored;
      return true;
    }
    if (reserved.status().code() == StatusCode::kFailedPrecondition) return false;
    if (reserved.status().code() != StatusCode::kResourceExhausted || deadline.Passed())
      return Prefixed(reserved.status(),
                      fmt::format("no room for a block of {}", task.manifest->model));
    if (stop_->WaitFor(kLookAgain)) return Error(StatusCode::kCancelled, "stopping");
  }
}

Result<BlockPuller::Pulled> BlockPuller::Pull(const ModelPull::Task& task, const OpenSource& open,
                                              std::vector<std::byte>* buffer) {
  Pulled pulled;
  const model::ManifestBlock& block = task.manifest->blocks[task.block];
  // What cannot be kept is not read: whoever has given the task gives it again, and again.
  if (ownership_->CheckRead(task.slot, ViewVersion()) != Verdict::kYes ||
      !store_->dram().Knows(task.ns)) {
    pulled.ours = false;
    return pulled;
  }
  if (task.digest) {
    pulled.outcome.digest = *task.digest;
    EMS_ASSIGN_OR_RETURN(const bool found,
                         Find(task, model::BlockKey(*task.digest), &pulled.outcome));
    if (found) return pulled;
  }
  // Nor what could not be stored now: a server without a lease may be so for hours.
  const Verdict write = ownership_->CheckWrite(task.slot, ViewVersion());
  if (write != Verdict::kYes && write != Verdict::kHold) {
    pulled.ours = false;
    return pulled;
  }
  const model::ManifestFile& file = task.manifest->files[block.file];
  EMS_ASSIGN_OR_RETURN(const auto source, open());
  if (buffer->size() < block.bytes) buffer->resize(block.bytes);
  const MutableBytes bytes = MutableBytes(*buffer).first(block.bytes);
  const Deadline deadline = Deadline::After(kReadPatience);
  Sha256 sha256;
  // Bytes that are not those read before are read twice: they may have been damaged on the way.
  for (int tries = 0; tries < 2; ++tries) {
    EMS_RETURN_IF_ERROR(source->Read({.path = file.path, .bytes = file.bytes, .tag = file.tag},
                                     block.offset, bytes, deadline));
    pulled.outcome.source_bytes += block.bytes;
    pulled.outcome.digest = sha256.Digest(bytes);
    if (!task.digest || *task.digest == pulled.outcome.digest) break;
  }
  if (task.digest && *task.digest != pulled.outcome.digest) {
    return Error(StatusCode::kFailedPrecondition,
                 "the source has changed: bytes {}+{} of {} are not those read before; add it as "
                 "another version",
                 block.offset, block.bytes, file.path);
  }
  const std::string key = model::BlockKey(pulled.outcome.digest);
  EMS_ASSIGN_OR_RETURN(pulled.ours, Store(task, key, bytes, &pulled.outcome));
  if (pulled.ours && task.pin) pulled.outcome.pin = store_->dram().Get(task.ns, key, true);
  return pulled;
}

}  // namespace ems::server
