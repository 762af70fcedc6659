#pragma once
// Blocks of models that this server has brought in and whose slots it has lost: nobody is given
// them, but they stay in memory for a while. A server whose lease has ended for a moment is given
// the same slots again, and then they need not be read from their source again.
//
// Invariant: what is kept is in no index, so it is what a key led to once, and whoever takes it
// compares it with the key, which is the digest of its bytes. Bound: what was in the lost slots,
// for kKeepFor, or until a block that is brought in finds no room for a second.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "mp_server/store/object_store.h"

namespace ems::server {

using BlockName = std::pair<NamespaceRef, std::string>;  // and its key

// Threading: thread-safe.
class OrphanedBlocks final {
 public:
  static constexpr Duration kKeepFor = std::chrono::seconds(20);

  explicit OrphanedBlocks(const Clock* clock = &Clock::System()) : clock_(clock) {}

  void Keep(NamespaceRef ns, ObjectPin pin);
  // Those of them that are in `store`.
  void Keep(ObjectStore* store, const std::vector<BlockName>& names);
  // It is not kept any more. Empty: it was not.
  ObjectPin Take(NamespaceRef ns, const std::string& key);
  // What has been kept for kKeepFor goes.
  void DropOld();
  // All of it goes: its memory is needed. False: there was nothing.
  bool Clear();

 private:
  struct Kept {
    ObjectPin pin;
    TimePoint until;
  };
  const Clock* const clock_;
  Guarded<std::map<BlockName, Kept>> orphans_;
};

}  // namespace ems::server
