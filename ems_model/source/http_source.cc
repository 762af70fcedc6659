#include "ems_model/source/http_source.h"

#include <nlohmann/json.hpp>
#include <set>

namespace ems::model {
namespace {

Status BadIndex(std::string_view what) {
  return Error(StatusCode::kDataLoss, "{}: {}", kShardIndexFile, what);
}

HttpReader::Authorize BearerOf(const SourceSpec& spec) {
  if (spec.credentials.bearer_token.empty()) return nullptr;
  return [header = "Authorization: Bearer " + spec.credentials.bearer_token](
             std::string_view, const HttpUrl&) { return std::vector<std::string>{header}; };
}

}  // namespace

Result<std::vector<std::string>> ParseShardIndex(std::string_view json) {
  const auto index = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded() || !index.is_object()) return BadIndex("no JSON object");
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) return BadIndex("it has no weight_map");
  std::set<std::string> shards;
  for (const auto& shard : *map) {
    if (!shard.is_string()) return BadIndex("a shard's name is no text");
    const auto& name = shard.get_ref<const std::string&>();
    if (const Status status = CheckFilePath(name); !status.ok()) return BadIndex(Message(status));
    shards.insert(name);
    if (shards.size() > kSourceFilesMax) return BadIndex("it names too many shards");
  }
  if (shards.empty()) return BadIndex("it names no shard");
  return std::vector<std::string>(shards.begin(), shards.end());
}

std::vector<std::string> WellKnownFiles() {
  return {"adapter_config.json",
          "adapter_model.safetensors",
          "added_tokens.json",
          "chat_template.jinja",
          "config.json",
          "generation_config.json",
          "merges.txt",
          "model.safetensors",
          std::string(kShardIndexFile),
          "preprocessor_config.json",
          "special_tokens_map.json",
          "tokenizer.json",
          "tokenizer.model",
          "tokenizer_config.json",
          "vocab.json"};
}

HttpSource::HttpSource(const SourceSpec& spec, SourceUrl url)
    : files_(spec.files), url_(std::move(url)), reader_(spec, url_.http, BearerOf(spec)) {}

HttpUrl HttpSource::UrlOf(std::string_view path) const {
  HttpUrl url = url_.http;
  url.path += PercentEncode(path, /*keep_slash=*/true);
  return url;
}

Result<std::vector<SourceFile>> HttpSource::List(Deadline deadline) {
  const auto url_of = [this](std::string_view path) { return UrlOf(path); };
  if (!files_.empty()) return StatFiles(&reader_, files_, url_of, /*may_miss=*/false, deadline);
  EMS_ASSIGN_OR_RETURN(std::vector<SourceFile> files,
                       StatFiles(&reader_, WellKnownFiles(), url_of, /*may_miss=*/true, deadline));
  const auto index = std::find_if(files.begin(), files.end(), [](const SourceFile& file) {
    return file.path == kShardIndexFile;
  });
  if (index != files.end()) {
    EMS_ASSIGN_OR_RETURN(const std::string json,
                         reader_.Text(UrlOf(kShardIndexFile), kShardIndexBytesMax, deadline));
    EMS_ASSIGN_OR_RETURN(std::vector<std::string> shards, ParseShardIndex(json));
    std::erase_if(shards, [&](const std::string& shard) {
      return std::any_of(files.begin(), files.end(),
                         [&](const SourceFile& file) { return file.path == shard; });
    });
    EMS_ASSIGN_OR_RETURN(
        std::vector<SourceFile> found,
        StatFiles(&reader_, std::move(shards), url_of, /*may_miss=*/false, deadline));
    std::move(found.begin(), found.end(), std::back_inserter(files));
    std::sort(files.begin(), files.end(),
              [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  }
  if (files.empty()) {
    return Error(StatusCode::kNotFound, "{}: none of the files that a model has is there",
                 url_.http.Shown());
  }
  return files;
}

Status HttpSource::Read(const SourceFile& file, uint64_t offset, MutableBytes into,
                        Deadline deadline) {
  EMS_RETURN_IF_ERROR(CheckRead(file, offset, into.size()));
  if (into.empty()) return OkStatus();
  return reader_.ReadRange(UrlOf(file.path), {.bytes = file.bytes, .tag = file.tag}, offset, into,
                           deadline);
}

}  // namespace ems::model
