#pragma once
// HTTP as the sources need it: a file's size and tag, a text, a range of a file; with redirections,
// tries again, and each way to fail turned into a status that says what happened where.
//
// Invariants: a range is complete and of the file's tag, or it is an error. Credentials go to the
// source's own origin alone, never to where a redirection leads. Error texts hold no query and no
// secret.
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/retry.h"
#include "model_files/source/bandwidth_cap.h"
#include "model_files/source/http_transfer.h"
#include "model_files/source/source_url.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

// Size and tag of a file, as a server has them.
struct RemoteFile {
  uint64_t bytes = 0;
  std::string tag;
  bool md5_tag = false;    // as SourceFile's
  bool encrypted = false;  // under a key: then it is not. Known by Stat alone
};

// Threading: thread-safe; blocking.
class HttpReader final {
 public:
  static constexpr int kRedirectsMax = 5;
  // Headers ("Name: value") that authorise one request to the origin, made for each try.
  using Authorize =
      std::function<std::vector<std::string>(std::string_view method, const HttpUrl& url)>;

  // `origin`: where credentials may go.
  HttpReader(const SourceSpec& spec, HttpUrl origin, Authorize authorize);

  // By HEAD.   Errors: as WeightSource::List; kNotFound for 404 and 410
  Result<RemoteFile> Stat(const HttpUrl& url, Deadline deadline);
  // The same of a part of a file, which the query of `url` names: `bytes` are those of the part.
  // Errors: also kInvalidArgument  the server knows no parts
  Result<RemoteFile> StatPart(const HttpUrl& url, Deadline deadline);
  // Errors: the same, and kDataLoss  longer than `bytes_max`
  Result<std::string> Text(const HttpUrl& url, uint64_t bytes_max, Deadline deadline);
  // Bytes [offset, offset + into.size()) of `file`, not empty and within it. A body that breaks off
  // is taken up where it stopped; one that is not what the server's own checksum says
  // (body_digest.h) is read again. True: all of it has been compared with such a checksum.
  // Errors: as WeightSource::Read; kDataLoss  that, in all tries
  Result<bool> ReadRange(const HttpUrl& url, const RemoteFile& file, uint64_t offset,
                         MutableBytes into, Deadline deadline);

  SourceCounters counters() const;

 private:
  struct Verdict {
    Status status;
    bool again = false;  // another try may help
    Duration not_before = Duration::zero();
  };
  // A request and its redirections: the last answer.
  Verdict Exchange(HttpRequest* request, const HttpUrl& url, std::string_view where,
                   const std::vector<std::string>& headers, Deadline deadline,
                   HttpOutcome* outcome);
  // Whether the body of a complete read is what the server says it is. `compared`: it has said so
  // of all of it.
  Verdict Compare(const HttpOutcome& outcome, const RemoteFile& file, ConstBytes into,
                  std::string* last_md5, bool* compared) const;
  Verdict Judge(const HttpOutcome& outcome, std::string_view what) const;
  Result<RemoteFile> Stat(const HttpUrl& url, int http_status, Deadline deadline);
  Status WithRetries(Deadline deadline, const std::function<Verdict()>& attempt);
  // Blots out secrets that a server repeated.
  std::string Scrubbed(std::string text) const;

  const HttpUrl origin_;
  const Authorize authorize_;
  const std::vector<std::string> secrets_;
  const std::shared_ptr<StopFlag> stop_;  // may be null
  const uint32_t retries_max_;
  const Duration retry_delay_;
  BandwidthCap cap_;
  HttpTransfer transfer_;
  RetryBudget budget_;
  // Counters alone: relaxed.
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> retries_{0};
};

// Size and tag of each of `paths`, sorted, one request each, one after the other. Files that are
// not there are left out if they `may_miss`, else they are an error.   Errors: as HttpReader::Stat
Result<std::vector<SourceFile>> StatFiles(HttpReader* reader, std::vector<std::string> paths,
                                          const std::function<HttpUrl(std::string_view)>& url_of,
                                          bool may_miss, Deadline deadline);

// The tag of an answer: its entity tag, else its date, else its size.
std::string TagOf(const HttpHead& head, uint64_t file_bytes);

// That a 206 (or a 200, when the whole file was asked for) is bytes [offset, offset + bytes) of
// `file`.   Errors: kFailedPrecondition  another tag or size    kInvalidArgument  the server
// ignores ranges, or encodes the body    kDataLoss  other bytes than asked for
Status CheckRangeHead(const HttpHead& head, const RemoteFile& file, uint64_t offset,
                      uint64_t bytes);

}  // namespace ems::model
