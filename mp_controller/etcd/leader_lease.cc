#include "mp_controller/etcd/leader_lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cluster/control_rules.h"
#include "common/bytes.h"
#include "common/logging.h"
#include "common/parse_number.h"
#include "common/random_id.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;

constexpr int kSilentLeasesMax = 3;
constexpr uint64_t kLeaseMsMost = 3'600'000;

// What the row says: "<tenure, 16 digits> <lease in ms> <host:port>".
struct Holder {
  Duration lease{};
  std::string address;
};

std::string ValueOf(Duration lease, std::string_view address) {
  return fmt::format("{:016x} {} {}", RandomId(), std::chrono::ceil<milliseconds>(lease).count(),
                     address);
}

Result<Holder> ParseHolder(const std::string& value) {
  const size_t first = value.find(' ');
  const size_t second = first == std::string::npos ? first : value.find(' ', first + 1);
  if (second != std::string::npos) {
    const auto ms = ParseNumber<uint64_t>(value.substr(first + 1, second - first - 1));
    if (ms.has_value() && *ms <= kLeaseMsMost)
      return Holder{.lease = milliseconds(*ms), .address = value.substr(second + 1)};
  }
  return Error(StatusCode::kDataLoss, "the leader's row in etcd is \"{}\": not of a controller",
               Printable(value));
}

// Of a holder that a challenger has not heard of: clocks differ by less than a fiftieth.
Duration Over(Duration lease) { return lease + lease / 50; }

}  // namespace

LeaderLease::LeaderLease(EtcdClient* etcd, const Clock* clock, LeaderLeaseOptions options)
    : etcd_(etcd), clock_(clock), options_(std::move(options)), key_(options_.prefix + "/leader") {
  OnAnswer();
}

void LeaderLease::OnAnswer() {
  answered_ns_.store(clock_->Now().time_since_epoch().count(), std::memory_order_release);
}

Status LeaderLease::Healthy() const {
  const Duration silent =
      clock_->Now().time_since_epoch() - Duration(answered_ns_.load(std::memory_order_acquire));
  if (silent <= kSilentLeasesMax * options_.lease) return OkStatus();
  return Error(StatusCode::kUnavailable, "etcd has not answered for {} ms",
               std::chrono::duration_cast<milliseconds>(silent).count());
}

Duration LeaderLease::Left() const {
  const int64_t until = until_ns_.load(std::memory_order_acquire);
  return until == 0 ? Duration::zero() : Duration(until) - clock_->Now().time_since_epoch();
}

int64_t LeaderLease::UntilNs(TimePoint asked) const {
  return (asked + UsableLease(options_.lease)).time_since_epoch().count();
}

void LeaderLease::Lose(std::string_view why) {
  if (until_ns_.exchange(0, std::memory_order_acq_rel) != 0)
    EMS_LOG(kWarn, "mp_controller", "leads no more: {}", why);
}

void LeaderLease::Name(std::string_view address) {
  auto leader = leader_.Lock();
  leader->assign(address);
}

std::string LeaderLease::leader() {
  auto leader = leader_.Lock();
  return *leader;
}

Result<bool> LeaderLease::TryTake() {
  const Deadline deadline = Deadline::After(options_.timeout);
  EMS_ASSIGN_OR_RETURN(const EtcdPage page, etcd_->Range(key_, "", 1, 0, deadline));
  OnAnswer();
  const TimePoint now = clock_->Now();
  int64_t mod_revision = 0;
  if (!page.rows.empty()) {
    const EtcdRow& row = page.rows.front();
    mod_revision = row.mod_revision;
    EMS_ASSIGN_OR_RETURN(const Holder holder, ParseHolder(row.value));
    Name(holder.address);
    if (mod_revision != seen_.mod_revision) seen_ = {mod_revision, now};
    if (now - seen_.at < Over(holder.lease)) return false;
  }
  value_ = ValueOf(options_.lease, options_.address);
  const TimePoint asked = clock_->Now();
  EMS_ASSIGN_OR_RETURN(const bool taken,
                       etcd_->Commit({.when = {{.key = key_, .mod_revision = mod_revision}},
                                      .put = {{key_, value_}}},
                                     Deadline::After(options_.timeout)));
  if (!taken) return false;
  until_ns_.store(UntilNs(asked), std::memory_order_release);
  Name(options_.address);
  return true;
}

Status LeaderLease::Renew() {
  int64_t until = until_ns_.load(std::memory_order_acquire);
  const TimePoint asked = clock_->Now();
  const Duration left = Duration(until) - asked.time_since_epoch();
  if (left <= Duration::zero()) {
    Lose("its lease has ended");
    return OkStatus();
  }
  EMS_ASSIGN_OR_RETURN(const bool renewed,
                       etcd_->Commit({.when = {guard()}, .put = {{key_, value_}}},
                                     Deadline::After(std::min(left, options_.timeout))));
  OnAnswer();
  if (!renewed) {
    Lose("another controller has the lease");
    return OkStatus();
  }
  // Who has lost it meanwhile has lost it.
  until_ns_.compare_exchange_strong(until, UntilNs(asked), std::memory_order_acq_rel);
  return OkStatus();
}

void LeaderLease::Release() {
  until_ns_.store(0, std::memory_order_release);
  Name("");
  seen_ = {};
  if (value_.empty()) return;
  const auto released =
      etcd_->Commit({.when = {guard()}, .drop = {key_}}, Deadline::After(options_.timeout));
  value_.clear();
  if (!released.ok()) {
    EMS_LOG(kInfo, "mp_controller", "the lease is not let go, and ends by itself: {}",
            ToString(released.status()));
  }
}

}  // namespace ems::controller
