#include "model_files/source/http_transfer.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::model {
namespace {

constexpr size_t kHeaderValueMax = 4096;
constexpr size_t kHeadersMax = 256;  // lines of all heads of one exchange together
constexpr long kBufferBytes = 256L * 1024;
constexpr Duration kNap = std::chrono::seconds(1);               // poll again at least so often
constexpr Duration kNapToStop = std::chrono::milliseconds(100);  // where a flag may end it

struct FreeEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

int RoundedMs(Duration duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool SameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; };
           return lower(x) == lower(y);
         });
}

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return number;
}

// One exchange as libcurl's callbacks see it. Nothing here throws but for want of memory.
class Exchange final {
 public:
  Exchange(const HttpRequest& request, BandwidthCap* cap) : request_(request), cap_(cap) {}

  // The callbacks. Another number than the size given ends the exchange.
  size_t OnHeader(std::string_view line) {
    ++events_;
    if (++headers_ > kHeadersMax) return Fail(HttpFailure::kBroken, "too many headers");
    if (asked_) return line.size();  // a trailer
    if (line.starts_with("HTTP/")) {
      outcome_.head = HttpHead();
      const size_t blank = line.find(' ');
      if (blank == std::string_view::npos) return line.size();
      outcome_.head.status = static_cast<int>(Number(line.substr(blank + 1, 3)).value_or(0));
      return line.size();
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return line.size();
    KeepHeader(line.substr(0, colon), Trimmed(line.substr(colon + 1)));
    return line.size();
  }

  size_t OnBody(const char* data, size_t bytes) {
    ++events_;
    const bool good = outcome_.head.status / 100 == 2;
    if (good && !Ask()) return bytes == 0 ? 1 : 0;
    if (!good) {
      const size_t room = HttpTransfer::kErrorTextMax - outcome_.text.size();
      outcome_.text.append(data, std::min(bytes, room));
      // The rest of an error page is of no interest, but short ones leave the connection usable.
      skipped_ += bytes - std::min(bytes, room);
      return skipped_ > kMiB ? Fail(HttpFailure::kTooLong, "an endless error text") : bytes;
    }
    if (request_.into.empty()) {
      if (outcome_.text.size() + bytes > request_.text_bytes_max) {
        return Fail(HttpFailure::kTooLong, "the answer is longer than is allowed");
      }
      outcome_.text.append(data, bytes);
      return bytes;
    }
    if (bytes > request_.into.size() - outcome_.body_bytes) {
      return Fail(HttpFailure::kTooLong, "the body is longer than what was asked for");
    }
    if (MustPause(bytes)) return CURL_WRITEFUNC_PAUSE;
    std::memcpy(request_.into.data() + outcome_.body_bytes, data, bytes);
    outcome_.body_bytes += bytes;
    if (request_.received != nullptr)
      request_.received->fetch_add(bytes, std::memory_order_relaxed);
    return bytes;
  }

  // Asks `accept` if that is still to be done. False: it refused.
  bool Ask() {
    if (std::exchange(asked_, true)) return outcome_.refused.ok();
    if (request_.accept) outcome_.refused = request_.accept(outcome_.head);
    if (!outcome_.refused.ok()) outcome_.failure = HttpFailure::kRefused;
    return outcome_.refused.ok();
  }

  size_t Fail(HttpFailure failure, std::string_view what) {
    outcome_.failure = failure;
    outcome_.what = what;
    return 0;  // callbacks never get nothing from libcurl but for empty bodies, which never fail
  }

  uint64_t events() const { return events_; }
  std::optional<TimePoint> paused_until() const { return paused_until_; }
  void Resume() { paused_until_.reset(); }
  HttpOutcome& outcome() { return outcome_; }

 private:
  void KeepHeader(std::string_view name, std::string_view value) {
    if (value.size() > kHeaderValueMax) return;
    HttpHead& head = outcome_.head;
    const std::pair<std::string_view, std::string*> kept[] = {
        {"etag", &head.etag},
        {"last-modified", &head.last_modified},
        {"content-range", &head.content_range},
        {"content-encoding", &head.content_encoding},
        {"content-digest", &head.content_digest},
        {"repr-digest", &head.repr_digest},
        {"content-md5", &head.content_md5}};
    for (const auto& [known, field] : kept) {
      if (SameName(name, known)) *field = value;
    }
    if (SameName(name, "content-length")) head.content_bytes = Number(value);
    if (SameName(name, "x-amz-server-side-encryption-customer-algorithm") ||
        (SameName(name, "x-amz-server-side-encryption") && value != "AES256"))
      head.encrypted = true;
    if (SameName(name, "retry-after")) head.retry_after_s = Number(value);
  }

  // Pays for `bytes` at the bandwidth cap. libcurl gives a piece again after a pause, perhaps cut
  // differently, so what was paid is counted.
  bool MustPause(size_t bytes) {
    if (cap_ == nullptr || !cap_->limits()) return false;
    if (bytes > paid_) {
      const Duration wait = cap_->Reserve(bytes - paid_);
      paid_ = bytes;
      if (wait > Duration::zero()) {
        paused_until_ = Clock::System().Now() + wait;
        return true;
      }
    }
    paid_ -= bytes;
    return false;
  }

  const HttpRequest& request_;
  BandwidthCap* const cap_;
  HttpOutcome outcome_;
  uint64_t events_ = 0;
  size_t headers_ = 0;
  uint64_t skipped_ = 0;
  bool asked_ = false;
  uint64_t paid_ = 0;
  std::optional<TimePoint> paused_until_;
};

size_t HeaderCallback(char* data, size_t, size_t bytes, void* exchange) {
  return static_cast<Exchange*>(exchange)->OnHeader({data, bytes});
}
size_t BodyCallback(char* data, size_t, size_t bytes, void* exchange) {
  return static_cast<Exchange*>(exchange)->OnBody(data, bytes);
}

// As libcurl would, but a child of this process does not inherit it.
curl_socket_t OpenSocket(void*, curlsocktype, curl_sockaddr* address) {
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

HttpFailure FailureOf(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return HttpFailure::kNone;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:  // the connect timeout: no other is set
    case CURLE_SSL_CONNECT_ERROR:
      return HttpFailure::kConnect;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
      return HttpFailure::kCertificate;
    case CURLE_OUT_OF_MEMORY:
    case CURLE_FAILED_INIT:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_UNKNOWN_OPTION:
    case CURLE_URL_MALFORMAT:
      return HttpFailure::kInternal;
    default:  // also CURLE_BAD_FUNCTION_ARGUMENT: a header line without a colon
      return HttpFailure::kBroken;
  }
}

void InitCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] { EMS_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

}  // namespace

