#include "mp_controller/models/added_again.h"

#include <algorithm>
#include <vector>

namespace ems::controller {

using model::FirstRead;
using model::Manifest;

namespace {

Status IsThere(const Manifest& asked, std::string_view how) {
  return Error(StatusCode::kAlreadyExists,
               "version {} of {} exists {}: add another version, or remove that one", asked.version,
               asked.model, how);
}

// That both are of the same bytes, with the same sums, in the same blocks.
Status CheckSame(const Manifest& there, const Manifest& asked) {
  if (there.files != asked.files) {
    std::vector<model::ManifestFile> files = asked.files;
    for (size_t i = 0; i < std::min(files.size(), there.files.size()); ++i)
      files[i].sum = there.files[i].sum;
    if (files != there.files) return IsThere(asked, "with other files");
    return IsThere(asked, "with other sums of the same files, as with or without --ignore-etags");
  }
  if (there.blocks == asked.blocks) return OkStatus();
  return IsThere(asked, fmt::format("with the same files, cut into other blocks, of {} at most",
                                    FormatBytes(there.block_bytes)));
}

}  // namespace

Result<bool> TakesFirstRead(const Manifest& there, bool untouched, const Manifest& asked,
                            bool may_lower) {
  EMS_RETURN_IF_ERROR(CheckSame(there, asked));
  const FirstRead was = there.source.first_read, is = asked.source.first_read;
  if (is == was || (is < was && !may_lower)) return false;
  model::ManifestSource changed = there.source;
  changed.first_read = is;
  const bool same = changed == asked.source && there.name_space == asked.name_space;
  if (same && untouched) return true;
  if (was != FirstRead::kOnce || is != FirstRead::kTwice) return false;
  return IsThere(asked, untouched ? "unverified, with another URL, credentials, rate or namespace"
                                  : "unverified, and may have been read");
}

}  // namespace ems::controller
