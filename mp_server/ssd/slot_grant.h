#pragma once
// The slots that a view grants this server, and since which epoch no other server can have written
// to each; decides which stored objects are still valid under the view.
//
// The rule: nothing is kept that another server may have replaced or removed meanwhile. A miss is
// always legal, an old value never.
#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace ems::ssd {

// The grant that was installed before. A value.
struct GrantRecord {
  ViewVersion view;      // none: nothing is known
  uint64_t history = 0;  // which the view's epochs belong to, where the view showed this lineage
  uint64_t lineage = 0;  // of the storage; 0: written by a version that had none

  // "epoch history lineage" for the index. Errors: kDataLoss  not such a text
  std::string ToText() const;
  static Result<GrantRecord> FromText(const std::string& text);
  friend bool operator==(const GrantRecord&, const GrantRecord&) = default;
};

// A value; 130 KiB where the history is known.
struct SlotGrant {
  ViewVersion view;
  std::bitset<kSlotCount> owned;
  uint64_t history = 0;           // as DhtView's; 0: not known
  bool shown = true;              // the view shows this server with its lineage
  std::vector<uint64_t> since{};  // of each slot, where the history is known: an epoch

  // Whether what was stored of `slot` when `before` was installed is all there is to know of it.
  // Without a history on either side only the same view, or the next, says so.
  bool Keeps(const GrantRecord& before, uint16_t slot) const;
  // Whether nobody can have had `slot` between the server that `before` gave it to and the owner
  // that this view knows: what that server had then is what the slot had when this owner got it.
  bool Follows(const GrantRecord& before, uint16_t slot) const {
    return history != 0 && history == before.history && since[slot] == before.view.epoch() + 1;
  }
  // Of all slots, those owned alone.
  std::bitset<kSlotCount> Kept(const GrantRecord& before) const;
  // What to remember of it.
  GrantRecord Record(uint64_t lineage) const { return {view, shown ? history : 0, lineage}; }
};

}  // namespace ems::ssd
