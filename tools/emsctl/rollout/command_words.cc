#include "tools/emsctl/rollout/command_words.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

constexpr std::string_view kName = "{name}", kHost = "{host}";

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n'; }
bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == ':';
}

Status CheckPlain(std::string_view what, std::string_view value) {
  if (!value.empty() && value.front() != '-' && std::ranges::all_of(value, IsPlain))
    return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "the {} \"{}\" has more than letters, digits and .-_: in it, or begins with '-': no "
               "command is run for it; restart this server by hand",
               what, Printable(value));
}

Status CheckPlaces(const std::vector<std::string>& words) {
  bool any = false;
  for (const std::string& word : words) {
    for (size_t at = word.find('{'); at != std::string::npos; at = word.find('{', at + 1)) {
      const std::string_view rest = std::string_view(word).substr(at);
      if (!rest.starts_with(kName) && !rest.starts_with(kHost))
        return Error(StatusCode::kInvalidArgument,
                     "\"{}\": only {{name}} and {{host}} are replaced", Printable(word));
      any = true;
    }
  }
  if (any) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "neither {{name}} nor {{host}} is in it: it would do the same for each server");
}

std::string Replaced(std::string word, std::string_view place, std::string_view value) {
  for (size_t at = word.find(place); at != std::string::npos;
       at = word.find(place, at + value.size()))
    word.replace(at, place.size(), value);
  return word;
}

// Splits the text, a character at a time.
class Splitter final {
 public:
  Result<std::vector<std::string>> Run(std::string_view text) {
    for (const char c : text) Take(c);
    if (quote_ != 0 || escaped_)
      return Error(StatusCode::kInvalidArgument,
                   "a quote, or what follows a backslash, is missing");
    End();
    return std::move(words_);
  }

 private:
  void Take(char c) {
    if (escaped_) {
      // Within "…" a backslash is one, but before these two.
      if (quote_ == '"' && c != '"' && c != '\\') Add('\\');
      Add(c);
      escaped_ = false;
    } else if (c == '\\' && quote_ != '\'') {
      escaped_ = true;
    } else if (quote_ != 0) {
      c == quote_ ? (void)(quote_ = 0) : Add(c);
    } else if (c == '\'' || c == '"') {
      quote_ = c;
      if (!word_) word_.emplace();
    } else if (IsBlank(c)) {
      End();
    } else {
      Add(c);
    }
  }
  void Add(char c) {
    if (!word_) word_.emplace();
    *word_ += c;
  }
  void End() {
    if (word_) words_.push_back(*std::exchange(word_, std::nullopt));
  }

  std::vector<std::string> words_;
  std::optional<std::string> word_;
  char quote_ = 0;
  bool escaped_ = false;
};

}  // namespace

Result<CommandWords> CommandWords::Parse(std::string_view text) {
  EMS_ASSIGN_OR_RETURN(std::vector<std::string> words, Splitter().Run(text));
  if (words.empty() || words.front().empty())
    return Error(StatusCode::kInvalidArgument, "there is no program in it");
  EMS_RETURN_IF_ERROR(CheckPlaces(words));
  return CommandWords(std::move(words));
}

Result<std::vector<std::string>> CommandWords::For(std::string_view name,
                                                   std::string_view host) const {
  EMS_RETURN_IF_ERROR(CheckPlain("name", name));
  EMS_RETURN_IF_ERROR(CheckPlain("host", host));
  std::vector<std::string> words;
  words.reserve(words_.size());
  for (const std::string& word : words_)
    words.push_back(Replaced(Replaced(word, kName, name), kHost, host));
  return words;
}

std::string HostOf(std::string_view address) {
  std::string_view host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::string(host);
}

std::string Quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
      return IsPlain(c) || c == '/' || c == '=' || c == '@' || c == ',' || c == '+';
    });
    text += text.empty() ? "" : " ";
    text += plain ? word : "'" + Replaced(word, "'", "'\\''") + "'";
  }
  return text;
}

}  // namespace ems::emsctl
