#pragma once
// Which keys are hot, on which servers each has a copy and until when, and which copy is to be sent
// next. No clock, no network: a function of the counts and of what became of the copies.
//
// A key is hot when its readers together ask for it often enough, or draw enough bytes; what its
// copies answer is reckoned at as much as its owner answers. It stays hot until it has been below
// half of that for kCoolFor. A copy ends by itself `keep_for` after it was sent, so the copies of a
// key that is not hot any more go because nobody sends them again: at half their time those of hot
// keys are. Bound: kKeys keys; a hotter one takes the place of the coldest.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/hot_holders.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/ids.h"
#include "mp_server/hot/copy_hints.h"
#include "mp_server/hot/read_sketch.h"

namespace ems::server {

// Threading: one thread.
class HotSet final {
 public:
  static constexpr size_t kKeys = 64;
  static constexpr Duration kCoolFor = std::chrono::seconds(10);
  // Before a copy ends it is not told of any more: what was told a reader is true that long.
  static constexpr Duration kMargin = std::chrono::seconds(2);
  // A server that did not take a copy is left alone so long.
  static constexpr Duration kPause = std::chrono::seconds(5);

  struct Options {
    double reads_per_s = 500;  // of one key make it hot; 0: they do not
    double bytes_per_s = 0;    // likewise
    size_t copies = HotHolders::kMost;
    Duration keep_for = std::chrono::seconds(20);
  };
  struct Key {
    NamespaceRef ns;
    SlotId slot;
    std::string key;
    Hash128 hash;
  };
  // A copy that is to be sent.
  struct Wanted {
    Key key;
    NodeId node;
  };

  explicit HotSet(const Options& options) : options_(options) {}

  // What was read in `period`, by the owner's sketch. Cost: O(counts × keys).
  void Count(std::span<const ReadCount> counts, Duration period, TimePoint now);
  // By this view copies lie, and who owns what: keys of slots that are not `self`'s are forgotten.
  // A server drops its copies when it installs a view, so all are to be sent again by a new one.
  void Follow(const DhtView& view, NodeId self);
  // The copy that is worth most, of those that are missing or half over; none: there is nothing to
  // send now.
  std::optional<Wanted> Next(TimePoint now) const;
  // What became of it. `kept`: the server has it, for keep_for since `sent`.
  void OnSent(const Wanted& wanted, TimePoint sent, bool kept);
  // Who may have a copy of it.
  std::vector<NodeId> HoldersOf(const Key& key);
  // The object cannot be copied: it is not here any more, or too large. It is forgotten.
  void Forget(const Key& key);

  // What answers are to say of hot keys from now on.
  std::vector<CopyHints::Hint> Hints(TimePoint now) const;
  size_t size() const { return hot_.size(); }
  // Copies that are there.
  size_t CountCopies(TimePoint now) const;

 private:
  struct Copy {
    NodeId node = kNoNode;
    TimePoint until{};     // when it ends; in the past: there is none
    TimePoint again_at{};  // when it may be sent
  };
  struct Hot {
    Key key;
    double heat = 0;  // what it is read, as a multiple of what makes it hot
    TimePoint hot_until{};
    std::array<Copy, HotHolders::kMost> copies{};
  };
  double HeatOf(double reads_per_s, double bytes_per_s) const;
  Hot* Find(const Key& key);
  // For a key of so much heat; null: all others are hotter.
  Hot* PlaceFor(double heat);
  static size_t CopiesOf(const Hot& hot, TimePoint now);

  const Options options_;
  ViewVersion followed_;
  std::vector<Hot> hot_;
};

}  // namespace ems::server
