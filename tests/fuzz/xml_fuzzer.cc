// Any bytes, as an answer of an object store: a page or an error text that keeps its bounds, or an
// error; never a byte read beyond what is there.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "model_files/source/s3_listing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view xml(reinterpret_cast<const char*>(data), size);
  const ems::Result<ems::model::S3Page> page = ems::model::ParseS3Page(xml);
  if (page.ok()) {
    EMS_CHECK(page->objects.size() <= ems::model::kS3PageMax);
    for (const auto& object : page->objects) {
      EMS_CHECK(!object.key.empty() && object.key.size() <= size && !object.etag.empty());
    }
  } else {
    EMS_CHECK(page.status().code() == ems::StatusCode::kDataLoss);
  }
  const ems::model::S3ErrorText error = ems::model::ParseS3Error(xml);
  for (const std::string& text : {error.code, error.message}) {
    // Nothing in it moves a terminal's cursor.
    for (const char c : text) EMS_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
  }
  return 0;
}
