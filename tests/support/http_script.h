#pragma once
// An HTTP server that says exactly what a test wants, faults included: cut bodies, silence,
// nonsense.
//
// Bound: 64 connections at a time; request heads up to 64 KiB. Every connection and thread is gone
// when the server is.
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::testing {

struct ScriptRequest {
  std::string method;
  std::string target;                          // path and query, as sent
  std::map<std::string, std::string> headers;  // names in lower case
  uint64_t connection = 0;                     // which of the server's connections, from 1

  std::string Header(const std::string& name) const;
  // "bytes=2-5" → {2, 5}; {0, max} without a range.
  std::pair<uint64_t, uint64_t> Range() const;
};

struct ScriptReply {
  enum class End {
    kKeepOpen,  // ready for the next request
    kClose,     // orderly
    kHang,      // nothing more, until the other side goes
  };
  std::string bytes;  // sent as they are: head and body
  End end = End::kKeepOpen;
};

// A well-formed reply; "Content-Length" is added.
ScriptReply Reply(int status, const std::vector<std::string>& headers, const std::string& body);

// Threading: thread-safe. The handler runs on the connections' threads.
class HttpScript final {
 public:
  using Handler = std::function<ScriptReply(const ScriptRequest&)>;
  explicit HttpScript(Handler handler);
  ~HttpScript();
  HttpScript(const HttpScript&) = delete;
  HttpScript& operator=(const HttpScript&) = delete;

  uint16_t port() const { return port_; }
  std::string origin() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<ScriptRequest> requests();  // so far, in order of arrival

 private:
  void Accept();
  void Serve(int fd, uint64_t connection);
  bool Answer(int fd, const std::string& head, uint64_t connection);

  const Handler handler_;
  int listener_ = -1;
  int stop_ = -1;  // eventfd: readable once it is over
  uint16_t port_ = 0;
  Guarded<std::vector<ScriptRequest>> requests_;
  std::vector<Thread> connections_;  // of Accept's thread, until that has ended
  Thread thread_;
};

}  // namespace ems::testing
