#pragma once
// A folder on an HTTP(S) server. HTTP lists no folders, so List looks for what a model's folder is
// known to have, unless the spec names the files: the shards that model.safetensors.index.json
// names, and the files of WellKnownFiles().
#include <string>
#include <string_view>
#include <vector>

#include "model_files/source/http_reader.h"
#include "model_files/source/source_url.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

inline constexpr std::string_view kShardIndexFile = "model.safetensors.index.json";
inline constexpr uint64_t kShardIndexBytesMax = 64 * kMiB;

// The shards that an index of that form names, sorted, each once.
// Errors: kDataLoss  no such JSON, or a name that leads out of the folder
Result<std::vector<std::string>> ParseShardIndex(std::string_view json);

// The files besides shards that List asks for, those of tokenizers included.
std::vector<std::string> WellKnownFiles();

// Threading: thread-safe; blocking.
class HttpSource final : public WeightSource {
 public:
  // `url` of kind kHttp; `spec` as OpenSource has checked it.
  HttpSource(const SourceSpec& spec, SourceUrl url);
  Result<std::vector<SourceFile>> List(Deadline deadline) override;
  Status Read(const SourceFile& file, uint64_t offset, MutableBytes into,
              Deadline deadline) override;
  Result<bool> ReadCompared(const SourceFile& file, uint64_t offset, MutableBytes into,
                            Deadline deadline) override;
  SourceCounters counters() const override { return reader_.counters(); }

 private:
  HttpUrl UrlOf(std::string_view path) const;

  const std::vector<std::string> files_;
  const SourceUrl url_;
  HttpReader reader_;
};

}  // namespace ems::model
