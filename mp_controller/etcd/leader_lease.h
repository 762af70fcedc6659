#pragma once
// Which of several controllers leads: the one whose lease is the row `<prefix>/leader` in etcd.
//
// The leader writes the row again each third of the lease, and leads until the lease has ended
// since it asked for the last write that has happened, by its own clock. Others look at the row;
// one that has seen no write of it for a whole lease, by its own clock, takes it over, on condition
// that none has come meanwhile. So two never lead at the same time, whatever etcd or a process is
// paused for; and every write of the leader is on condition that the row is still its own
// (guard()), so that one which was on its way when it lost the lease does nothing.
//
// etcd's own leases are not used: a member that was deposed while it was paused may still prolong
// them (etcd before 3.5.8), where writes need a majority.
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "mp_controller/etcd/etcd_client.h"

namespace ems::controller {

struct LeaderLeaseOptions {
  std::string prefix;
  std::string address;  // of this controller, for clients
  Duration lease = std::chrono::seconds(5);
  Duration timeout = std::chrono::seconds(2);  // of a call
};

// Threading: one thread (the election's), but for those marked.
class LeaderLease final {
 public:
  // Both must outlive the object.
  LeaderLease(EtcdClient* etcd, const Clock* clock, LeaderLeaseOptions options);
  LeaderLease(const LeaderLease&) = delete;
  LeaderLease& operator=(const LeaderLease&) = delete;

  // Looks at the row, and takes it if its holder has let it go or has been silent for its lease.
  // True: this controller leads from now on. Cost: two calls at most. Errors: of EtcdClient
  Result<bool> TryTake();
  // Prolongs the lease; ends it when another controller has it. Errors: of EtcdClient: the lease
  // goes on until it ends
  Status Renew();
  // Lets the row go, so that another can lead at once. Whoever works by this lease must have
  // stopped. Cost: one call. Nothing happens without a lease.
  void Release();

  // Whether this controller leads, now. Thread-safe; no call.
  bool Holds() const { return Left() > Duration::zero(); }
  // How long it does so without another write. Thread-safe.
  Duration Left() const;
  // It leads no more: what is stored is not known, or another leads. Thread-safe.
  void Lose(std::string_view why);
  // What a write of the leader is on condition of. Does not change while it leads. Thread-safe
  // while it does.
  EtcdTransaction::Condition guard() const { return {.key = key_, .value = value_}; }
  // Errors: kUnavailable  etcd has answered nothing for three leases, or nobody has asked.
  // Thread-safe.
  Status Healthy() const;
  // Who leads, as far as is known: host:port, or empty. Thread-safe.
  std::string leader();
  const LeaderLeaseOptions& options() const { return options_; }

 private:
  struct Seen {
    int64_t mod_revision = -1;
    TimePoint at;  // it was seen for the first time
  };
  // Until when it leads by a write that was asked for then.
  int64_t UntilNs(TimePoint asked) const;
  void Name(std::string_view address);
  void OnAnswer();

  EtcdClient* const etcd_;
  const Clock* const clock_;
  const LeaderLeaseOptions options_;
  const std::string key_;
  std::string value_;  // of a tenure; says whose it is and how long the lease is
  Seen seen_;
  // Nanoseconds of the clock; 0: does not lead. Release by who changes it, acquire by readers.
  std::atomic<int64_t> until_ns_{0};
  std::atomic<int64_t> answered_ns_;  // likewise: the last answer of etcd
  Guarded<std::string> leader_;
};

}  // namespace ems::controller
