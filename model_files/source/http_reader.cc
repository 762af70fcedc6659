#include "model_files/source/http_reader.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "common/sha256.h"
#include "common/thread_pool.h"
#include "model_files/source/body_digest.h"
#include "model_files/source/s3_listing.h"

namespace ems::model {
namespace {

constexpr uint64_t kRetryAfterMaxS = 60;
constexpr int kOverBudgetDelays = 20;  // times retry_delay, before each retry beyond the budget

std::vector<std::string> Secrets(const SourceCredentials& credentials) {
  std::vector<std::string> secrets;
  for (const std::string* secret : {&credentials.access_key, &credentials.secret_key,
                                    &credentials.session_token, &credentials.bearer_token}) {
    if (!secret->empty()) secrets.push_back(*secret);
  }
  return secrets;
}

std::optional<uint64_t> TakeNumber(std::string_view* text) {
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(stop - text->data()));
  return number;
}

bool Take(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

struct ContentRange {
  uint64_t first = 0;
  uint64_t last = 0;
  std::optional<uint64_t> total;
};

// "bytes 0-99/1234", "bytes 0-99/*".
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  if (!Take("bytes ", &text)) return std::nullopt;
  const std::optional<uint64_t> first = TakeNumber(&text);
  if (!first || !Take("-", &text)) return std::nullopt;
  const std::optional<uint64_t> last = TakeNumber(&text);
  if (!last || !Take("/", &text)) return std::nullopt;
  ContentRange range{.first = *first, .last = *last, .total = {}};
  if (text == "*") return range;
  range.total = TakeNumber(&text);
  if (!range.total || !text.empty()) return std::nullopt;
  return range;
}

Status CheckEncoding(const HttpHead& head) {
  if (head.content_encoding.empty() || head.content_encoding == "identity") return OkStatus();
  return Error(StatusCode::kInvalidArgument, "the server encodes the body ({})",
               Printable(head.content_encoding, 32));
}

bool IsCredentialCode(std::string_view code) {
  constexpr std::string_view kCodes[] = {"InvalidAccessKeyId",   "SignatureDoesNotMatch",
                                         "ExpiredToken",         "InvalidToken",
                                         "RequestTimeTooSkewed", "TokenRefreshRequired"};
  return std::find(std::begin(kCodes), std::end(kCodes), code) != std::end(kCodes);
}

StatusCode CodeOf(int status, std::string_view server_code) {
  if (status == 401 || ((status == 400 || status == 403) && IsCredentialCode(server_code))) {
    return StatusCode::kUnauthenticated;
  }
  if (status == 403) return StatusCode::kPermissionDenied;
  if (status == 404 || status == 410) return StatusCode::kNotFound;
  if (status == 412 || status == 416) return StatusCode::kFailedPrecondition;
  if (status == 408 || status == 425 || status == 429 || status >= 500) {
    return StatusCode::kUnavailable;
  }
  return StatusCode::kInvalidArgument;
}

std::string HttpText(const HttpOutcome& outcome, const S3ErrorText& error) {
  std::string text = fmt::format("HTTP {}", outcome.head.status);
  if (outcome.head.status == 412 || outcome.head.status == 416) text += ", the source changed";
  if (!error.code.empty()) text += " " + error.code;
  if (!error.message.empty()) text += ": " + error.message;
  return text;
}

// What a request was about, for error texts. The query stays out.
std::string What(std::string_view method, const HttpUrl& url) {
  return fmt::format("{} {}", method, url.Shown());
}

}  // namespace

std::string TagOf(const HttpHead& head, uint64_t file_bytes) {
  if (!head.etag.empty()) return head.etag;
  if (!head.last_modified.empty()) return "last-modified:" + head.last_modified;
  return fmt::format("size:{}", file_bytes);
}

