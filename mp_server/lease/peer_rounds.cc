#include "mp_server/lease/peer_rounds.h"

#include "common/logging.h"

namespace ems::server {
namespace {

constexpr Duration kPatience = std::chrono::milliseconds(100);

}  // namespace

void PeerRounds::OnNewerView() {
  if (newer_.Note(Clock::System().Now())) poke_();
}

bool PeerRounds::FindNewerView() {
  const NewerView::Ask ask = newer_.Take(Clock::System().Now());
  const ViewCache::View view = lease_.views().view();
  if (ask == NewerView::Ask::kControllerAndPeers && view != nullptr) {
    const ViewCache::View found = view_.Find(*view, ownership_.self(), kPatience);
    if (found != nullptr && lease_.views().Install(found))
      EMS_LOG(kInfo, "mp_server", "view {}.{} came from another server, not from the controller",
              found->version().term(), found->version().epoch());
  }
  return ask != NewerView::Ask::kNobody;
}

Duration PeerRounds::AskForWords() {
  const TimePoint asked = Clock::System().Now();
  const PeerRound round = lease_.PeersToAsk(asked);
  if (round.view == nullptr) return kEvery;
  const PeerAnswers answers = words_.Ask(round, kPatience);
  lease_.OnPeers(round, answers, asked);
  for (const auto& [peer, answer] : answers)
    if (answer.view > round.view->version()) OnNewerView();
  return round.next;
}

}  // namespace ems::server
