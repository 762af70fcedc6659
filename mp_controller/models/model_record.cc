#include "mp_controller/models/model_record.h"

#include <algorithm>
#include <utility>

#include "proto/model.pb.h"

namespace ems::controller {
namespace {

uint64_t Ms(Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()));
}

// When it was by this machine's monotonic clock; what is stored may be from before that began.
TimePoint FromUnix(uint64_t stored_ms, TimePoint now, uint64_t unix_ms) {
  if (stored_ms == 0 || stored_ms >= unix_ms) return now;
  constexpr uint64_t kMost = 100ULL * 365 * 24 * 3600 * 1000;  // what a Duration can say
  return now - std::chrono::milliseconds(std::min(unix_ms - stored_ms, kMost));
}

}  // namespace

ModelRecord::ModelRecord(uint32_t id_in, model::Manifest manifest_in, uint64_t log, TimePoint now)
    : id(id_in),
      manifest(std::move(manifest_in)),
      manifest_checksum(model::ManifestChecksum(manifest)),
      known(id, manifest),
      checks(manifest, log),
      added(now),
      used(now) {}

void ModelRecord::Use(TimePoint now) {
  used = now;
  use_stored = false;
}

Status ModelRecord::CheckManifest(uint64_t told) const {
  if (told == 0 || told == manifest_checksum) return OkStatus();
  return Error(
      StatusCode::kNotFound,
      "version {} is {} {} here, with manifest {:016x}: a report of manifest {:016x} is of "
      "another one",
      id, manifest.model, manifest.version, manifest_checksum, told);
}

void ModelRecord::FillJob(const DhtView* view, TimePoint now, v1::PullJob* out) const {
  job.Fill(view, now, manifest.blocks.size(), manifest.bytes(), out);
  out->set_checked_bytes(std::min(checks.checked_bytes() + out->checked_bytes(), manifest.bytes()));
}

void ModelRecord::Fill(const DhtView* view, TimePoint now, v1::ModelStatus* out) const {
  out->mutable_ref()->set_id(id);
  out->mutable_ref()->set_model(manifest.model);
  out->mutable_ref()->set_version(manifest.version);
  out->set_name_space(manifest.name_space);
  model::ToProto(manifest.source, out->mutable_source());
  out->set_bytes(manifest.bytes());
  out->set_files(static_cast<uint32_t>(manifest.files.size()));
  out->set_blocks(static_cast<uint32_t>(manifest.blocks.size()));
  out->set_blocks_known(static_cast<uint32_t>(known.count()));
  out->set_pinned(pinned);
  out->set_age_ms(Ms(now - added));
  out->set_unused_ms(Ms(now - used));
  FillJob(view, now, out->mutable_job());
}

std::string ModelRecord::Row(const PullJob& with_job, bool with_pin, TimePoint now,
                             uint64_t unix_ms) const {
  v1::ModelStatus row;
  row.set_pinned(with_pin);
  row.set_added_unix_ms(unix_ms - std::min(unix_ms, Ms(now - added)));
  row.set_used_unix_ms(unix_ms - std::min(unix_ms, Ms(now - used)));
  with_job.Save(now, unix_ms, row.mutable_job());
  return row.SerializeAsString();
}

void ModelRecord::Restore(const v1::ModelStatus& row, TimePoint now, uint64_t unix_ms) {
  pinned = row.pinned();
  added = FromUnix(row.added_unix_ms(), now, unix_ms);
  used = FromUnix(row.used_unix_ms(), now, unix_ms);
  job.Restore(row.job(), now, unix_ms);
}

}  // namespace ems::controller