Status CheckRangeHead(const HttpHead& head, const RemoteFile& file, uint64_t offset,
                      uint64_t bytes) {
  EMS_RETURN_IF_ERROR(CheckEncoding(head));
  const auto changed = [&](std::string_view field, std::string_view now) {
    return Error(StatusCode::kFailedPrecondition, "the source changed: its {} is now {}", field,
                 Printable(now));
  };
  uint64_t total = file.bytes;
  if (head.status == 206) {
    const std::optional<ContentRange> range = ParseContentRange(head.content_range);
    if (!range) {
      return Error(StatusCode::kDataLoss, "Content-Range '{}' makes no sense",
                   Printable(head.content_range));
    }
    total = range->total.value_or(file.bytes);
    if (total == file.bytes && (range->first != offset || range->last != offset + bytes - 1)) {
      return Error(StatusCode::kDataLoss, "the server sends '{}', not bytes {}-{}",
                   Printable(head.content_range), offset, offset + bytes - 1);
    }
  } else if (head.status == 200) {
    // The whole file, though a range was asked for: fine if that was the whole file.
    if (head.content_bytes) total = *head.content_bytes;
  } else {
    return Error(StatusCode::kDataLoss, "HTTP {} to a read of a range", head.status);
  }
  const std::string tag = TagOf(head, total);
  if (tag != file.tag) return changed("tag", tag);
  if (total != file.bytes) return changed("size", std::to_string(total));
  if (head.status == 200 && (offset != 0 || bytes != file.bytes)) {
    return Error(StatusCode::kInvalidArgument,
                 "the server ignores ranges: it sends the whole file");
  }
  if (head.content_bytes && *head.content_bytes != bytes) {
    return Error(StatusCode::kDataLoss, "a body of {} bytes, not {}", *head.content_bytes, bytes);
  }
  return OkStatus();
}

HttpReader::HttpReader(const SourceSpec& spec, HttpUrl origin, Authorize authorize)
    : origin_(std::move(origin)),
      authorize_(std::move(authorize)),
      secrets_(Secrets(spec.credentials)),
      stop_(spec.stop),
      retries_max_(spec.retries_max),
      retry_delay_(spec.retry_delay),
      cap_(spec.bytes_per_s_max),
      transfer_({.connections_max = spec.connections_max,
                 .connect_timeout = spec.connect_timeout,
                 .stall_timeout = spec.stall_timeout,
                 .ca_file = spec.ca_file,
                 .stop = spec.stop},
                &cap_) {}

SourceCounters HttpReader::counters() const {
  return {.bytes_read = bytes_read_.load(std::memory_order_relaxed),
          .requests = requests_.load(std::memory_order_relaxed),
          .retries = retries_.load(std::memory_order_relaxed)};
}

std::string HttpReader::Scrubbed(std::string text) const {
  for (const std::string& secret : secrets_) {
    for (size_t at = text.find(secret); at != std::string::npos; at = text.find(secret, at)) {
      text.replace(at, secret.size(), "***");
      at += 3;
    }
  }
  return text;
}

Status HttpReader::WithRetries(Deadline deadline, const std::function<Verdict()>& attempt) {
  const auto seed = static_cast<uint64_t>(Clock::System().Now().time_since_epoch().count());
  Backoff backoff(seed, retry_delay_, std::max<Duration>(retry_delay_, std::chrono::seconds(10)));
  StopFlag never;
  StopFlag& stop = stop_ != nullptr ? *stop_ : never;
  budget_.OnRequest();
  for (uint32_t tries = 0;; ++tries) {
    const Verdict verdict = attempt();
    if (verdict.status.ok() || !verdict.again) return verdict.status;
    if (tries == retries_max_) {
      return Error(verdict.status.code(), "{}; tried {} times", Message(verdict.status), tries + 1);
    }
    // Of a source that refuses much of what it is asked less is asked: it is the next try that
    // waits, as most of them go well.
    const Duration pace = budget_.TryRetry() ? Duration(0) : kOverBudgetDelays * retry_delay_;
    const Duration wait = std::max({backoff.Next(), verdict.not_before, pace});
    if (wait >= deadline.Remaining()) {
      return Error(StatusCode::kDeadlineExceeded, "no time to try again after: {}",
                   Message(verdict.status));
    }
    if (stop.WaitFor(wait)) return Error(StatusCode::kCancelled, "stopping");
    retries_.fetch_add(1, std::memory_order_relaxed);
  }
}

