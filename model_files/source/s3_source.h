#pragma once
// A prefix of a bucket of an S3-compatible object store: ListObjectsV2, GetObject by ranges, signed
// with AWS Signature V4, or anonymous without keys.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/source/http_reader.h"
#include "model_files/source/source_url.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

// Threading: thread-safe; blocking.
class S3Source final : public WeightSource {
 public:
  // `url` of kind kS3; `spec` as OpenSource has checked it.
  S3Source(const SourceSpec& spec, SourceUrl url);
  Result<std::vector<SourceFile>> List(Deadline deadline) override;
  Status Read(const SourceFile& file, uint64_t offset, MutableBytes into,
              Deadline deadline) override;
  Result<bool> ReadCompared(const SourceFile& file, uint64_t offset, MutableBytes into,
                            Deadline deadline) override;
  // From the entity tag: the MD5 of an object that was put whole; that of the MD5s of its parts, if
  // the store says how long they are. Of objects that are encrypted under a key it is neither.
  Result<std::string> Sum(const SourceFile& file, Deadline deadline) override;
  SourceCounters counters() const override { return reader_.counters(); }

 private:
  // Of part `number`, from 1; 0: the store does not say.
  Result<uint64_t> PartBytes(const SourceFile& file, uint64_t number, Deadline deadline);
  HttpUrl UrlOf(std::string_view key) const;

  const std::vector<std::string> files_;
  const SourceUrl url_;
  const HttpUrl bucket_;  // what keys are appended to; its path ends with '/'
  HttpReader reader_;
};

// The headers that sign one request, at `time` ("YYYYMMDDTHHMMSSZ", UTC).
std::vector<std::string> S3SignedHeaders(const SourceCredentials& credentials,
                                         std::string_view region, std::string_view method,
                                         const HttpUrl& url, std::string_view time);

}  // namespace ems::model
