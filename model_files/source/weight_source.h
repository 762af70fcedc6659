#pragma once
// The interface to a source of model weights: a folder, an HTTP(S) server or an S3-compatible
// object store, as a list of files and reads of ranges of them.
//
// Invariant: a read returns the bytes of the file as it was listed, or an error: each file carries
// a tag that changes when its bytes do, and every read compares it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"

namespace ems {
class StopFlag;
}

namespace ems::model {

inline constexpr size_t kSourceFilesMax = 100'000;

struct SourceFile {
  std::string path;  // relative to the source's root, parts separated by '/'; never leads out of it
  uint64_t bytes = 0;
  // Changes when the bytes change: the entity tag as the server writes it, quotes included; for
  // servers without one "last-modified:<date>" or, with neither, "size:<bytes>"; "<mtime in
  // ns>:<bytes>" of a local file. Opaque to callers.
  std::string tag;
  // For reads: the tag is believed to be the MD5 of all bytes ("md5:…" is the file's sum). List
  // never says so: stores make other tags that look the same.
  bool md5_tag = false;
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// The work of a source since it was opened.
struct SourceCounters {
  uint64_t bytes_read = 0;  // payload received by Read, those of reads that failed later included
  uint64_t requests = 0;    // sent over HTTP, tries again and redirections included
  uint64_t retries = 0;     // requests that were sent once more after a failure
};

// Threading: thread-safe; calls block, up to their deadline or until SourceSpec::stop is set
// (kCancelled).
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // All files below the root, sorted by path, kSourceFilesMax at most.
  // Errors: kNotFound  no such root, nothing in it    kUnauthenticated, kPermissionDenied
  //   kInvalidArgument  a path that would lead out of the root, a link or special file that is not
  //   followed, a request that the server does not take    kResourceExhausted  too many files
  //   kUnavailable  the server cannot be reached, or failed in all tries    kDataLoss  an answer
  //   that makes no sense    kDeadlineExceeded
  virtual Result<std::vector<SourceFile>> List(Deadline deadline) = 0;

  // Bytes [offset, offset + into.size()) of `file`, straight into the caller's memory: all of them
  // or an error, and then the contents of `into` are undefined. `file` is as List gave it.
  // Errors: as List, and kFailedPrecondition  the source changed: list it again
  virtual Status Read(const SourceFile& file, uint64_t offset, MutableBytes into,
                      Deadline deadline) = 0;

  // As Read. True: the bytes have been compared with a checksum that the source gave of them; of a
  // file of `md5_tag` that is read whole, that is one, and other bytes are read again.
  virtual Result<bool> ReadCompared(const SourceFile& file, uint64_t offset, MutableBytes into,
                                    Deadline deadline);

  // What the source says that the bytes of `file` add up to, in the words of format/file_sum.h;
  // empty: nothing that could be computed. Of a file as List gave it.   Errors: as Read
  // Cost: up to three requests.
  virtual Result<std::string> Sum(const SourceFile& file, Deadline deadline);

  virtual SourceCounters counters() const = 0;
};

// Secrets. They are in no URL, no log and no error text. All empty: anonymous.
struct SourceCredentials {
  std::string access_key = {};  // s3, together with the secret key
  std::string secret_key = {};
  std::string session_token = {};  // s3, if the keys are temporary ones
  std::string bearer_token = {};   // http(s): sent as "Authorization: Bearer …"
  // host or host:port of the URLs that they are for (of s3: of the endpoint). Empty: any.
  std::vector<std::string> hosts = {};
};

struct SourceSpec {
  std::string url = {};  // see ParseSourceUrl
  SourceCredentials credentials = {};
  // Paths relative to the root. Not empty: List gives these alone, and fails if one is missing.
  std::vector<std::string> files = {};
  uint64_t bytes_per_s_max = 0;   // of all reads together; 0: no limit
  uint32_t connections_max = 16;  // at a time; further reads wait for one
  uint32_t retries_max = 5;       // of one request; all of them together draw on one RetryBudget
  Duration retry_delay = std::chrono::milliseconds(100);  // before the first, then doubling
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(30);  // without a byte; then the request is retried
  // Once set, calls under way end with kCancelled within 200 ms, later ones at once. May be null.
  std::shared_ptr<StopFlag> stop = nullptr;
  std::string ca_file = {};  // https: certificates to trust, in PEM, instead of the system's
};

// What every kind of source checks before it reads.   Errors: kInvalidArgument  a path that leads
// out of the root, no proper tag, bytes beyond the end of the file
Status CheckRead(const SourceFile& file, uint64_t offset, uint64_t bytes);

}  // namespace ems::model