HttpReader::Verdict HttpReader::Judge(const HttpOutcome& outcome, std::string_view what) const {
  const auto failed = [&](StatusCode code, std::string_view text, bool again) {
    return Verdict{.status = Error(code, "{}: {}", what, Scrubbed(Printable(text, 400))),
                   .again = again};
  };
  // An error whose text breaks off or does not end is that error all the same.
  const bool said = outcome.head.status >= 400 && outcome.failure != HttpFailure::kDeadline &&
                    outcome.failure != HttpFailure::kStopped;
  switch (said ? HttpFailure::kNone : outcome.failure) {
    case HttpFailure::kNone:
      break;
    case HttpFailure::kConnect:
    case HttpFailure::kBroken:
      return failed(StatusCode::kUnavailable, outcome.what, true);
    case HttpFailure::kStalled:
      return failed(StatusCode::kDeadlineExceeded, "stalled: " + outcome.what, true);
    case HttpFailure::kDeadline:
      return failed(StatusCode::kDeadlineExceeded, outcome.what, false);
    case HttpFailure::kStopped:
      return failed(StatusCode::kCancelled, outcome.what, false);
    case HttpFailure::kTooLong:
      return failed(StatusCode::kDataLoss, outcome.what, false);
    case HttpFailure::kRefused:
      return failed(outcome.refused.code(), Message(outcome.refused), false);
    case HttpFailure::kCertificate:
      return failed(StatusCode::kUnavailable, outcome.what, false);
    case HttpFailure::kInternal:
      return failed(StatusCode::kInternal, outcome.what, false);
  }
  if (outcome.head.status / 100 == 2) return {};
  const S3ErrorText error = ParseS3Error(Scrubbed(outcome.text));
  const StatusCode code = CodeOf(outcome.head.status, error.code);
  Verdict verdict = failed(code, HttpText(outcome, error), code == StatusCode::kUnavailable);
  verdict.not_before =
      std::chrono::seconds(std::min(outcome.head.retry_after_s.value_or(0), kRetryAfterMaxS));
  return verdict;
}

HttpReader::Verdict HttpReader::Exchange(HttpRequest* request, const HttpUrl& first,
                                         std::string_view where,
                                         const std::vector<std::string>& headers, Deadline deadline,
                                         HttpOutcome* outcome) {
  HttpUrl url = first;
  for (int redirects = 0;; ++redirects) {
    const std::string what = What(request->method, url) + std::string(where);
    request->url = url.Text();
    request->headers = headers;
    if (authorize_ && url.SameOrigin(origin_)) {
      for (std::string& header : authorize_(request->method, url)) {
        request->headers.push_back(std::move(header));
      }
    }
    requests_.fetch_add(1, std::memory_order_relaxed);
    *outcome = transfer_.Do(*request, deadline);
    const bool redirected = outcome->failure == HttpFailure::kNone &&
                            outcome->head.status / 100 == 3 && !outcome->head.location.empty();
    if (!redirected) return Judge(*outcome, what);
    const auto refuse = [&](std::string_view why) {
      return Verdict{.status = Error(StatusCode::kInvalidArgument, "{}: HTTP {}: {}", what,
                                     outcome->head.status, why)};
    };
    if (redirects == kRedirectsMax) return refuse("too many redirections");
    const Result<HttpUrl> next = ParseHttpUrl(outcome->head.location);
    if (!next.ok()) return refuse("redirected to a URL that is not followed");
    if (url.tls && !next->tls)
      return refuse("redirected from https to http, which is not followed");
    url = *next;
  }
}

Result<RemoteFile> HttpReader::Stat(const HttpUrl& url, Deadline deadline) {
  return Stat(url, 200, deadline);
}

Result<RemoteFile> HttpReader::StatPart(const HttpUrl& url, Deadline deadline) {
  return Stat(url, 206, deadline);
}

Result<RemoteFile> HttpReader::Stat(const HttpUrl& url, int http_status, Deadline deadline) {
  RemoteFile file;
  const Status status = WithRetries(deadline, [&] {
    HttpRequest request{.method = "HEAD"};
    HttpOutcome outcome;
    Verdict verdict = Exchange(&request, url, "", {}, deadline, &outcome);
    if (!verdict.status.ok()) return verdict;
    if (outcome.head.status != http_status || !outcome.head.content_bytes) {
      verdict.status = Error(StatusCode::kInvalidArgument, "{}: HTTP {} that does not say the size",
                             What("HEAD", url), outcome.head.status);
      return verdict;
    }
    verdict.status = Prefixed(CheckEncoding(outcome.head), What("HEAD", url));
    file.bytes = *outcome.head.content_bytes;
    file.tag = TagOf(outcome.head, file.bytes);
    file.encrypted = outcome.head.encrypted;
    return verdict;
  });
  if (!status.ok()) return status;
  return file;
}

Result<std::string> HttpReader::Text(const HttpUrl& url, uint64_t bytes_max, Deadline deadline) {
  std::string text;
  const Status status = WithRetries(deadline, [&] {
    HttpRequest request{.text_bytes_max = bytes_max, .accept = CheckEncoding};
    HttpOutcome outcome;
    Verdict verdict = Exchange(&request, url, "", {}, deadline, &outcome);
    if (verdict.status.ok() && outcome.head.status != 200) {
      verdict.status = Error(StatusCode::kDataLoss, "{}: HTTP {}, not 200", What("GET", url),
                             outcome.head.status);
    }
    if (verdict.status.ok() &&
        outcome.head.content_bytes.value_or(outcome.text.size()) != outcome.text.size()) {
      verdict = {
          .status = Error(StatusCode::kUnavailable, "{}: the body broke off", What("GET", url)),
          .again = true};
    }
    text = std::move(outcome.text);
    return verdict;
  });
  if (!status.ok()) return status;
  return text;
}