// An easy handle for the next exchange, and a multi handle that keeps the connection between them.
struct HttpTransfer::Connection {
  std::unique_ptr<CURLM, FreeMulti> multi{curl_multi_init()};
  std::unique_ptr<CURL, FreeEasy> easy{curl_easy_init()};

  CURLcode Prepare(const HttpRequest& request, const Options& options, curl_slist* headers,
                   char* error, Exchange* exchange);
  void Run(const Options& options, Deadline deadline, const char* error, Exchange* exchange);
  bool WaitSome(const Options& options, Duration stall_left, Deadline deadline, Exchange* exchange);
};

struct HttpTransfer::Pool {
  struct State {
    std::vector<std::unique_ptr<Connection>> idle;
    uint32_t out = 0;
  };
  Guarded<State> state;
  std::condition_variable freed;
};

HttpTransfer::HttpTransfer(Options options, BandwidthCap* cap)
    : options_(std::move(options)), cap_(cap), pool_(std::make_unique<Pool>()) {
  InitCurlOnce();
}
HttpTransfer::~HttpTransfer() = default;

std::unique_ptr<HttpTransfer::Connection> HttpTransfer::Take(Deadline deadline) {
  std::unique_ptr<Connection> connection;
  auto state = pool_->state.Lock();
  if (!state.WaitFor(pool_->freed, deadline.Remaining(),
                     [this](Pool::State& now) { return now.out < options_.connections_max; })) {
    return nullptr;
  }
  ++state->out;
  if (!state->idle.empty()) {
    connection = std::move(state->idle.back());
    state->idle.pop_back();
  }
  state.Unlock();
  if (!connection) connection = std::make_unique<Connection>();
  return connection;
}

void HttpTransfer::GiveBack(std::unique_ptr<Connection> connection) {
  auto state = pool_->state.Lock();
  EMS_CHECK(state->out > 0, "more connections come back than were taken");
  --state->out;
  if (connection) state->idle.push_back(std::move(connection));
  state.Unlock();
  pool_->freed.notify_one();
}

CURLcode HttpTransfer::Connection::Prepare(const HttpRequest& request, const Options& options,
                                           curl_slist* headers, char* error, Exchange* exchange) {
  CURLcode code = CURLE_OK;
  const auto set = [&](CURLoption option, auto value) {
    if (code == CURLE_OK) code = curl_easy_setopt(easy.get(), option, value);
  };
  set(CURLOPT_ERRORBUFFER, error);
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});  // one stream a connection, in parallel
  set(CURLOPT_PATH_AS_IS, 1L);                             // what was signed is what is sent
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NETRC, long{CURL_NETRC_IGNORED});
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_QUICK_EXIT, 1L);  // an end does not wait for a name that is being looked up
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_CONNECTTIMEOUT_MS, long{RoundedMs(options.connect_timeout)});
  set(CURLOPT_NOBODY, request.method == "HEAD" ? 1L : 0L);
  set(CURLOPT_USERAGENT, "ems");
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
  set(CURLOPT_HEADERFUNCTION, &HeaderCallback);
  set(CURLOPT_HEADERDATA, static_cast<void*>(exchange));
  set(CURLOPT_WRITEFUNCTION, &BodyCallback);
  set(CURLOPT_WRITEDATA, static_cast<void*>(exchange));
  if (!options.ca_file.empty()) {
    set(CURLOPT_CAINFO, options.ca_file.c_str());
    set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));
  }
  return code;
}

