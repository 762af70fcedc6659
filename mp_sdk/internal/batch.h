#pragma once
// A call on its way: its items, which of them are still open, and what came of the others.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "mp_sdk/options.h"
#include "proto/data_plane.h"

namespace ems::internal {

struct BatchItem {
  std::string_view key;
  SlotId slot;
  ConstBuffers value;           // Put
  MutableBuffers into;          // Get, GetRange
  std::string* grow = nullptr;  // Get: allocate here instead of `into`
  uint64_t offset = 0;          // GetRange
  uint64_t whole_bytes = 0;     // GetRange: what the whole value must be long; 0: anything
  // Put: where the value lies in the client's StagingMemory, if all of it does. Reset when the
  // server did not take it from there.
  std::optional<uint64_t> staged_offset;
  uint64_t staged_progress = wire::kAllThere;  // as StagedValue::progress_at
  bool open = true;                            // no result yet
  bool retried = false;                        // has gone out on a connection that broke
  uint32_t copy = 0;     // who is asked: the owner; n: the nth holder of copies of the slot
  bool damaged = false;  // came damaged once, or was sent so: it is not asked a third time
  // Get, GetRange of a hot key: which holder of its copies is asked in this round; kNoNode: the
  // owner is. Whether one was asked in vain: nobody but the owner is then.
  NodeId hot_at = kNoNode;
  bool hot_tried = false;
  uint8_t hot_hint = 0;  // what the owner said of copies: wire::CopyHint; 0: nothing
  Status status;
  uint64_t value_bytes = 0;    // Get, Exists
  Tier tier = Tier::kUnknown;  // Get, GetRange, Exists of a Batch that asks_tier
  uint64_t checksum = 0;       // Get: of the value
};

// Two frames for one item and its memory, of which one is to answer: the first whose answer has a
// value. What comes to the other one is dropped. Threading: one thread.
struct ReadRace {
  const void* winner = nullptr;
  // Whether `frame` is the one; it is from now on where none was.
  bool Claim(const void* frame) {
    if (winner == nullptr) winner = frame;
    return winner == frame;
  }
};

// What logs of servers name the request by that ended last, which is the slowest one as a rule.
struct LastRequest {
  NodeId node;
  uint32_t id = 0;
};

// Items of one op, in one namespace, under one deadline. Shape: `items` is [item_count]; results
// stand in the items. Threading: one thread.
struct Batch {
  wire::Op op = wire::Op::kGet;  // the single form; frames of several items use the Multi form
  uint16_t flags = 0;
  NamespaceRef ns;
  Deadline deadline;
  std::vector<BatchItem> items;
  // Called once, when the first requests have been sent: while servers begin, values are still
  // being copied to where the requests say. May be empty.
  std::function<void()> meanwhile{};
  bool asks_tier = false;  // only Multi answers say it, so single items take that form, too
  // Of an immutable namespace: a key stands for one value for ever.
  bool immutable = false;
  LastRequest last{};  // of the last round
  // How many holders of copies of a slot may be asked where its owner cannot be reached. Set once
  // one could not.
  uint32_t copies = 0;
  ReadRace* race = nullptr;  // with another batch's frame; null: there is none

  // Whether it may be carried out once more when it is not known whether it was: what changes
  // nothing, and a Put that stores the only value that there can be. An overwrite would bring an
  // old value back, a Remove would take a newer one, a plain Put would undo a Remove.
  bool MayRepeat() const {
    if (op == wire::Op::kRemove) return false;
    return op != wire::Op::kPut || (immutable && (flags & wire::kFlagOverwrite) == 0);
  }

  // Whether a copy would do.
  bool MayAskCopies() const {
    return immutable &&
           (op == wire::Op::kGet || op == wire::Op::kGetRange || op == wire::Op::kExists);
  }

  void Finish(BatchItem* item, Status status) const {
    item->open = false;
    item->status = std::move(status);
  }
};

}  // namespace ems::internal