HttpReader::Verdict HttpReader::Compare(const HttpOutcome& outcome, const RemoteFile& file,
                                        ConstBytes into, std::string* last_md5,
                                        bool* compared) const {
  const bool whole = into.size() == file.bytes;
  const ConstBytes body = into.last(outcome.body_bytes);
  const bool at_once = body.size() == into.size();
  *compared = at_once && HasChecksum(outcome.head, whole);
  if (const auto field = ContradictedField(outcome.head, body, whole && at_once)) {
    return {.status = Error(StatusCode::kDataLoss,
                            "{} bytes are damaged: they are not what {} says", body.size(), *field),
            .again = true};
  }
  if (!whole || !file.md5_tag) return {};
  const std::optional<std::string> wanted = Md5OfTag(file.tag, outcome.head);
  const std::optional<Md5Digest> got = wanted ? Md5(into) : std::nullopt;
  if (!got) return {};
  // The same bytes twice: then it is the tag that is something else.
  const std::string md5 = ToHex(*got);
  *compared = *compared || md5 == *wanted;
  if (md5 == *wanted || md5 == std::exchange(*last_md5, md5)) return {};
  return {.status = Error(StatusCode::kDataLoss,
                          "{} bytes are damaged: they are not what ETag says", into.size()),
          .again = true};
}

Result<bool> HttpReader::ReadRange(const HttpUrl& url, const RemoteFile& file, uint64_t offset,
                                   MutableBytes into, Deadline deadline) {
  uint64_t done = 0;
  std::string last_md5, last_change;
  bool compared = false;
  EMS_RETURN_IF_ERROR(WithRetries(deadline, [&] {
    const uint64_t from = offset + done;
    const uint64_t left = into.size() - done;
    std::vector<std::string> headers = {fmt::format("Range: bytes={}-{}", from, from + left - 1)};
    // Weak tags never match; what came is compared below in any case.
    if (file.tag.starts_with('"')) headers.push_back("If-Match: " + file.tag);
    HttpRequest request{
        .into = into.subspan(done),
        .accept = [&](const HttpHead& head) { return CheckRangeHead(head, file, from, left); },
        .received = &bytes_read_};
    const std::string where = fmt::format(" at offset {}", from);
    HttpOutcome outcome;
    Verdict verdict = Exchange(&request, url, where, headers, deadline, &outcome);
    done += outcome.body_bytes;
    // A tag, too, may have been damaged on the way: another one is believed when it comes again.
    if (verdict.status.code() == StatusCode::kFailedPrecondition) {
      std::string change = ToString(verdict.status);
      verdict.again = change != std::exchange(last_change, change);
      return verdict;
    }
    // It may have broken after the last byte.
    if (done == into.size() && (verdict.status.ok() || verdict.again)) {
      verdict = Compare(outcome, file, into, &last_md5, &compared);
      verdict.status = Prefixed(verdict.status, What("GET", url) + where);
      if (!verdict.status.ok()) done = 0;
      return verdict;
    }
    // A part of a body cannot be compared any more with what its server said of it.
    if (HasBodyDigest(outcome.head)) done -= outcome.body_bytes;
    if (verdict.status.ok()) {
      verdict = {
          .status = Error(StatusCode::kUnavailable, "{}{}: the body broke off after {} of {} bytes",
                          What("GET", url), where, outcome.body_bytes, left),
          .again = true};
    }
    return verdict;
  }));
  return compared;
}

Result<std::vector<SourceFile>> StatFiles(HttpReader* reader, std::vector<std::string> paths,
                                          const std::function<HttpUrl(std::string_view)>& url_of,
                                          bool may_miss, Deadline deadline) {
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  std::vector<SourceFile> files;
  files.reserve(paths.size());
  for (std::string& path : paths) {
    Result<RemoteFile> file = reader->Stat(url_of(path), deadline);
    if (may_miss && file.status().code() == StatusCode::kNotFound) continue;
    if (!file.ok()) return file.status();
    files.push_back({.path = std::move(path), .bytes = file->bytes, .tag = std::move(file->tag)});
  }
  return files;
}

}  // namespace ems::model
