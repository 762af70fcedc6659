#pragma once
// The one door to etcd: rows and guarded transactions of its v3 API (proto/etcd.proto).
//
// Neither TLS nor authentication. Each call asks the member that answered last; when that one
// cannot be reached, or is no etcd, the next one. A call that was sent and got no answer is not
// sent again: a transaction may have happened then.
//
// Bound: answers of kMessageBytesMax.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::controller {

struct EtcdRow {
  std::string key;
  std::string value;
  int64_t mod_revision = 0;  // of the store when it was put last
};

struct EtcdPage {
  std::vector<EtcdRow> rows;  // in the order of keys
  bool more = false;
  int64_t revision = 0;  // of the whole store as it was read
};

// `put` and `drop` happen if all of `when` holds; otherwise nothing does.
struct EtcdTransaction {
  struct Condition {
    std::string key;
    std::optional<int64_t> mod_revision = {};  // 0: there is no such key
    std::optional<std::string> value = {};
  };
  std::vector<Condition> when = {};
  std::vector<std::pair<std::string, std::string>> put = {};         // key, value
  std::vector<std::string> drop = {};                                // keys
  std::vector<std::pair<std::string, std::string>> drop_range = {};  // [first, end)
};

// Errors of all calls: kUnavailable, kDeadlineExceeded  no answer, and for a transaction it is not
// known whether it has happened    kCancelled  after Close    kUnimplemented  this is no etcd
// kUnauthenticated  it wants a user    kInvalidArgument  an endpoint is wrong; it refuses
// kResourceExhausted  its disk quota is used up
// Threading: thread-safe.
class EtcdClient final {
 public:
  static constexpr int kMessageBytesMax = 256 << 20;

  // `endpoints`: host:port, separated by commas. Nothing is connected yet.
  explicit EtcdClient(const std::string& endpoints);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // That this is an etcd which can be used: 3.3 or later, 3.x.
  // Errors: also kFailedPrecondition  too old or too new
  Status Check(Deadline deadline);
  // Keys of [first, end) in order, as of `revision` (0: the newest, of a majority).
  Result<EtcdPage> Range(const std::string& first, const std::string& end, int64_t limit,
                         int64_t revision, Deadline deadline);
  // Whether it has happened. Bound: etcd takes 1.5 MiB and 128 changes of rows.
  Result<bool> Commit(const EtcdTransaction& transaction, Deadline deadline);
  // Ends the calls under way and all later ones.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The first key behind all that begin with `prefix`.
std::string KeyBehind(std::string prefix);

}  // namespace ems::controller
