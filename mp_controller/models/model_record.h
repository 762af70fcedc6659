#pragma once
// One version of a model as the controller knows it, and the row that keeps its pin, its job and
// when it was used last.
//
// Invariant: a use is stored within kStoreUsesEvery and with each change of pin or job, so a
// restart of the controller makes no version younger or older by more than that.
#include <cstdint>
#include <string>

#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/status.h"
#include "model_files/format/manifest.h"
#include "mp_controller/models/file_checks.h"
#include "mp_controller/models/known_digests.h"
#include "mp_controller/models/pull_job.h"

namespace ems::v1 {
class ModelStatus;
class PullJob;
}  // namespace ems::v1

namespace ems::controller {

// It stays where it is: its parts know its manifest. Threading: one thread.
struct ModelRecord {
  static constexpr Duration kStoreUsesEvery = std::chrono::minutes(1);

  // `log`: FileChecks'.
  ModelRecord(uint32_t id, model::Manifest manifest, uint64_t log, TimePoint now);
  ModelRecord(const ModelRecord&) = delete;
  ModelRecord& operator=(const ModelRecord&) = delete;

  void Use(TimePoint now);
  // Whether a report is of this version. `told`: what it says of its manifest, 0: nothing.
  // Errors: kNotFound  it is of another one that had this id, in another store
  Status CheckManifest(uint64_t told) const;
  // What is told of it.   Cost: O(servers of its job).
  void Fill(const DhtView* view, TimePoint now, v1::ModelStatus* out) const;
  void FillJob(const DhtView* view, TimePoint now, v1::PullJob* out) const;
  // The row as it would be with this job and pin. `unix_ms`: the wall clock at `now`.
  std::string Row(const PullJob& with_job, bool with_pin, TimePoint now, uint64_t unix_ms) const;
  void Restore(const v1::ModelStatus& row, TimePoint now, uint64_t unix_ms);

  const uint32_t id;
  model::Manifest manifest;
  const uint64_t manifest_checksum;  // ManifestChecksum: a change of how it is read first leaves it
  bool pinned = false;
  bool untouched = false;  // since it was added, by this controller: nobody has read its source
  bool use_stored = true;  // when it was used last
  KnownDigests known;
  FileChecks checks;
  PullJob job;
  TimePoint added, used;
};

}  // namespace ems::controller