// Sleeps until there is something to do. False: the exchange has failed by time.
bool HttpTransfer::Connection::WaitSome(const Options& options, Duration stall_left,
                                        Deadline deadline, Exchange* exchange) {
  if (options.stop != nullptr && options.stop->IsSet()) {
    exchange->Fail(HttpFailure::kStopped, "stopping");
    return false;
  }
  if (deadline.Passed()) {
    exchange->Fail(HttpFailure::kDeadline, "the deadline passed");
    return false;
  }
  Duration wait = std::min({deadline.Remaining(), options.stop != nullptr ? kNapToStop : kNap});
  if (exchange->paused_until()) {
    const Duration pause = *exchange->paused_until() - Clock::System().Now();
    if (pause <= Duration::zero()) {
      exchange->Resume();
      curl_easy_pause(easy.get(), CURLPAUSE_CONT);
      return true;
    }
    wait = std::min(wait, pause);
  } else if (stall_left <= Duration::zero()) {
    exchange->Fail(HttpFailure::kStalled, "no byte came");
    return false;
  } else {
    wait = std::min(wait, stall_left);
  }
  curl_multi_poll(multi.get(), nullptr, 0, RoundedMs(wait), nullptr);
  return true;
}

void HttpTransfer::Connection::Run(const Options& options, Deadline deadline, const char* error,
                                   Exchange* exchange) {
  uint64_t events = 0;
  TimePoint last = Clock::System().Now();
  for (;;) {
    int running = 0;
    if (curl_multi_perform(multi.get(), &running) != CURLM_OK) {
      exchange->Fail(HttpFailure::kInternal, "libcurl does not continue");
      return;
    }
    if (running == 0) break;
    if (exchange->events() != events || exchange->paused_until()) {
      events = exchange->events();
      last = Clock::System().Now();
    }
    const Duration silent = Clock::System().Now() - last;
    if (!WaitSome(options, options.stall_timeout - silent, deadline, exchange)) return;
  }
  int left = 0;
  const CURLMsg* message = curl_multi_info_read(multi.get(), &left);
  const CURLcode code = message != nullptr ? message->data.result : CURLE_FAILED_INIT;
  HttpOutcome& outcome = exchange->outcome();
  if (outcome.failure != HttpFailure::kNone) return;  // a callback ended it and said why
  if (code != CURLE_OK) {
    exchange->Fail(FailureOf(code), *error != '\0' ? error : curl_easy_strerror(code));
    return;
  }
  if (outcome.head.status / 100 == 2) exchange->Ask();
  char* location = nullptr;
  curl_easy_getinfo(easy.get(), CURLINFO_REDIRECT_URL, &location);
  if (location != nullptr) outcome.head.location = location;
}

HttpOutcome HttpTransfer::Do(const HttpRequest& request, Deadline deadline) {
  Exchange exchange(request, cap_);
  std::unique_ptr<Connection> connection = Take(deadline);
  if (!connection) {
    exchange.Fail(HttpFailure::kDeadline, "all connections were in use up to the deadline");
    return std::move(exchange.outcome());
  }
  std::unique_ptr<curl_slist, FreeList> headers;
  bool ready = connection->multi && connection->easy;
  for (const std::string& header : request.headers) {
    curl_slist* longer = curl_slist_append(headers.get(), header.c_str());
    ready = ready && longer != nullptr;
    if (longer != nullptr) (void)headers.release(), headers.reset(longer);
  }
  std::array<char, CURL_ERROR_SIZE> error{};
  if (!ready ||
      connection->Prepare(request, options_, headers.get(), error.data(), &exchange) != CURLE_OK) {
    exchange.Fail(HttpFailure::kInternal, "libcurl cannot be set up");
  } else if (curl_multi_add_handle(connection->multi.get(), connection->easy.get()) != CURLM_OK) {
    exchange.Fail(HttpFailure::kInternal, "libcurl does not take the request");
  } else {
    connection->Run(options_, deadline, error.data(), &exchange);
    curl_multi_remove_handle(connection->multi.get(), connection->easy.get());
  }
  // Nothing points here any more. Another handle for the next exchange: this one keeps a pointer to
  // its last header line, which libcurl 7.88 frees and follows when the next answer begins with a
  // line that is folded. The connection is the multi handle's.
  connection->easy.reset(curl_easy_init());
  // A handle that libcurl could not work with is not used again; nor one that has looked up a name
  // in vain, of which libcurl 7.88 takes no options any more.
  const HttpFailure failure = exchange.outcome().failure;
  if (failure == HttpFailure::kInternal || failure == HttpFailure::kConnect) connection.reset();
  GiveBack(std::move(connection));
  return std::move(exchange.outcome());
}

}  // namespace ems::model
