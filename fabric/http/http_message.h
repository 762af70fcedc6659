#pragma once
// HTTP/1.1 requests, read byte by byte from untrusted clients, and the heads of answers.
//
// Strict where leniency lets two readers disagree (RFC 9112 §6, §11.2): lines end in CRLF, a length
// is given once, in one way, and header lines are not folded.
// Bound: HttpLimits; what exceeds them is refused before it is kept.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/bytes.h"

namespace ems::fabric {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // as sent: "GET"
  std::string path;     // begins with '/', percent signs as sent
  std::string query;    // what follows '?', without it
  HttpHeaders headers;  // names in lower case, values without spaces around them
  std::string body;
  bool http_1_0 = false;
  bool keep_alive = true;  // never of HTTP/1.0, whose streams end with the connection
  // The first value of a header; empty without. `name` in lower case.
  std::string_view Header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};  // further ones
  std::string body = {};
};

struct HttpLimits {
  size_t head_bytes_max = 16 * kKiB;
  size_t headers_max = 64;
  size_t body_bytes_max = 4 * kMiB;
};

// Takes one request in any pieces. Threading: one thread (holder).
class HttpParser final {
 public:
  explicit HttpParser(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes up to the end of the request; returns how many. Takes none once it is done or has
  // failed. Cost: O(bytes taken); the body is allocated as it comes.
  size_t Feed(std::string_view bytes);

  bool done() const { return step_ == Step::kDone; }
  bool failed() const { return step_ == Step::kFailed; }
  // A byte of the request has come.
  bool begun() const { return begun_; }
  // The head is there, a body is to come.
  bool in_body() const { return step_ != Step::kHead && !done() && !failed(); }
  // The sender waits for "100 Continue" before it sends the body.
  bool expects_continue() const { return expects_continue_; }
  // Of a failure: 400, 413, 417, 431, 501 or 505, and a sentence.
  int error_status() const { return error_status_; }
  const std::string& error() const { return error_; }
  // Whole once done(); head alone while in_body().
  HttpRequest& request() { return request_; }
  const HttpRequest& request() const { return request_; }

 private:
  enum class Step { kHead, kBody, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone, kFailed };

  size_t TakeHead(std::string_view bytes);
  size_t TakeBody(std::string_view bytes);
  // Adds to line_ up to its end; `ended` says whether it is whole, then without CRLF.
  size_t TakeLine(std::string_view bytes, bool* ended);
  void ReadHead();
  bool ReadRequestLine(std::string_view line);
  bool ReadHeaderLine(std::string_view line);
  // What the headers say of connection, length and expectations.
  void ReadFraming();
  void ReadLength(std::string_view text);
  void ReadChunkSize();
  void EndLine();
  bool Fail(int status, std::string why);

  HttpLimits limits_;
  HttpRequest request_;
  std::string line_;  // the head, then lines between chunks
  uint64_t body_left_ = 0;
  size_t trailer_bytes_ = 0;
  Step step_ = Step::kHead;
  bool begun_ = false;
  bool expects_continue_ = false;
  int error_status_ = 0;
  std::string error_;
};

// The head of an answer, up to and with the empty line. `length` nullopt: chunked, or up to the
// connection's end.
std::string HttpHead(const HttpReply& reply, std::optional<size_t> length, bool chunked,
                     bool keep_alive);

// "Not Found" for 404; "Unknown" for what we never send.
std::string_view HttpReason(int status);

}  // namespace ems::fabric
