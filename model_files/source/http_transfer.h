#pragma once
// The one door to libcurl: one HTTP exchange at a time on each of a bounded pool of connections,
// the body going straight to where the caller wants it.
//
// Invariant: not a byte is written beyond the caller's span. No redirection is followed and nothing
// is tried again here; certificates are always checked; only http and https are spoken; proxies of
// the environment are not used.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "model_files/source/bandwidth_cap.h"

namespace ems {
class StopFlag;
}

namespace ems::model {

// The status and header fields of an answer. A field that was absent is empty.
struct HttpHead {
  int status = 0;  // 0: none came
  std::optional<uint64_t> content_bytes;
  std::string etag;
  std::string last_modified;
  std::string content_range;
  std::string content_encoding;
  std::string content_digest;  // RFC 9530, as repr_digest
  std::string repr_digest;
  std::string content_md5;  // RFC 1864
  bool encrypted = false;   // an object of a store that keeps it under a key: its tag is no MD5
  std::string location;     // of a redirection, absolute
  std::optional<uint64_t> retry_after_s;
};

struct HttpRequest {
  std::string method = "GET";  // or "HEAD"
  std::string url = {};
  std::vector<std::string> headers = {};  // "Name: value", free of line ends
  MutableBytes into = {};       // the body of a 2xx goes here; empty: to HttpOutcome::text
  uint64_t text_bytes_max = 0;  // a 2xx body as text may be this long
  // Asked once for a 2xx, before its body is touched; an error ends the exchange with kRefused.
  std::function<Status(const HttpHead&)> accept = nullptr;
  // Grows with what comes to `into`, as it comes; relaxed. May be null.
  std::atomic<uint64_t>* received = nullptr;
};

enum class HttpFailure {
  kNone,         // the whole answer is there
  kConnect,      // no connection, or TLS could not be agreed on
  kBroken,       // the connection ended early or spoke no HTTP
  kStalled,      // no byte for the stall timeout
  kDeadline,     // the deadline passed
  kStopped,      // Options::stop has been set
  kTooLong,      // more bytes than asked for, or than text_bytes_max
  kRefused,      // `accept` said no
  kCertificate,  // TLS: the other side is not who it should be
  kInternal,     // libcurl cannot work: out of memory, a bad ca_file
};

struct HttpOutcome {
  HttpFailure failure = HttpFailure::kNone;
  std::string what;  // of a failure, without URLs and headers
  Status refused;    // kRefused: what `accept` said
  HttpHead head;
  uint64_t body_bytes = 0;  // received into HttpRequest::into, also when it failed later
  std::string text;         // the body of other answers; of errors the first kErrorTextMax bytes
};

// Threading: thread-safe; Do blocks.
class HttpTransfer final {
 public:
  static constexpr size_t kErrorTextMax = 16 * kKiB;

  struct Options {
    uint32_t connections_max = 16;
    Duration connect_timeout = std::chrono::seconds(10);
    Duration stall_timeout = std::chrono::seconds(30);
    std::string ca_file = {};                  // empty: the system's
    std::shared_ptr<StopFlag> stop = nullptr;  // as SourceSpec's
  };

  // `cap`, for bodies that go to a span, must outlive this.
  HttpTransfer(Options options, BandwidthCap* cap);
  ~HttpTransfer();
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  // One exchange. Waits for a free connection first, within the deadline.   Cost: one connection
  // is kept open for the next; two copies of each body byte (kernel → libcurl → span).
  HttpOutcome Do(const HttpRequest& request, Deadline deadline);

 private:
  struct Connection;
  struct Pool;
  std::unique_ptr<Connection> Take(Deadline deadline);
  // Null: the connection is gone, its place is free.
  void GiveBack(std::unique_ptr<Connection> connection);

  const Options options_;
  BandwidthCap* const cap_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace ems::model
