#pragma once
// Parsers of an object store's XML: one page of a listing (ListObjectsV2), and errors.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::model {

struct S3Object {
  std::string key;
  uint64_t bytes = 0;
  std::string etag;  // with its quotes
};

struct S3Page {
  std::vector<S3Object> objects;  // kS3PageMax at most
  std::string next_token;         // empty: this was the last page
};

inline constexpr size_t kS3PageMax = 10'000;

// Errors: kDataLoss  not a listing, a field is missing or no number, or it says that there is more
// without saying where
Result<S3Page> ParseS3Page(std::string_view xml);

struct S3ErrorText {
  std::string code;     // "NoSuchKey"; empty: the text is no error of an object store
  std::string message;  // printable, 200 characters at most
};

// Never fails: what cannot be read is no error text.
S3ErrorText ParseS3Error(std::string_view xml);

}  // namespace ems::model
