#include "ems_model/manifest_maker.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <optional>
#include <utility>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "model_files/format/block_cutter.h"
#include "model_files/format/gguf.h"
#include "model_files/format/safetensors.h"
#include "model_files/source/source_url.h"

namespace ems::model {
namespace {

constexpr size_t kReaders = 8;
constexpr uint64_t kFirstReadBytes = 64 * kKiB;  // most headers of shards fit
constexpr int kReadsMax = 40;    // a parser asks for at least one byte more each time; GGUF doubles
constexpr size_t kTriesMax = 6;  // readings of a header or a list that is to be read twice

// What is read twice is read from both in turn: they share no connection.
using Sources = std::array<WeightSource*, 2>;

bool Matches(const std::string& path, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::ranges::any_of(patterns, [&](const std::string& pattern) {
           return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
         });
}

struct Header {
  std::vector<std::byte> bytes;
  bool compared = true;  // all of them, with a checksum of the source
  // Nothing: an opaque file.
  Result<std::optional<TensorTable>> table = std::nullopt;
};

// An answer that damage can have made: a list that makes no sense, or that names what is not there.
bool MayBeDamaged(StatusCode code) {
  return code == StatusCode::kDataLoss || code == StatusCode::kNotFound;
}

// What files there are decides on all else: an index that was damaged on the way would make a
// version that lacks a shard, and that nobody finds wrong.
Result<std::vector<SourceFile>> ListFiles(const Sources& sources, FirstRead first_read,
                                          Deadline deadline) {
  Result<std::vector<SourceFile>> files = sources[0]->List(deadline);
  if (first_read == FirstRead::kOnce) return files;
  for (size_t lists = 1; lists < kTriesMax; ++lists) {
    if (!files.ok() && !MayBeDamaged(files.status().code())) return files;
    Result<std::vector<SourceFile>> again = sources[lists % 2]->List(deadline);
    const bool same = files.ok() && again.ok() ? *files == *again
                                               : files.status().code() == again.status().code();
    if (same) return again;
    files = std::move(again);
  }
  if (!files.ok() && !MayBeDamaged(files.status().code())) return files;
  return Error(StatusCode::kDataLoss,
               "damaged at the source or on the way: the list of files differs between reads, {} "
               "times one after the other",
               kTriesMax);
}

// Errors: those of the source alone; what the bytes are is in Header::table.
Result<Header> ReadHeader(WeightSource* source, FileFormat format, const SourceFile& file,
                          Deadline deadline) {
  Header header;
  uint64_t needed = std::min(file.bytes, kFirstReadBytes);
  for (int reads = 0; reads < kReadsMax; ++reads) {
    const uint64_t had = header.bytes.size();
    header.bytes.resize(needed);
    EMS_ASSIGN_OR_RETURN(
        const bool compared,
        source->ReadCompared(file, had, MutableBytes(header.bytes).subspan(had), deadline));
    header.compared = header.compared && compared;
    Result<HeaderParse> parsed = ParseHeader(format, header.bytes, file.bytes, file.path);
    if (parsed.status().code() == StatusCode::kUnimplemented) return header;
    if (!parsed.ok()) {
      header.table = parsed.status();
      return header;
    }
    if (parsed->done()) {
      header.table = std::move(parsed->table);
      return header;
    }
    needed = parsed->bytes_needed;
  }
  header.table = Error(StatusCode::kInvalidArgument, "{}: its header does not end", file.path);
  return header;
}

// Nothing: an opaque file.
Result<std::optional<TensorTable>> ReadTable(const Sources& sources, const SourceFile& file,
                                             FirstRead first_read, Deadline deadline) {
  const FileFormat format = FormatOf(file.path);
  if (format == FileFormat::kOpaque || file.bytes == 0) return std::nullopt;
  EMS_ASSIGN_OR_RETURN(Header header, ReadHeader(sources[0], format, file, deadline));
  if (first_read == FirstRead::kOnce) return std::move(header.table);
  for (size_t headers = 1; headers < kTriesMax; ++headers) {
    if (header.compared && first_read == FirstRead::kTwiceUnlessChecked)
      return std::move(header.table);
    EMS_ASSIGN_OR_RETURN(Header again, ReadHeader(sources[headers % 2], format, file, deadline));
    if (again.bytes == header.bytes) return std::move(again.table);
    header = std::move(again);
  }
  return Error(StatusCode::kDataLoss,
               "damaged at the source or on the way: the header of {} differs between reads, {} "
               "times one after the other",
               file.path, kTriesMax);
}

// Calls `work` with each number below `count`, on several threads; the first error ends it.
Status InParallel(size_t count, std::string_view name, const std::function<Status(size_t)>& work) {
  Guarded<Status> error;
  std::atomic<size_t> next{0};
  {
    std::vector<Thread> threads;
    for (size_t t = 0; t < std::min(kReaders, count); ++t) {
      threads.emplace_back(fmt::format("{}-{}", name, t), [&] {
        for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
          Status status = work(i);
          if (status.ok()) continue;
          auto locked = error.Lock();
          if (locked->ok()) *locked = std::move(status);
          next = count;
        }
      });
    }
  }
  auto locked = error.Lock();
  return std::move(*locked);
}

Result<std::vector<std::optional<TensorTable>>> ReadTables(const Sources& sources,
                                                           const std::vector<SourceFile>& files,
                                                           FirstRead first_read,
                                                           Deadline deadline) {
  std::vector<std::optional<TensorTable>> tables(files.size());  // each element is one thread's
  EMS_RETURN_IF_ERROR(InParallel(files.size(), "ems-headers", [&](size_t i) -> Status {
    EMS_ASSIGN_OR_RETURN(tables[i], ReadTable(sources, files[i], first_read, deadline));
    return OkStatus();
  }));
  return tables;
}

// Of files of one block, too: a tag that looks like an MD5 need not be one, and one that does not
// may still tell the sums of the object's parts.
Status AskSums(WeightSource* source, Manifest* manifest, Deadline deadline) {
  return InParallel(manifest->files.size(), "ems-headers", [&](size_t i) -> Status {
    ManifestFile& file = manifest->files[i];
    if (file.bytes == 0) return OkStatus();
    EMS_ASSIGN_OR_RETURN(
        file.sum, source->Sum({.path = file.path, .bytes = file.bytes, .tag = file.tag}, deadline));
    return OkStatus();
  });
}

// Over a network, and nothing but TCP's own sum below; as far as is known.
bool IsPlain(const std::string& source_url) {
  const Result<SourceUrl> url = ParseSourceUrl(source_url);
  return !url.ok() || (url->kind != SourceUrl::Kind::kFile && !url->http.tls);
}

// `unprotected`: something is.
FirstRead FirstReadOf(SourceVerify verify, bool unprotected) {
  if (verify == SourceVerify::kAlways) return FirstRead::kTwice;
  return verify == SourceVerify::kAuto && unprotected ? FirstRead::kTwiceUnlessChecked
                                                      : FirstRead::kOnce;
}

// The begin of a sentence that tells it. Empty: there is none.
std::string Change(const AddedAgain& again, FirstRead now) {
  if (!again.before) return "";
  return fmt::format("first reads of it were \"{}\" and are \"{}\" from now on; ",
                     FirstReadName(*again.before), FirstReadName(now));
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

size_t UnprotectedFiles(const Manifest& manifest) {
  if (!IsPlain(manifest.source.url)) return 0;
  return static_cast<size_t>(std::ranges::count_if(
      manifest.files, [](const ManifestFile& file) { return file.sum.empty() && file.bytes > 0; }));
}

AddRemark RemarkOf(const Manifest& kept, SourceVerify asked, const AddedAgain& again) {
  constexpr std::string_view kStays =
      "and may have been read since: that stays until it is removed (emsctl model delete)";
  const size_t files = UnprotectedFiles(kept), all = kept.files.size();
  const FirstRead first_read = kept.source.first_read;
  if (first_read == FirstRead::kOnce && files > 0) {
    const std::string why =
        again.elsewhere
            ? "it was added before with another URL, credentials, rate or namespace, and stays so "
              "until it is removed (emsctl model delete)"
        : asked == SourceVerify::kNever
            ? "leave --no-verify out, use https, or a server that sends Content-Digest"
            : fmt::format("it was added with --no-verify before {}", kStays);
    return {.text = fmt::format("{}the first read of {} of {} files is unprotected: they come over "
                                "plain http, without a checksum that is known now, and what is "
                                "damaged on the way is cached and loaded as if it were right; {}",
                                Change(again, first_read), files, all, why),
            .warning = true};
  }
  if (again.elsewhere) {
    return {.text = fmt::format("it was added before with another URL, credentials, rate or "
                                "namespace: that is not changed, and it is read \"{}\" as before",
                                FirstReadName(first_read))};
  }
  if (again.before) {
    return {.text =
                fmt::format("{}nobody had used it since it was added", Change(again, first_read))};
  }
  if (first_read == FirstRead::kOnce) return {};
  if (asked == SourceVerify::kNever)
    return {.text = fmt::format("it was added without --no-verify before {}", kStays)};
  if (asked == SourceVerify::kAlways) {
    if (first_read == FirstRead::kTwice) return {};
    return {.text = fmt::format("it was added without --verify before {}; blocks that a checksum "
                                "of the source protects are read once",
                                kStays)};
  }
  if (first_read == FirstRead::kTwice)
    return {.text =
                "it was added with --verify before, and stays so: each block is read twice "
                "when it is first read"};
  if (files == 0) return {};
  return {.text = fmt::format(
              "each block of {} of {} files will be read twice when it is first read, and has to "
              "be the same, as the source gives no checksum of them: that is twice their bytes, "
              "once (not where an answer has a Content-Digest); --no-verify avoids it",
              files, all)};
}

Result<Manifest> MakeManifest(WeightSource* source, const std::string& url, const ModelName& name,
                              const std::string& name_space, const AddOptions& options,
                              Deadline deadline, WeightSource* second) {
  const Sources sources = {source, second != nullptr ? second : source};
  const FirstRead first_read = FirstReadOf(options.verify, IsPlain(url));
  EMS_ASSIGN_OR_RETURN(std::vector<SourceFile> files, ListFiles(sources, first_read, deadline));
  std::erase_if(files,
                [&](const SourceFile& file) { return !Matches(file.path, options.include); });
  if (files.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: no file matches {}", url,
                 fmt::join(options.include, ", "));
  }
  if (files.size() > kManifestFilesMax) {
    return Error(StatusCode::kInvalidArgument, "{}: {} files, a version has {} at most", url,
                 files.size(), kManifestFilesMax);
  }
  EMS_ASSIGN_OR_RETURN(const auto tables, ReadTables(sources, files, first_read, deadline));
  Manifest manifest{.model = name.model,
                    .version = name.version,
                    .name_space = name_space,
                    .source = {.url = url,
                               .credentials = options.credentials,
                               .bytes_per_s_max = options.bytes_per_s_max,
                               .first_read = FirstRead::kOnce},
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
  if (!options.ignore_tags) EMS_RETURN_IF_ERROR(AskSums(source, &manifest, deadline));
  manifest.source.first_read = FirstReadOf(options.verify, UnprotectedFiles(manifest) > 0);
  EMS_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

}  // namespace ems::model
