#include "mp_server/lease/quorum_lease.h"

#include <algorithm>
#include <utility>

#include "common/logging.h"

namespace ems::server {
namespace {

// The lease has less left. Longer than the words of a thousand servers take to get around, and than
// what peers give: else a server would stop asking whenever they have prolonged its lease.
constexpr Duration kAskBefore = std::chrono::milliseconds(1500);
static_assert(kAskBefore > kQuorumValid);

}  // namespace

bool QuorumLease::IsDue(const DhtView* view, TimePoint now) {
  // A process that never had a lease of the controller does not know whether it may have one.
  if (view == nullptr || ownership_.lease_until() == TimePoint{}) return false;
  if (ownership_.controller_refuses()) return false;
  if (ownership_.lease_until() - now <= kAskBefore) return view->version() == ownership_.version();
  if (std::exchange(prolonged_, false)) EMS_LOG(kInfo, "mp_server", "the controller is back");
  return false;
}

PeerRound QuorumLease::Begin(std::shared_ptr<const DhtView> view, TimePoint now) {
  if (!IsDue(view.get(), now)) return {};
  words_.Follow(*view, ownership_.installed().fingerprint, ownership_.self());
  return {.view = std::move(view), .peers = words_.Choose(now), .next = words_.every()};
}

void QuorumLease::OnAnswers(const PeerRound& round, const PeerAnswers& answers, TimePoint asked) {
  for (const NodeId peer : round.peers) {
    const auto answer = answers.find(peer);
    if (answer == answers.end()) {
      words_.OnSilence(peer, asked);
    } else {
      words_.OnAnswer(peer, asked, answer->second.view, answer->second.heard);
    }
  }
  std::shared_ptr<const HeardWords> heard = words_.Heard(asked);
  {
    auto last = heard_.Lock();
    last->swap(heard);
  }
  const DhtView& view = *round.view;
  const NodeInfo* const shown = view.Find(ownership_.self());
  // The view is the word of the controller for the processes that it shows, and for no other.
  const bool is_shown = shown != nullptr && shown->boot_id == boot_id_;
  if (!is_shown || view.version() != ownership_.version() || ownership_.controller_refuses())
    return;
  // With this server itself, whose own word is of now, that many are more than half.
  const size_t others = rules_.quorum_is_a_majority ? view.nodes().size() / 2 : 0;
  const std::optional<TimePoint> said = words_.SaidBy(others);
  const TimePoint until = said ? std::min(*said, asked) + kQuorumValid : TimePoint{};
  const bool agreed = until > asked;
  if (agreed && until <= ownership_.lease_until()) return;  // the one of the controller is longer
  if (agreed) ownership_.RenewLease(until);
  if (agreed == prolonged_) return;
  prolonged_ = agreed;
  EMS_LOG(kWarn, "mp_server", "{}",
          agreed ? "no controller: continuing with a majority of the servers"
                 : "no controller and no majority: no Put or Remove until one is back");
}

wire::WordTable QuorumLease::Tell(ViewVersion asked_for, TimePoint now) {
  std::shared_ptr<const HeardWords> heard;
  {
    auto last = heard_.Lock();
    heard = *last;
  }
  const bool same = heard != nullptr && heard->view == asked_for &&
                    ownership_.told_version() == asked_for && asked_for != ViewVersion();
  return same ? heard->Tell(now) : wire::WordTable();
}

}  // namespace ems::server
