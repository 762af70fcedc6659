#include "ems_model/source/xml_scanner.h"

#include <charconv>
#include <utility>

namespace ems::model {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == ':' || static_cast<unsigned char>(c) >= 0x80;
}

std::string_view WithoutPrefix(std::string_view name) {
  const size_t colon = name.rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

void AppendUtf8(uint32_t point, std::string* out) {
  const auto add = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xC0 | point >> 6), add(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    add(0xE0 | point >> 12), add(0x80 | (point >> 6 & 0x3F)), add(0x80 | (point & 0x3F));
  } else {
    add(0xF0 | point >> 18), add(0x80 | (point >> 12 & 0x3F));
    add(0x80 | (point >> 6 & 0x3F)), add(0x80 | (point & 0x3F));
  }
}

}  // namespace

Status XmlScanner::Bad(std::string_view what) const {
  return Error(StatusCode::kInvalidArgument, "not well-formed XML at byte {}: {}", at_, what);
}

Status XmlScanner::SkipTo(std::string_view end, std::string_view what) {
  const size_t found = text_.find(end, at_);
  if (found == std::string_view::npos) return Bad(what);
  at_ = found + end.size();
  return OkStatus();
}

void XmlScanner::SkipBlanks() {
  while (at_ < text_.size() && IsBlank(text_[at_])) ++at_;
}

Result<XmlEvent> XmlScanner::Next() {
  if (std::exchange(ends_at_once_, false)) {
    --depth_;
    return XmlEvent{.kind = XmlEvent::Kind::kEnd, .name = WithoutPrefix(open_[depth_]), .text = {}};
  }
  for (;;) {
    if (depth_ == 0) SkipBlanks();
    if (at_ == text_.size()) {
      if (depth_ > 0) return Bad("it ends inside an element");
      if (!root_seen_) return Bad("it has no element");
      return XmlEvent{};
    }
    if (At("<!--")) {
      at_ += 4;
      EMS_RETURN_IF_ERROR(SkipTo("-->", "a comment without end"));
    } else if (At("<?")) {
      EMS_RETURN_IF_ERROR(SkipTo("?>", "an instruction without end"));
    } else if (At("<![CDATA[")) {
      if (depth_ == 0) return Bad("text outside of the root");
      EMS_ASSIGN_OR_RETURN(XmlEvent event, CData());
      if (!event.text.empty()) return event;
    } else if (At("<!")) {
      return Bad("document types are not read");
    } else if (At("</")) {
      return EndTag();
    } else if (text_[at_] == '<') {
      return Tag();
    } else {
      if (depth_ == 0) return Bad("text outside of the root");
      return Text();
    }
  }
}

Result<std::string_view> XmlScanner::Name() {
  const size_t begin = at_;
  while (at_ < text_.size() && IsNameChar(text_[at_])) ++at_;
  const std::string_view name = text_.substr(begin, at_ - begin);
  if (name.empty() || name.size() > kNameMax || name.back() == ':') return Bad("no proper name");
  return name;
}

Status XmlScanner::SkipAttributes() {
  for (;;) {
    const size_t before = at_;
    SkipBlanks();
    if (at_ == text_.size()) return Bad("a tag without end");
    if (text_[at_] == '>' || At("/>")) return OkStatus();
    if (at_ == before) return Bad("no blank in front of an attribute");
    EMS_RETURN_IF_ERROR(Name().status());
    SkipBlanks();
    if (!At("=")) return Bad("an attribute without value");
    ++at_;
    SkipBlanks();
    if (at_ == text_.size() || (text_[at_] != '"' && text_[at_] != '\'')) {
      return Bad("a value without quotes");
    }
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '<') ++at_;
    if (at_ == text_.size() || text_[at_] == '<') return Bad("a value without end");
    ++at_;
  }
}

Result<XmlEvent> XmlScanner::Tag() {
  if (depth_ == 0 && root_seen_) return Bad("a second root");
  if (depth_ == kDepthMax) return Bad("elements nest too deep");
  ++at_;
  EMS_ASSIGN_OR_RETURN(const std::string_view name, Name());
  EMS_RETURN_IF_ERROR(SkipAttributes());
  ends_at_once_ = text_[at_] == '/';
  at_ += ends_at_once_ ? 2 : 1;
  open_[depth_++] = name;
  root_seen_ = true;
  return XmlEvent{.kind = XmlEvent::Kind::kStart, .name = WithoutPrefix(name), .text = {}};
}

Result<XmlEvent> XmlScanner::EndTag() {
  at_ += 2;
  EMS_ASSIGN_OR_RETURN(const std::string_view name, Name());
  SkipBlanks();
  if (!At(">")) return Bad("an end tag without end");
  if (depth_ == 0 || open_[depth_ - 1] != name) return Bad("an end tag without its start");
  ++at_;
  --depth_;
  return XmlEvent{.kind = XmlEvent::Kind::kEnd, .name = WithoutPrefix(name), .text = {}};
}

Result<XmlEvent> XmlScanner::CData() {
  constexpr std::string_view kBegin = "<![CDATA[";
  const size_t end = text_.find("]]>", at_ + kBegin.size());
  if (end == std::string_view::npos) return Bad("CDATA without end");
  const size_t begin = std::exchange(at_, end + 3) + kBegin.size();
  return XmlEvent{.kind = XmlEvent::Kind::kText,
                  .name = {},
                  .text = std::string(text_.substr(begin, end - begin))};
}

Result<XmlEvent> XmlScanner::Text() {
  XmlEvent event{.kind = XmlEvent::Kind::kText, .name = {}, .text = {}};
  while (at_ < text_.size() && text_[at_] != '<') {
    if (text_[at_] == '&') {
      EMS_RETURN_IF_ERROR(Entity(&event.text));
    } else {
      event.text.push_back(text_[at_++]);
    }
  }
  return event;
}

Status XmlScanner::Entity(std::string* out) {
  constexpr size_t kEntityMax = 12;  // "&#x0010FFFF;"
  const size_t end = text_.substr(0, at_ + kEntityMax).find(';', at_);
  if (end == std::string_view::npos) return Bad("an entity without end");
  std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
  constexpr std::pair<std::string_view, char> kNamed[] = {
      {"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [known, meaning] : kNamed) {
    if (name != known) continue;
    out->push_back(meaning);
    at_ = end + 1;
    return OkStatus();
  }
  if (!name.starts_with('#')) return Bad("an unknown entity");
  name.remove_prefix(1);
  const bool hexadecimal = name.starts_with('x');
  if (hexadecimal) name.remove_prefix(1);
  uint32_t point = 0;
  const auto [stop, error] =
      std::from_chars(name.data(), name.data() + name.size(), point, hexadecimal ? 16 : 10);
  if (error != std::errc() || stop != name.data() + name.size() || point == 0 || point > 0x10FFFF ||
      (point >= 0xD800 && point <= 0xDFFF)) {
    return Bad("an entity that is no character");
  }
  AppendUtf8(point, out);
  at_ = end + 1;
  return OkStatus();
}

}  // namespace ems::model
