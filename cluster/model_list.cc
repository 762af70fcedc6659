#include "cluster/model_list.h"

#include <array>
#include <set>

#include "common/check.h"
#include "common/hash.h"
#include "proto/model.pb.h"

namespace ems {

uint64_t ModelRowHash(const v1::ModelStatus& status) {
  const std::array<uint64_t, 5> row = {
      status.ref().id(), static_cast<uint64_t>(status.pinned()), status.job().number(),
      static_cast<uint64_t>(status.job().state()), status.job().priority()};
  return Hash64(std::as_bytes(std::span(row)));
}

ModelList::ModelList() = default;
ModelList::~ModelList() = default;

void ModelList::Put(const v1::ModelStatus& status) {
  std::unique_ptr<v1::ModelStatus>& row = rows_[status.ref().id()];
  if (row != nullptr) checksum_ ^= ModelRowHash(*row);
  row = std::make_unique<v1::ModelStatus>(status);
  checksum_ ^= ModelRowHash(*row);
}

bool ModelList::Remove(uint32_t id) {
  const auto at = rows_.find(id);
  if (at == rows_.end()) return false;
  checksum_ ^= ModelRowHash(*at->second);
  rows_.erase(at);
  EMS_CHECK(!rows_.empty() || checksum_ == 0, "checksum {:016x} of no versions", checksum_);
  return true;
}

Status ModelList::Apply(const v1::ListModelsReply& reply, std::vector<uint32_t>* changed,
                        std::vector<uint32_t>* removed) {
  std::set<uint32_t> told;
  for (const v1::ModelStatus& status : reply.models()) {
    Put(status);
    told.insert(status.ref().id());
  }
  changed->assign(told.begin(), told.end());
  for (const uint32_t id : reply.removed()) {
    if (Remove(id)) removed->push_back(id);
  }
  if (!reply.changes()) {
    for (const uint32_t id : ids()) {
      if (!told.contains(id) && Remove(id)) removed->push_back(id);
    }
  }
  number_ = reply.number();
  if (!reply.changes()) return OkStatus();  // all there is
  if (rows_.size() == reply.versions() && checksum_ == reply.checksum()) return OkStatus();
  const Status differs =
      Error(StatusCode::kDataLoss,
            "list {} of models has {} versions and checksum {:016x}, here are {} and {:016x}",
            reply.number(), reply.versions(), reply.checksum(), rows_.size(), checksum_);
  number_ = 0;
  return differs;
}

const v1::ModelStatus* ModelList::Find(uint32_t id) const {
  const auto at = rows_.find(id);
  return at == rows_.end() ? nullptr : at->second.get();
}

std::vector<uint32_t> ModelList::ids() const {
  std::vector<uint32_t> ids;
  for (const auto& [id, row] : rows_) ids.push_back(id);
  return ids;
}

}  // namespace ems
