#include "model_files/format/manifest.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "common/hash.h"
#include "model_files/format/file_sum.h"
#include "model_files/format/tensor_table.h"
#include "proto/model.pb.h"

namespace ems::model {
namespace {

constexpr size_t kNameBytesMax = 128;
constexpr size_t kPathBytesMax = 1024;
constexpr size_t kTagBytesMax = 256;
constexpr size_t kUrlBytesMax = 2048;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// UTF-8, as Protobuf wants it, without control characters: a terminal obeys them, and a line of a
// log ends with some.
bool IsPlain(std::string_view text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  return IsUtf8(text) && std::ranges::none_of(text, is_control);
}

Status CheckName(std::string_view what, std::string_view name, bool slashes) {
  const bool length = !name.empty() && name.size() <= kNameBytesMax;
  bool inner = !name.starts_with('-');  // an option, to most programs
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view step = name.substr(at, end - at);
    inner = inner && !step.empty() && step != "." && step != "..";
    at = end + 1;
  }
  const bool characters = std::ranges::all_of(
      name, [&](char c) { return IsNameCharacter(c) || (slashes && c == '/'); });
  if (length && inner && characters) return OkStatus();
  return Error(
      StatusCode::kInvalidArgument,
      "{} \"{}\": 1 to {} of A-Z a-z 0-9 . _ -{} are allowed, no - in front, no . or .. alone",
      what, Printable(name), kNameBytesMax, slashes ? " with / inside" : "");
}

Status CheckFile(const ManifestFile& file, size_t index) {
  const std::string_view path = file.path;
  bool climbs = path.starts_with('/') || path.ends_with('/') || path.empty();
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view step = path.substr(at, end - at);
    climbs = climbs || step.empty() || step == "." || step == "..";
    at = end + 1;
  }
  if (climbs || path.size() > kPathBytesMax || !IsPlain(path)) {
    return Error(StatusCode::kInvalidArgument,
                 "file {}: \"{}\" is no path below a source, of at most {} bytes of UTF-8 without "
                 "control characters",
                 index, Printable(path.substr(0, kPathBytesMax)), kPathBytesMax);
  }
  if (file.tag.size() > kTagBytesMax || !IsPlain(file.tag)) {
    return Error(StatusCode::kInvalidArgument,
                 "file {}: a tag of {} bytes: {} at most, of UTF-8 without control characters",
                 file.path, file.tag.size(), kTagBytesMax);
  }
  if (file.bytes > uint64_t{1} << 50) {
    return Error(StatusCode::kInvalidArgument, "file {}: {} bytes are more than 1 PiB", file.path,
                 file.bytes);
  }
  if (file.sum.empty()) return OkStatus();
  return Prefixed(ParseFileSum(file.sum, file.bytes).status(), fmt::format("file {}", file.path));
}

// Blocks and files side by side: each block goes on where the one before it ended.
Status CheckCover(const Manifest& manifest) {
  size_t next = 0;
  for (uint32_t file = 0; file < manifest.files.size(); ++file) {
    uint64_t at = 0;
    for (; next < manifest.blocks.size() && manifest.blocks[next].file == file; ++next) {
      const ManifestBlock& block = manifest.blocks[next];
      if (block.offset != at || block.bytes == 0 || block.bytes > manifest.block_bytes ||
          block.bytes > manifest.files[file].bytes - at) {
        return Error(StatusCode::kInvalidArgument,
                     "block {}: bytes {}+{} of {}, which has {} and is covered to {} by blocks of "
                     "at most {}",
                     next, block.offset, block.bytes, manifest.files[file].path,
                     manifest.files[file].bytes, at, manifest.block_bytes);
      }
      at += block.bytes;
    }
    if (at != manifest.files[file].bytes) {
      return Error(StatusCode::kInvalidArgument, "file {}: blocks cover {} of {} bytes",
                   manifest.files[file].path, at, manifest.files[file].bytes);
    }
  }
  if (next == manifest.blocks.size()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "block {} is of file {}: files follow each other",
               next, manifest.blocks[next].file);
}

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t sum = 0;
  for (const ManifestFile& file : files) sum += file.bytes;
  return sum;
}

Status CheckModelName(std::string_view model) { return CheckName("model", model, true); }

Status CheckVersionName(std::string_view version) { return CheckName("version", version, false); }

Status CheckManifest(const Manifest& manifest) {
  EMS_RETURN_IF_ERROR(CheckModelName(manifest.model));
  EMS_RETURN_IF_ERROR(CheckVersionName(manifest.version));
  EMS_RETURN_IF_ERROR(CheckName("namespace", manifest.name_space, false));
  const std::string& url = manifest.source.url;
  if (url.empty() || url.size() > kUrlBytesMax || !IsPlain(url)) {
    return Error(
        StatusCode::kInvalidArgument,
        "a source's URL has 1 to {} bytes of UTF-8 without control characters; this one has {}",
        kUrlBytesMax, url.size());
  }
  if (!manifest.source.credentials.empty())
    EMS_RETURN_IF_ERROR(CheckName("credentials", manifest.source.credentials, false));
  if (manifest.block_bytes < kBlockBytesMin || manifest.block_bytes > kBlockBytesMax) {
    return Error(StatusCode::kInvalidArgument, "blocks of {} bytes: {} to {} are allowed",
                 manifest.block_bytes, kBlockBytesMin, kBlockBytesMax);
  }
  if (manifest.files.empty() || manifest.files.size() > kManifestFilesMax ||
      manifest.blocks.size() > kManifestBlocksMax) {
    return Error(StatusCode::kInvalidArgument,
                 "{} files in {} blocks: 1 to {} files and at most {} blocks are allowed",
                 manifest.files.size(), manifest.blocks.size(), kManifestFilesMax,
                 kManifestBlocksMax);
  }
  std::vector<std::string_view> paths;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    EMS_RETURN_IF_ERROR(CheckFile(manifest.files[i], i));
    paths.push_back(manifest.files[i].path);
  }
  std::ranges::sort(paths);
  const auto twice = std::ranges::adjacent_find(paths);
  if (twice != paths.end()) {
    return Error(StatusCode::kInvalidArgument, "file {} is named twice", *twice);
  }
  return CheckCover(manifest);
}

