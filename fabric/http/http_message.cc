#include "fabric/http/http_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "common/check.h"

namespace ems::fabric {
namespace {

constexpr size_t kChunkLineMax = 256;
constexpr std::string_view kCrlf = "\r\n";
constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                         {400, "Bad Request"},
                                                         {401, "Unauthorized"},
                                                         {404, "Not Found"},
                                                         {405, "Method Not Allowed"},
                                                         {408, "Request Timeout"},
                                                         {413, "Content Too Large"},
                                                         {415, "Unsupported Media Type"},
                                                         {417, "Expectation Failed"},
                                                         {429, "Too Many Requests"},
                                                         {431, "Request Header Fields Too Large"},
                                                         {499, "Client Closed Request"},
                                                         {500, "Internal Server Error"},
                                                         {501, "Not Implemented"},
                                                         {503, "Service Unavailable"},
                                                         {504, "Gateway Timeout"},
                                                         {505, "HTTP Version Not Supported"}};

// RFC 9110 §5.6.2
bool IsTokenChar(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

// Tab, space and everything that is visible, or above ASCII.
bool IsFieldChar(char c) {
  return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Whether a comma-separated list has `word`, in any case.
bool ListHas(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (Lower(Trimmed(list.substr(0, comma))) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

template <typename Number>
bool ReadNumber(std::string_view text, int base, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() &&
         text.front() != '-';
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

bool HttpParser::Fail(int status, std::string why) {
  step_ = Step::kFailed;
  error_status_ = status;
  error_ = std::move(why);
  return false;
}

size_t HttpParser::Feed(std::string_view bytes) {
  size_t used = 0;
  while (used < bytes.size() && !done() && !failed()) {
    const std::string_view rest = bytes.substr(used);
    begun_ = true;
    if (step_ == Step::kHead) {
      used += TakeHead(rest);
    } else if (step_ == Step::kBody || step_ == Step::kChunk) {
      used += TakeBody(rest);
    } else {
      bool ended = false;
      used += TakeLine(rest, &ended);
      if (ended) EndLine();
    }
  }
  return used;
}

size_t HttpParser::TakeHead(std::string_view bytes) {
  // Empty lines before a request are to be ignored (RFC 9112 §2.2); they count as part of the head.
  const size_t had = line_.size();
  const size_t room = limits_.head_bytes_max > had ? limits_.head_bytes_max - had : 0;
  const size_t taken = std::min(bytes.size(), room);
  line_.append(bytes.substr(0, taken));
  const size_t begin = std::min(line_.find_first_not_of(kCrlf), line_.size());
  const size_t end = line_.find("\r\n\r\n", std::max(begin, had < 3 ? 0 : had - 3));
  if (end == std::string::npos) {
    if (line_.size() >= limits_.head_bytes_max) {
      Fail(431, "the request's head is longer than " + std::to_string(limits_.head_bytes_max) +
                    " bytes");
    }
    return taken;
  }
  const size_t beyond = line_.size() - (end + 4);
  line_.resize(end + 2);
  line_.erase(0, begin);
  ReadHead();
  line_.clear();
  return taken - beyond;
}

void HttpParser::ReadHead() {
  std::string_view rest = line_;
  bool first = true;
  while (!rest.empty()) {
    const size_t end = rest.find(kCrlf);
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + kCrlf.size());
    if (!(first ? ReadRequestLine(line) : ReadHeaderLine(line))) return;
    first = false;
  }
  ReadFraming();
}

bool HttpParser::ReadRequestLine(std::string_view line) {
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) {
    return Fail(400, "the request line is not METHOD TARGET VERSION");
  }
  const std::string_view method = line.substr(0, method_end);
  const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const std::string_view version = line.substr(target_end + 1);
  if (!IsToken(method)) return Fail(400, "the request's method is not a word");
  const auto is_visible = [](char c) { return c > 0x20 && c < 0x7F; };
  if (!target.starts_with('/') || !std::all_of(target.begin(), target.end(), is_visible)) {
    return Fail(400, "the request's target is not a path");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.starts_with("HTTP/")) return Fail(505, "HTTP/1.1 and HTTP/1.0 are spoken here");
    return Fail(400, "the request line does not end in HTTP/1.1");
  }
  request_.method = method;
  const size_t mark = std::min(target.find('?'), target.size());
  request_.path = target.substr(0, mark);
  request_.query = target.substr(std::min(mark + 1, target.size()));
  request_.http_1_0 = version == "HTTP/1.0";
  return true;
}

bool HttpParser::ReadHeaderLine(std::string_view line) {
  if (request_.headers.size() == limits_.headers_max) {
    return Fail(431, "there are more than " + std::to_string(limits_.headers_max) + " headers");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) {
    return Fail(400, "a header line is not NAME: VALUE");
  }
  const std::string_view value = Trimmed(line.substr(colon + 1));
  if (!std::all_of(value.begin(), value.end(), IsFieldChar)) {
    return Fail(400, "a header has control characters in its value");
  }
  request_.headers.emplace_back(Lower(line.substr(0, colon)), value);
  return true;
}

void HttpParser::ReadFraming() {
  size_t hosts = 0, lengths = 0, codings = 0;
  std::string_view length, coding;
  request_.keep_alive = !request_.http_1_0;
  for (const auto& [name, value] : request_.headers) {
    if (name == "host") ++hosts;
    if (name == "content-length") ++lengths, length = value;
    if (name == "transfer-encoding") ++codings, coding = value;
    if (name == "connection" && ListHas(value, "close")) request_.keep_alive = false;
    if (name == "expect") {
      if (Lower(value) != "100-continue") {
        Fail(417, "of expectations only 100-continue is known");
        return;
      }
      expects_continue_ = !request_.http_1_0;
    }
  }
  if (hosts > 1 || (hosts == 0 && !request_.http_1_0)) {
    Fail(400, "a request has exactly one Host header");
  } else if (lengths + codings > 1) {
    Fail(400, "the body's length is given more than once");
  } else if (codings == 1) {
    if (request_.http_1_0 || Lower(coding) != "chunked") {
      Fail(501, "of transfer encodings only chunked is known");
    } else {
      step_ = Step::kChunkSize;
    }
  } else if (lengths == 1) {
    ReadLength(length);
  } else {
    step_ = Step::kDone;
  }
}

void HttpParser::ReadLength(std::string_view text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) {
    Fail(400, "Content-Length is not a number");
  } else if (!ReadNumber(text, 10, &body_left_) || body_left_ > limits_.body_bytes_max) {
    Fail(413, "the body is longer than " + std::to_string(limits_.body_bytes_max) + " bytes");
  } else {
    step_ = body_left_ == 0 ? Step::kDone : Step::kBody;
  }
}

size_t HttpParser::TakeBody(std::string_view bytes) {
  const size_t taken = std::min<uint64_t>(bytes.size(), body_left_);
  request_.body.append(bytes.substr(0, taken));
  body_left_ -= taken;
  if (body_left_ == 0) step_ = step_ == Step::kBody ? Step::kDone : Step::kChunkEnd;
  return taken;
}

size_t HttpParser::TakeLine(std::string_view bytes, bool* ended) {
  const size_t newline = bytes.find('\n');
  const size_t taken = newline == std::string_view::npos ? bytes.size() : newline + 1;
  const size_t max = step_ == Step::kTrailer ? limits_.head_bytes_max : kChunkLineMax;
  trailer_bytes_ += step_ == Step::kTrailer ? taken : 0;
  if (line_.size() + taken > max || trailer_bytes_ > limits_.head_bytes_max) {
    Fail(400, "a line between the chunks of the body is too long");
    return taken;
  }
  line_.append(bytes.substr(0, taken));
  if (newline == std::string_view::npos) return taken;
  if (!line_.ends_with(kCrlf)) {
    Fail(400, "a line between the chunks of the body does not end in CRLF");
    return taken;
  }
  line_.resize(line_.size() - kCrlf.size());
  *ended = true;
  return taken;
}

void HttpParser::EndLine() {
  if (step_ == Step::kChunkSize) {
    ReadChunkSize();
  } else if (step_ == Step::kChunkEnd) {
    if (line_.empty()) {
      step_ = Step::kChunkSize;
    } else {
      Fail(400, "a chunk of the body is longer than it says");
    }
  } else if (line_.empty()) {  // the last of the trailers, which nobody reads
    step_ = Step::kDone;
  }
  line_.clear();
}

void HttpParser::ReadChunkSize() {
  const std::string_view size = Trimmed(std::string_view(line_).substr(0, line_.find(';')));
  uint64_t bytes = 0;
  if (!ReadNumber(size, 16, &bytes)) {
    Fail(400, "the size of a chunk is not a hexadecimal number");
  } else if (bytes > limits_.body_bytes_max - request_.body.size()) {
    Fail(413, "the body is longer than " + std::to_string(limits_.body_bytes_max) + " bytes");
  } else {
    body_left_ = bytes;
    step_ = bytes == 0 ? Step::kTrailer : Step::kChunk;
  }
}

std::string HttpHead(const HttpReply& reply, std::optional<size_t> length, bool chunked,
                     bool keep_alive) {
  EMS_CHECK(reply.status >= 200 && reply.status <= 999, "an answer of status {}", reply.status);
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", reply.status,
                                 HttpReason(reply.status), reply.content_type);
  if (length) head += fmt::format("Content-Length: {}\r\n", *length);
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string_view HttpReason(int status) {
  const auto found =
      std::ranges::find_if(kReasons, [&](const auto& r) { return r.first == status; });
  return found == std::end(kReasons) ? "Unknown" : found->second;
}

}  // namespace ems::fabric
