#pragma once
// One server's knowledge of which others have installed its view, and since when; and the choice of
// whom it asks next. Pure: quorum_lease.h decides from it, peer_quorum.h asks.
//
// A word is what one process says of itself: "I have installed this view, and the controller does
// not refuse me". It comes first-hand, in the header of that process's answer, or relayed, in the
// table that another server sends along with its own. Each round a server asks kAsked others (all
// of them in a view of kAskAllMax servers or fewer), so a word spreads in about log N rounds, for
// O(log N) messages a server.
//
// Invariant: a word is never kept as younger than it is. So a lease that counts it for kQuorumValid
// rests on what a majority really said within that time, as if all of them had been asked:
//   - first-hand, a word counts from when the question was sent, before it was said;
//   - relayed, it counts from its age before the question was sent; the time that question and
//     answer take makes it older;
//   - nothing is learnt from questions: who gets one does not know how long it was under way;
//   - clocks are compared nowhere: the age of a word is a sum of stretches of time, each measured
//   by
//     the clock of who held it, none of which runs slower than the controller's by more than a
//     fiftieth. So neither does the sum, over however many servers it came, and kQuorumOver covers
//     it. Ages are rounded up.
// mp_controller/activation.h counts on that: when a view is closed, each majority of its servers
// has one that had installed a newer view by then, or knew that it is refused, or is gone. What
// that one said of the view it said before, so nobody counts it for longer than kQuorumOver from
// then on, however it came to him. A word is therefore never withdrawn: its age ends it.
//
// Bound: one entry for each other server of the view; words of other processes are passed over.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "cluster/control_rules.h"
#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "proto/word_table.h"

namespace ems::server {

// What one server has heard, for others. Threading: immutable.
struct HeardWords {
  struct Word {
    NodeId id;
    uint64_t boot_id = 0;
    TimePoint said;  // or a little later
  };
  ViewVersion view;
  uint64_t fingerprint = 0;
  std::vector<Word> words;

  // Those that still count at `now`, with their ages. Cost: O(words)
  wire::WordTable Tell(TimePoint now) const;
};

// Threading: one thread ("ems-ctl").
class PeerWords final {
 public:
  static constexpr size_t kAskAllMax = 8;  // servers of a view
  static constexpr size_t kAsked = 4;      // a round, in a larger view
  static constexpr Duration kGossipEvery = std::chrono::milliseconds(50);
  static constexpr Duration kAskAllEvery = std::chrono::milliseconds(250);

  explicit PeerWords(uint64_t seed, const ControlRules& rules = {}) : rules_(rules), dice_(seed) {}

  // From now on words are about `view`, whose DhtView::Fingerprint is `fingerprint`; those about
  // another one are forgotten. `self` is not asked. Cost: O(servers) for another view
  void Follow(const DhtView& view, uint64_t fingerprint, NodeId self);
  // How long to wait between two rounds.
  Duration every() const { return asks_all() ? kAskAllEvery : kGossipEvery; }

  // Whom to ask in this round. One of them is whoever is next in a fixed order, so that each server
  // is asked some day; the others are such as are known to live. Whoever did not answer is left
  // alone for a while, longer each time, 10 s at most. Cost: O(servers)
  std::vector<NodeId> Choose(TimePoint now);
  // `peer` was asked at `asked`, and has answered: its own view, or none, and what it has heard.
  // Bytes of another process: whatever they say, words do not get younger than the question. Cost:
  // O(words)
  void OnAnswer(NodeId peer, TimePoint asked, ViewVersion said, const wire::WordTable& relayed);
  void OnSilence(NodeId peer, TimePoint asked);

  // A time after which `count` other servers said that they have the view, the latest that is
  // known; nullopt: so many did not, yet. Cost: O(servers)
  std::optional<TimePoint> SaidBy(size_t count) const;
  std::shared_ptr<const HeardWords> Heard(TimePoint now) const;

 private:
  struct Peer {
    NodeId id;
    uint64_t boot_id = 0;
    TimePoint said{};  // {}: nothing yet
    int silences = 0;  // in a row
    TimePoint not_before{};
  };
  using Chosen = std::vector<size_t>;  // indexes into peers_

  bool asks_all() const { return peers_.size() < kAskAllMax; }
  size_t Seek(size_t hint, NodeId id) const;
  bool AddNext(TimePoint now, Chosen* chosen);
  void AddHeard(TimePoint now, Chosen* chosen);

  const ControlRules rules_;
  std::mt19937_64 dice_;
  ViewVersion view_;
  uint64_t fingerprint_ = 0;
  NodeId self_;
  std::vector<Peer> peers_;  // by id
  Chosen order_;             // all of peers_, in any order
  size_t next_ = 0;          // in order_
};

}  // namespace ems::server
