#pragma once
// Reads the little XML that object stores answer with: elements, text, entities. Attributes are
// checked and skipped, comments and processing instructions skipped, prefixes of names dropped.
//
// The input is hostile: no document type (so no entities of its own), at most kDepthMax elements
// deep, names up to kNameMax; the caller bounds the size of the whole. Strict otherwise: what is
// not well-formed is an error, never a guess.
#include <array>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::model {

struct XmlEvent {
  enum class Kind { kStart, kEnd, kText, kDone };
  Kind kind = Kind::kDone;
  std::string_view name;  // kStart, kEnd: without prefix; points into the input
  std::string text;       // kText: decoded, never empty; runs between tags may come in parts
};

// Threading: one thread.
class XmlScanner final {
 public:
  static constexpr size_t kDepthMax = 16;
  static constexpr size_t kNameMax = 128;

  // `text` must outlive the scanner and its events.
  explicit XmlScanner(std::string_view text) : text_(text) {}
  // The next event; kDone once the root has ended and nothing but blanks follows. An element
  // without content (<a/>) is a start and an end.   Errors: kInvalidArgument  not well-formed,
  // naming the byte; the scanner is of no use then.
  Result<XmlEvent> Next();
  size_t depth() const { return depth_; }

 private:
  Status Bad(std::string_view what) const;
  bool At(std::string_view prefix) const { return text_.substr(at_).starts_with(prefix); }
  Status SkipTo(std::string_view end, std::string_view what);
  void SkipBlanks();
  Result<std::string_view> Name();
  Status SkipAttributes();
  Result<XmlEvent> Tag();
  Result<XmlEvent> EndTag();
  Result<XmlEvent> Text();
  Result<XmlEvent> CData();
  Status Entity(std::string* out);

  std::string_view text_;
  size_t at_ = 0;
  std::array<std::string_view, kDepthMax> open_;  // raw names, prefix included
  size_t depth_ = 0;
  bool root_seen_ = false;
  bool ends_at_once_ = false;  // the start just given was <a/>
};

}  // namespace ems::model
