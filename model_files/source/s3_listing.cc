#include "model_files/source/s3_listing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <pugixml.hpp>

#include "common/bytes.h"

namespace ems::model {
namespace {

constexpr size_t kFieldMax = 4096;  // bytes; a key has 1024 at most, tokens some hundred
constexpr size_t kNameMax = 128;
constexpr int kDepthMax = 16;

Status BadXml(std::string_view what) {
  return Error(StatusCode::kInvalidArgument, "not well-formed XML: {}", what);
}

// Of what stands between & and ;. The parser leaves one that it does not know as it is, and ends a
// text at a NUL.
bool IsReferenceProper(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNamed = {"lt", "gt", "amp", "quot", "apos"};
  if (std::ranges::find(kNamed, name) != kNamed.end()) return true;
  if (!name.starts_with('#')) return false;
  const int base = name.starts_with("#x") ? 16 : 10;
  name.remove_prefix(base == 16 ? 2 : 1);
  uint32_t point = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), point, base);
  return error == std::errc() && stop == name.data() + name.size() && point != 0 &&
         point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
}

bool AreReferencesProper(std::string_view xml) {
  constexpr size_t kReferenceMax = 12;  // "&#x0010FFFF;"
  for (size_t at = xml.find('&'); at != std::string_view::npos; at = xml.find('&', at + 1)) {
    const std::string_view name = xml.substr(at + 1, kReferenceMax);
    const size_t end = name.find(';');
    if (end == std::string_view::npos || !IsReferenceProper(name.substr(0, end))) return false;
  }
  return true;
}

class BoundsWalker final : public pugi::xml_tree_walker {
 public:
  bool for_each(pugi::xml_node& node) override {
    if (node.type() != pugi::node_element) return node.type() != pugi::node_doctype;
    return depth() < kDepthMax && std::string_view(node.name()).size() <= kNameMax;
  }
};

// The root element of a hostile text: no document type, so that nothing expands, at most kDepthMax
// elements deep, one root; the caller bounds the whole.
Result<pugi::xml_node> RootOf(std::string_view xml, pugi::xml_document* document) {
  if (xml.find('\0') != std::string_view::npos) return BadXml("a byte 0");
  if (!AreReferencesProper(xml)) return BadXml("a reference to no character");
  const unsigned flags = pugi::parse_cdata | pugi::parse_escapes | pugi::parse_ws_pcdata |
                         pugi::parse_doctype | pugi::parse_fragment;
  const pugi::xml_parse_result parsed =
      document->load_buffer(xml.data(), xml.size(), flags, pugi::encoding_utf8);
  if (!parsed) return BadXml(parsed.description());
  BoundsWalker walker;
  if (!document->traverse(walker)) return BadXml("a document type, or elements nest too deep");
  pugi::xml_node root;
  for (const pugi::xml_node node : document->children()) {
    if (node.type() == pugi::node_element && !root) {
      root = node;
    } else if (std::string_view(node.value()).find_first_not_of(" \t\r\n") !=
                   std::string_view::npos ||
               node.type() != pugi::node_pcdata) {
      return BadXml("something beside the root");
    }
  }
  if (!root) return BadXml("it has no element");
  return root;
}

// Without prefix.
std::string_view NameOf(const pugi::xml_node& node) {
  const std::string_view name = node.name();
  return name.substr(name.rfind(':') + 1);
}

// What the first child of this name says. Errors: kInvalidArgument  more than kFieldMax bytes
Result<std::string> FieldOf(const pugi::xml_node& parent, std::string_view name) {
  std::string text;
  for (const pugi::xml_node node : parent.children()) {
    if (node.type() != pugi::node_element || NameOf(node) != name) continue;
    for (const pugi::xml_node part : node.children()) text += part.value();
    if (text.size() > kFieldMax) return BadXml("a field is too long");
    break;
  }
  return text;
}

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

Result<S3Object> ObjectOf(const pugi::xml_node& contents) {
  EMS_ASSIGN_OR_RETURN(std::string key, FieldOf(contents, "Key"));
  EMS_ASSIGN_OR_RETURN(const std::string etag, FieldOf(contents, "ETag"));
  EMS_ASSIGN_OR_RETURN(const std::string size, FieldOf(contents, "Size"));
  if (key.empty() || etag.empty()) return BadPage("an object without key or entity tag");
  EMS_ASSIGN_OR_RETURN(const uint64_t bytes, Number(size));
  return S3Object{.key = std::move(key), .bytes = bytes, .etag = Quoted(etag)};
}

Result<S3Page> PageOf(const pugi::xml_node& root) {
  if (NameOf(root) != "ListBucketResult") return BadPage("its root is no ListBucketResult");
  S3Page page;
  for (const pugi::xml_node node : root.children()) {
    if (NameOf(node) != "Contents") continue;
    if (page.objects.size() == kS3PageMax) return BadPage("too many objects on one page");
    EMS_ASSIGN_OR_RETURN(S3Object object, ObjectOf(node));
    page.objects.push_back(std::move(object));
  }
  EMS_ASSIGN_OR_RETURN(const std::string truncated, FieldOf(root, "IsTruncated"));
  if (truncated == "false") return page;
  if (truncated != "true") return BadPage("it does not say if there is more");
  EMS_ASSIGN_OR_RETURN(page.next_token, FieldOf(root, "NextContinuationToken"));
  if (page.next_token.empty()) return BadPage("there is more, but it does not say where");
  return page;
}

}  // namespace

Result<S3Page> ParseS3Page(std::string_view xml) {
  pugi::xml_document document;
  const Result<pugi::xml_node> root = RootOf(xml, &document);
  Result<S3Page> page = root.ok() ? PageOf(*root) : Result<S3Page>(root.status());
  if (page.ok() || page.status().code() == StatusCode::kDataLoss) return page;
  return BadPage(Message(page.status()));
}

S3ErrorText ParseS3Error(std::string_view xml) {
  pugi::xml_document document;
  const Result<pugi::xml_node> root = RootOf(xml, &document);
  if (!root.ok() || NameOf(*root) != "Error") return {};
  const Result<std::string> code = FieldOf(*root, "Code"), message = FieldOf(*root, "Message");
  if (!code.ok() || !message.ok()) return {};
  return {.code = Printable(*code, 64), .message = Printable(*message, 200)};
}

}  // namespace ems::model
