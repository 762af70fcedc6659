#include "ems_model/source/s3_listing.h"

#include <array>
#include <charconv>
#include <optional>

#include "common/bytes.h"
#include "ems_model/source/xml_scanner.h"

namespace ems::model {
namespace {

constexpr size_t kFieldMax = 4096;  // a key has 1024 bytes at most, tokens some hundred

// Walks the leaves of an answer. Leaf text is bounded.   Threading: one thread.
class LeafReader final {
 public:
  explicit LeafReader(std::string_view xml) : scanner_(xml) {}

  // Path of the element that just ended, from below the root: "Contents/Key" as depth 2 and names.
  struct Ended {
    bool done = false;
    size_t depth = 0;  // of the element itself; the root has 1
    std::string_view name;
    std::string_view parent;
    std::string text;
  };

  Result<Ended> Next() {
    for (;;) {
      EMS_ASSIGN_OR_RETURN(XmlEvent event, scanner_.Next());
      switch (event.kind) {
        case XmlEvent::Kind::kStart:
          names_[scanner_.depth() - 1] = event.name;
          text_.clear();
          break;
        case XmlEvent::Kind::kText:
          if (text_.size() + event.text.size() > kFieldMax) {
            return Error(StatusCode::kInvalidArgument, "a field above {} bytes", kFieldMax);
          }
          text_ += event.text;
          break;
        case XmlEvent::Kind::kEnd: {
          Ended ended{.done = false,
                      .depth = scanner_.depth() + 1,
                      .name = event.name,
                      .parent = scanner_.depth() > 0 ? names_[scanner_.depth() - 1] : "",
                      .text = std::move(text_)};
          text_.clear();
          return ended;
        }
        case XmlEvent::Kind::kDone:
          return Ended{.done = true, .depth = 0, .name = {}, .parent = {}, .text = {}};
      }
    }
  }

 private:
  XmlScanner scanner_;
  std::array<std::string_view, XmlScanner::kDepthMax> names_;
  std::string text_;
};

Status BadPage(std::string_view what) {
  return Error(StatusCode::kDataLoss, "the listing cannot be read: {}", what);
}

Result<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || text.empty() ||
      number > uint64_t{1} << 62) {
    return BadPage("a size is no number");
  }
  return number;
}

std::string Quoted(std::string_view etag) {
  if (etag.starts_with('"') || etag.starts_with("W/")) return std::string(etag);
  return fmt::format("\"{}\"", etag);
}

// One object as its fields arrive.
struct Draft {
  std::string key, etag;
  std::optional<uint64_t> bytes;

  Status FinishInto(std::vector<S3Object>* objects) {
    if (key.empty() || !bytes || etag.empty()) {
      return BadPage("an object without key, size or entity tag");
    }
    objects->push_back({.key = std::move(key), .bytes = *bytes, .etag = Quoted(etag)});
    key.clear(), etag.clear(), bytes.reset();
    return OkStatus();
  }
};

}  // namespace

Result<S3Page> ParseS3Page(std::string_view xml) {
  LeafReader reader(xml);
  S3Page page;
  Draft draft;
  std::string truncated;
  for (;;) {
    Result<LeafReader::Ended> next = reader.Next();
    if (!next.ok()) return BadPage(Message(next.status()));
    LeafReader::Ended& ended = *next;
    if (ended.done) break;
    if (ended.depth == 1) {
      if (ended.name != "ListBucketResult") return BadPage("its root is no ListBucketResult");
    } else if (ended.depth == 2) {
      if (ended.name == "IsTruncated") truncated = ended.text;
      if (ended.name == "NextContinuationToken") page.next_token = ended.text;
      if (ended.name != "Contents") continue;
      if (page.objects.size() == kS3PageMax) return BadPage("too many objects on one page");
      EMS_RETURN_IF_ERROR(draft.FinishInto(&page.objects));
    } else if (ended.depth == 3 && ended.parent == "Contents") {
      if (ended.name == "Key") draft.key = std::move(ended.text);
      if (ended.name == "ETag") draft.etag = std::move(ended.text);
      if (ended.name == "Size") {
        EMS_ASSIGN_OR_RETURN(draft.bytes, Number(ended.text));
      }
    }
  }
  if (truncated != "true" && truncated != "false")
    return BadPage("it does not say if there is more");
  if (truncated == "false") page.next_token.clear();
  if (truncated == "true" && page.next_token.empty()) {
    return BadPage("there is more, but it does not say where");
  }
  return page;
}

S3ErrorText ParseS3Error(std::string_view xml) {
  LeafReader reader(xml);
  S3ErrorText text;
  for (;;) {
    Result<LeafReader::Ended> next = reader.Next();
    if (!next.ok()) return {};
    if (next->done) return text;
    if (next->depth == 1 && next->name != "Error") return {};
    if (next->depth != 2) continue;
    if (next->name == "Code") text.code = Printable(next->text, 64);
    if (next->name == "Message") text.message = Printable(next->text, 200);
  }
}

}  // namespace ems::model
