#include "model_files/source/http_source.h"

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

// Collects the values of "weight_map" as the text goes by, so that no more memory is used than for
// the names themselves, whatever the text is.   Threading: one thread.
class ShardReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::set<std::string> shards;
  Status status;

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Value(); }
  bool string(string_t& name) override {
    if (!in_map_) return depth_ > 0 || Fail("no JSON object");
    if (depth_ != 2) return Fail("a shard's name is no text");
    if (const Status path = CheckFilePath(name); !path.ok()) return Fail(Message(path));
    if (shards.size() >= kSourceFilesMax) return Fail("it names too many shards");
    shards.insert(name);
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) in_map_ = name == "weight_map";
    return true;
  }
  bool start_object(size_t) override {
    if (in_map_ && depth_ != 1) return Fail("a shard's name is no text");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return Fail("no JSON object");
    if (in_map_) return Fail("its weight_map is no object");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return Fail("no JSON object");
  }

 private:
  bool Value() {
    if (depth_ == 0) return Fail("no JSON object");
    return !in_map_ || Fail("a shard's name is no text");
  }
  bool Fail(std::string_view what) {
    status = BadIndex(what);
    return false;
  }

  uint64_t depth_ = 0;
  bool in_map_ = false;  // between "weight_map" and the end of its object
};

}  // namespace

Result<std::vector<std::string>> ParseShardIndex(std::string_view json) {
  ShardReader reader;
  const bool whole = nlohmann::json::sax_parse(json, &reader);
  if (!whole) return reader.status.ok() ? BadIndex("no JSON object") : reader.status;
  if (reader.shards.empty()) return BadIndex("it names no shard in a weight_map");
  return std::vector<std::string>(reader.shards.begin(), reader.shards.end());
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
    return Error(StatusCode::kNotFound, "{}: none of the usual files of a model exists",
                 url_.http.Shown());
  }
  return files;
}

Status HttpSource::Read(const SourceFile& file, uint64_t offset, MutableBytes into,
                        Deadline deadline) {
  return ReadCompared(file, offset, into, deadline).status();
}

Result<bool> HttpSource::ReadCompared(const SourceFile& file, uint64_t offset, MutableBytes into,
                                      Deadline deadline) {
  EMS_RETURN_IF_ERROR(CheckRead(file, offset, into.size()));
  if (into.empty()) return true;
  return reader_.ReadRange(UrlOf(file.path), {.bytes = file.bytes, .tag = file.tag}, offset, into,
                           deadline);
}

}  // namespace ems::model
