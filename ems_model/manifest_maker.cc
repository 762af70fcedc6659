#include "ems_model/manifest_maker.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <optional>
#include <utility>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "ems_model/format/block_cutter.h"
#include "ems_model/format/gguf.h"
#include "ems_model/format/safetensors.h"

namespace ems::model {
namespace {

constexpr size_t kReaders = 8;
constexpr uint64_t kFirstReadBytes = 64 * kKiB;  // most headers of shards fit
constexpr int kReadsMax = 40;  // a parser asks for at least one byte more each time; GGUF doubles

bool Matches(const std::string& path, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::ranges::any_of(patterns, [&](const std::string& pattern) {
           return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
         });
}

// Nothing: an opaque file.
Result<std::optional<TensorTable>> ReadTable(WeightSource* source, const SourceFile& file,
                                             Deadline deadline) {
  const FileFormat format = FormatOf(file.path);
  if (format == FileFormat::kOpaque || file.bytes == 0) return std::nullopt;
  std::vector<std::byte> first;
  uint64_t needed = std::min(file.bytes, kFirstReadBytes);
  for (int reads = 0; reads < kReadsMax; ++reads) {
    const uint64_t had = first.size();
    first.resize(needed);
    EMS_RETURN_IF_ERROR(source->Read(file, had, MutableBytes(first).subspan(had), deadline));
    Result<HeaderParse> parsed = ParseHeader(format, first, file.bytes, file.path);
    if (parsed.status().code() == StatusCode::kUnimplemented) return std::nullopt;
    EMS_RETURN_IF_ERROR(parsed.status());
    if (parsed->done()) return std::move(parsed->table);
    needed = parsed->bytes_needed;
  }
  return Error(StatusCode::kInvalidArgument, "{}: its header does not end", file.path);
}

struct Tables {
  std::vector<std::optional<TensorTable>> of;  // by file
  Status error;
};

Result<std::vector<std::optional<TensorTable>>> ReadTables(WeightSource* source,
                                                           const std::vector<SourceFile>& files,
                                                           Deadline deadline) {
  Guarded<Tables> tables;
  {
    auto locked = tables.Lock();
    locked->of.resize(files.size());
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < files.size(); i = next.fetch_add(1)) {
      Result<std::optional<TensorTable>> table = ReadTable(source, files[i], deadline);
      auto locked = tables.Lock();
      if (table.ok()) {
        locked->of[i] = *std::move(table);
        continue;
      }
      if (locked->error.ok()) locked->error = std::move(table).status();
      next = files.size();
    }
  };
  {
    std::vector<Thread> readers;
    for (size_t i = 0; i < std::min(kReaders, files.size()); ++i)
      readers.emplace_back(fmt::format("ems-headers-{}", i), work);
  }
  auto locked = tables.Lock();
  EMS_RETURN_IF_ERROR(locked->error);
  return std::move(locked->of);
}

Result<BlockRoute> RouteOf(std::string_view hex) {
  BlockRoute route;
  for (size_t i = 0; i < route.size() && hex.size() == 2 * route.size(); ++i) {
    uint8_t byte = 0;
    const char* const at = hex.data() + 2 * i;
    if (std::from_chars(at, at + 2, byte, 16).ptr != at + 2) break;
    route[i] = std::byte(byte);
    if (i + 1 == route.size()) return route;
  }
  return Error(StatusCode::kInternal, "\"{}\" is no route", Printable(hex));
}

}  // namespace

FileFormat FormatOf(std::string_view path) {
  if (path.ends_with(".safetensors")) return FileFormat::kSafetensors;
  return path.ends_with(".gguf") ? FileFormat::kGguf : FileFormat::kOpaque;
}

Result<HeaderParse> ParseHeader(FileFormat format, ConstBytes first_bytes, uint64_t file_bytes,
                                std::string_view file) {
  if (format == FileFormat::kSafetensors) return ParseSafetensors(first_bytes, file_bytes, file);
  if (format == FileFormat::kGguf) return ParseGguf(first_bytes, file_bytes, file);
  return Error(StatusCode::kUnimplemented, "{} has no header that is known here", file);
}

Result<Manifest> MakeManifest(WeightSource* source, const std::string& url, const ModelName& name,
                              const std::string& name_space, const AddOptions& options,
                              Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(std::vector<SourceFile> files, source->List(deadline));
  std::erase_if(files,
                [&](const SourceFile& file) { return !Matches(file.path, options.include); });
  if (files.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: no file matches {}", url,
                 fmt::join(options.include, ", "));
  }
  EMS_ASSIGN_OR_RETURN(const auto tables, ReadTables(source, files, deadline));
  Manifest manifest{.model = name.model,
                    .version = name.version,
                    .name_space = name_space,
                    .source = {.url = url,
                               .credentials = options.credentials,
                               .bytes_per_s_max = options.bytes_per_s_max},
                    .block_bytes = options.block_bytes,
                    .files = {},
                    .blocks = {}};
  std::vector<CutFile> to_cut;
  for (size_t i = 0; i < files.size(); ++i) {
    manifest.files.push_back({.path = files[i].path, .bytes = files[i].bytes, .tag = files[i].tag});
    to_cut.push_back({.path = files[i].path,
                      .bytes = files[i].bytes,
                      .table = tables[i] ? &*tables[i] : nullptr});
  }
  EMS_ASSIGN_OR_RETURN(const std::vector<BlockSpan> spans,
                       CutIntoBlocks(to_cut, options.block_bytes));
  manifest.blocks.reserve(spans.size());
  for (const BlockSpan& span : spans) {
    EMS_ASSIGN_OR_RETURN(const BlockRoute route, RouteOf(span.route));
    manifest.blocks.push_back(
        {.file = span.file, .offset = span.offset, .bytes = span.bytes, .route = route});
  }
  EMS_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

}  // namespace ems::model
