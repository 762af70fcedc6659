#pragma once
// A version of one file in 40 blocks, and what a server hears and reads of it.
#include <bitset>
#include <memory>
#include <utility>
#include <vector>

#include "cluster/slot_table.h"
#include "mp_server/models/model_pull.h"
#include "proto/model.pb.h"

namespace ems::server {

inline constexpr NamespaceRef kNs{NamespaceId(3), 1};
inline constexpr uint32_t kBlocks = 40;

inline std::shared_ptr<const model::Manifest> Sample() {
  auto manifest = std::make_shared<model::Manifest>();
  manifest->files = {{"w", uint64_t{10} * kBlocks, "t"}};
  for (uint32_t i = 0; i < kBlocks; ++i)
    manifest->blocks.push_back({0, i * uint64_t{10}, 10, {static_cast<std::byte>(i)}});
  return manifest;
}

// Every slot, or those of every second block.
inline std::bitset<kSlotCount> Slots(bool half) {
  std::bitset<kSlotCount> owned;
  const auto manifest = Sample();
  for (uint32_t i = 0; i < kBlocks; i += half ? 2 : 1)
    owned.set(SlotOf(kNs.id, model::RouteKey(manifest->blocks[i].route)).value());
  return owned;
}

inline v1::ModelStatus JobStatus(uint64_t job, bool running, bool pinned = false) {
  v1::ModelStatus status;
  status.set_pinned(pinned);
  status.mutable_job()->set_number(job);
  status.mutable_job()->set_state(running ? v1::PULL_RUNNING : v1::PULL_DONE);
  return status;
}

inline model::BlockDigest Digest(uint32_t block) {
  model::BlockDigest digest{};
  digest[0] = static_cast<std::byte>(block);
  return digest;
}

inline ModelPull::Outcome FromSource(uint32_t block) {
  ModelPull::Outcome outcome;
  outcome.digest = Digest(block);
  outcome.source_bytes = 10;
  return outcome;
}

inline std::vector<ModelPull::Task> TakeAll(ModelPull* pull) {
  std::vector<ModelPull::Task> tasks;
  while (auto task = pull->Next()) tasks.push_back(*std::move(task));
  return tasks;
}

inline v1::ReportPullRequest Report(ModelPull* pull) {
  v1::ReportPullRequest report;
  pull->FillReport(&report);
  return report;
}

}  // namespace ems::server
