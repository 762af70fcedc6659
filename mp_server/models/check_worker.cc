#include "mp_server/models/check_worker.h"

#include <memory>

#include "cluster/slot_table.h"
#include "common/check.h"
#include "proto/model.pb.h"

namespace ems::server {
namespace {

constexpr Duration kTellPatience = std::chrono::seconds(2);
// Of another server's block, however slowly that sends: a server that stops waits for it.
constexpr Duration kReadPatience = std::chrono::seconds(4);

}  // namespace

Status CheckWorker::Run(ModelPull::CheckTask* task, std::vector<std::byte>* buffer,
                        ModelPull::CheckOutcome* outcome) {
  if (!task->sum.empty()) {
    const Status told = Tell(*task);
    outcome->told = told.ok();
    outcome->unknown = told.code() == StatusCode::kFailedPrecondition;
    return told;
  }
  EMS_RETURN_IF_ERROR(model::FileHasher::Offered());
  if (task->hasher == nullptr) {
    const model::ManifestFile& file = task->manifest->files[task->file];
    EMS_ASSIGN_OR_RETURN(const model::FileSum sum, model::ParseFileSum(file.sum, file.bytes));
    task->hasher = std::make_shared<model::FileHasher>(sum);
  }
  EMS_CHECK(task->first + task->digests.size() <= task->manifest->blocks.size(),
            "blocks {}+{} of {}", task->first, task->digests.size(), task->manifest->blocks.size());
  while (outcome->added < task->digests.size()) {
    if (table_.stop.IsSet()) return Error(StatusCode::kCancelled, "stopping");
    EMS_ASSIGN_OR_RETURN(const bool there, Add(*task, outcome->added, buffer));
    if (!there) {
      outcome->missing = task->first + outcome->added;
      break;
    }
    ++outcome->added;
  }
  return OkStatus();
}

Result<bool> CheckWorker::Add(const ModelPull::CheckTask& task, uint32_t index,
                              std::vector<std::byte>* buffer) {
  const model::ManifestBlock& block = task.manifest->blocks[task.first + index];
  const std::string key = model::BlockKey(task.digests[index]);
  const SlotId slot = SlotOf(task.ns.id, model::RouteKey(block.route));
  const ViewCache::View view = table_.options.views->view();
  ModelPull::Outcome found;
  bool there = false;
  if (view == nullptr || view->OwnerId(slot) == table_.options.ownership->self()) {
    EMS_ASSIGN_OR_RETURN(there, blocks_->Find(task.ns, key, block.bytes, {.check = true}, &found));
    if (there) task.hasher->Update(found.pin.value());
  } else {
    if (buffer->size() < block.bytes) buffer->resize(block.bytes);
    const MutableBytes bytes = MutableBytes(*buffer).first(block.bytes);
    EMS_ASSIGN_OR_RETURN(
        there, peers_.Read(*view, task.ns, slot, key, bytes, Deadline::After(kReadPatience)));
    if (there) task.hasher->Update(bytes);
  }
  if (there) table_.counters.checked_bytes.Add(static_cast<double>(block.bytes));
  return there;
}

Status CheckWorker::Tell(const ModelPull::CheckTask& task) {
  v1::ReportSumRequest report;
  report.set_model_id(task.model_id);
  report.set_manifest(task.manifest_checksum);
  report.set_file(task.file);
  report.set_sum(task.sum);
  for (const model::BlockDigest& digest : task.digests)
    report.mutable_digests()->append(AsText(digest));
  const Status told = table_.models.ReportSum(report, Deadline::After(kTellPatience));
  // The version has been removed: nobody wants to know.
  return told.code() == StatusCode::kNotFound ? OkStatus() : told;
}

}  // namespace ems::server
