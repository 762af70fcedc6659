#pragma once
// The rows in which versions of models are stored, by key: the next id, and of each version its
// manifest, its pin and job, and digests of its blocks in the order in which they became known.
//
// In the order of keys a version's manifest comes first, then its pin and job, then its digests.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "model_files/format/manifest.h"

namespace ems::controller {

inline constexpr std::string_view kNextIdKey = "meta/next_model_id";
inline constexpr std::string_view kManifestPrefix = "manifest/";    // id → manifest
inline constexpr std::string_view kModelPrefix = "model/";          // id → pin and job
inline constexpr std::string_view kDigestPrefix = "model_digest/";  // id/first → blocks, digests

std::string ModelKey(std::string_view prefix, uint32_t id);
// `first`: how many digests of the version were known before those of the row.
std::string DigestKey(uint32_t id, size_t first);
// What ModelKey and DigestKey have made, without the prefix.   Errors: kDataLoss
Result<uint32_t> ParseModelId(std::string_view text);
struct DigestRowName {
  uint32_t id = 0;
  uint32_t first = 0;
};
Result<DigestRowName> ParseDigestRowName(std::string_view text);

// One more digest at the end of a row.
void AppendDigest(uint32_t block, const model::BlockDigest& digest, std::string* row);
// Calls `take` with each digest of a row; the first error ends it. A torn end is left out.
Status ForEachDigest(std::string_view row,
                     const std::function<Status(uint32_t, const model::BlockDigest&)>& take);

}  // namespace ems::controller
