// Any bytes, as an answer of an object store: events that nest, or an error; never a byte read
// beyond what is there, and never more text than came in.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "ems_model/source/s3_listing.h"
#include "ems_model/source/xml_scanner.h"

namespace ems::model {
namespace {

void Scan(std::string_view xml) {
  XmlScanner scanner(xml);
  std::vector<std::string_view> open;
  size_t text_bytes = 0;
  for (size_t events = 0;; ++events) {
    EMS_CHECK(events <= 2 * xml.size());  // it gets ahead
    const Result<XmlEvent> event = scanner.Next();
    if (!event.ok()) return;
    switch (event->kind) {
      case XmlEvent::Kind::kStart:
        EMS_CHECK(!event->name.empty());
        open.push_back(event->name);
        break;
      case XmlEvent::Kind::kEnd:
        EMS_CHECK(!open.empty() && open.back() == event->name);
        open.pop_back();
        break;
      case XmlEvent::Kind::kText:
        EMS_CHECK(!event->text.empty() && !open.empty());
        text_bytes += event->text.size();
        break;
      case XmlEvent::Kind::kDone:
        EMS_CHECK(open.empty());
        return;
    }
    EMS_CHECK(open.size() == scanner.depth() || event->kind == XmlEvent::Kind::kStart);
    EMS_CHECK(open.size() <= XmlScanner::kDepthMax && text_bytes <= xml.size());
  }
}

}  // namespace
}  // namespace ems::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view xml(reinterpret_cast<const char*>(data), size);
  ems::model::Scan(xml);
  const ems::Result<ems::model::S3Page> page = ems::model::ParseS3Page(xml);
  if (page.ok()) {
    EMS_CHECK(page->objects.size() <= ems::model::kS3PageMax);
    for (const auto& object : page->objects) EMS_CHECK(!object.key.empty() && !object.etag.empty());
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
