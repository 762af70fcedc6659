#pragma once
// The manifest of a model version: its files, and the blocks that cover them.
//
// Block i of a version is bytes [offset, offset + bytes) of its file. In the pool it is an object
// whose key is the SHA-256 of those bytes, so equal blocks are kept once; where it is kept follows
// from its route, which does not depend on the version, so equal blocks meet on one server.
// Invariant: the blocks of a file follow each other from its first to its last byte, files in
// order. Bound: kManifestBlocksMax blocks, kManifestFilesMax files.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/sha256.h"
#include "common/status.h"
#include "model_files/format/block_cutter.h"

namespace ems::v1 {
class ModelManifest;
class ModelSource;
}  // namespace ems::v1

namespace ems::model {

inline constexpr uint32_t kManifestBlocksMax = 500'000;
inline constexpr uint32_t kManifestFilesMax = 10'000;
// A manifest of the most blocks and files, as a message.
inline constexpr int kManifestMessageBytesMax = 24 << 20;

using BlockRoute = std::array<std::byte, 16>;
using BlockDigest = Sha256Digest;

// The number of reads of a block from the source before its digest is known: the digest of the
// first bytes read counts from then on. The values are those of v1::FirstRead.
enum class FirstRead : uint8_t {
  kOnce,
  // Until it is the same twice in a row, unless the source gives a checksum of it.
  kTwiceUnlessChecked,
  kTwice,  // also then
};
// "once", "twice unless checked", "twice".
std::string_view FirstReadName(FirstRead first_read);

struct ManifestSource {
  std::string url;
  std::string credentials;       // a name, never a secret; empty: none
  uint64_t bytes_per_s_max = 0;  // of each server; 0: as fast as it goes
  FirstRead first_read = FirstRead::kOnce;
  friend bool operator==(const ManifestSource&, const ManifestSource&) = default;
};

struct ManifestFile {
  std::string path;  // below the source; no "..", not absolute
  uint64_t bytes = 0;
  std::string tag;  // changes when the bytes change
  // What the source says its bytes add up to (file_sum.h); empty: nothing. Until that has been
  // found to be so, its blocks' digests are not told to who loads.
  std::string sum = {};
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestBlock {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;   // 1 to block_bytes
  BlockRoute route{};
  friend bool operator==(const ManifestBlock&, const ManifestBlock&) = default;
};

struct Manifest {
  std::string model;
  std::string version;
  std::string name_space;
  ManifestSource source;
  uint64_t block_bytes = kBlockBytesDefault;
  std::vector<ManifestFile> files;
  std::vector<ManifestBlock> blocks;

  uint64_t bytes() const;  // of all files
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Errors: kInvalidArgument  a model is 1–128 of [A-Za-z0-9._-] with slashes inside, a version the
// same without
Status CheckModelName(std::string_view model);
Status CheckVersionName(std::string_view version);
// All of the invariants and bounds above. Errors: kInvalidArgument  names what and where
Status CheckManifest(const Manifest& manifest);

// What its blocks are: equal for two manifests of one name, version and source with the same files
// and blocks. How they are read, and where they are kept, is not among it. Never 0.
// Cost: O(files + blocks).
uint64_t ManifestChecksum(const Manifest& manifest);

void ToProto(const Manifest& manifest, v1::ModelManifest* out);
// Errors: as CheckManifest
Result<Manifest> FromProto(const v1::ModelManifest& in);
// The same of the source alone. What is not known here is read twice.
void ToProto(const ManifestSource& source, v1::ModelSource* out);
ManifestSource FromProto(const v1::ModelSource& in);

// The key of the object that holds a block.
std::string BlockKey(const BlockDigest& digest);
// The route key of a block.
std::string_view RouteKey(const BlockRoute& route);

}  // namespace ems::model