std::string_view FirstReadName(FirstRead first_read) {
  switch (first_read) {
    case FirstRead::kOnce:
      return "once";
    case FirstRead::kTwiceUnlessChecked:
      return "twice unless checked";
    case FirstRead::kTwice:
      return "twice";
  }
  return "";
}

void ToProto(const ManifestSource& source, v1::ModelSource* out) {
  out->set_url(source.url);
  out->set_credentials(source.credentials);
  out->set_bytes_per_s_max(source.bytes_per_s_max);
  out->set_first_read(static_cast<v1::FirstRead>(source.first_read));
}

ManifestSource FromProto(const v1::ModelSource& in) {
  ManifestSource source{.url = in.url(),
                        .credentials = in.credentials(),
                        .bytes_per_s_max = in.bytes_per_s_max(),
                        .first_read = FirstRead::kTwice};
  if (in.first_read() == v1::FIRST_READ_ONCE) source.first_read = FirstRead::kOnce;
  if (in.first_read() == v1::FIRST_READ_TWICE_UNLESS_CHECKED)
    source.first_read = FirstRead::kTwiceUnlessChecked;
  return source;
}

static_assert(static_cast<int>(FirstRead::kOnce) == v1::FIRST_READ_ONCE &&
              static_cast<int>(FirstRead::kTwiceUnlessChecked) ==
                  v1::FIRST_READ_TWICE_UNLESS_CHECKED &&
              static_cast<int>(FirstRead::kTwice) == v1::FIRST_READ_TWICE);

uint64_t ManifestChecksum(const Manifest& manifest) {
  Hash64Stream hash;
  const auto number = [&](uint64_t value) { hash.Update(std::as_bytes(std::span(&value, 1))); };
  const auto text = [&](std::string_view value) {
    number(value.size());
    hash.Update(AsBytes(value));
  };
  text(manifest.model);
  text(manifest.version);
  text(manifest.source.url);
  number(manifest.files.size());
  for (const ManifestFile& file : manifest.files) {
    text(file.path);
    number(file.bytes);
    text(file.tag);
    text(file.sum);
  }
  for (const ManifestBlock& block : manifest.blocks) {
    number(block.bytes);
    hash.Update(block.route);
  }
  return std::max<uint64_t>(hash.Digest(), 1);
}

void ToProto(const Manifest& manifest, v1::ModelManifest* out) {
  out->Clear();
  out->set_model(manifest.model);
  out->set_version(manifest.version);
  out->set_name_space(manifest.name_space);
  ToProto(manifest.source, out->mutable_source());
  out->set_block_bytes(manifest.block_bytes);
  for (const ManifestFile& file : manifest.files) {
    v1::ModelFile* one = out->add_files();
    one->set_path(file.path);
    one->set_bytes(file.bytes);
    one->set_tag(file.tag);
    one->set_sum(file.sum);
  }
  std::string* routes = out->mutable_block_routes();
  routes->reserve(manifest.blocks.size() * sizeof(BlockRoute));
  for (const ManifestBlock& block : manifest.blocks) {
    v1::ModelFile* file = out->mutable_files(static_cast<int>(block.file));
    file->set_blocks(file->blocks() + 1);
    out->add_block_lengths(block.bytes);
    routes->append(RouteKey(block.route));
  }
}

Result<Manifest> FromProto(const v1::ModelManifest& in) {
  const auto blocks = static_cast<uint64_t>(in.block_lengths_size());
  uint64_t of_files = 0;
  for (const v1::ModelFile& file : in.files()) of_files += file.blocks();
  if (blocks != of_files || blocks * sizeof(BlockRoute) != in.block_routes().size()) {
    return Error(
        StatusCode::kInvalidArgument,
        "{} block lengths, {} blocks of files and {} bytes of routes do not belong together",
        blocks, of_files, in.block_routes().size());
  }
  Manifest manifest;
  manifest.model = in.model();
  manifest.version = in.version();
  manifest.name_space = in.name_space();
  manifest.source = FromProto(in.source());
  manifest.block_bytes = in.block_bytes();
  manifest.blocks.reserve(blocks);
  for (const v1::ModelFile& file : in.files()) {
    const auto index = static_cast<uint32_t>(manifest.files.size());
    manifest.files.push_back(
        {.path = file.path(), .bytes = file.bytes(), .tag = file.tag(), .sum = file.sum()});
    uint64_t at = 0;
    for (uint32_t i = 0; i < file.blocks(); ++i) {
      ManifestBlock block{.file = index, .offset = at, .bytes = 0, .route = {}};
      const size_t number = manifest.blocks.size();
      block.bytes = in.block_lengths(static_cast<int>(number));
      std::memcpy(block.route.data(), in.block_routes().data() + number * sizeof(BlockRoute),
                  sizeof(BlockRoute));
      if (block.bytes > std::numeric_limits<uint64_t>::max() - at) break;  // CheckManifest says so
      at += block.bytes;
      manifest.blocks.push_back(block);
    }
  }
  EMS_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

std::string BlockKey(const BlockDigest& digest) { return "b" + std::string(AsText(digest)); }

std::string_view RouteKey(const BlockRoute& route) { return AsText(route); }

}  // namespace ems::model
