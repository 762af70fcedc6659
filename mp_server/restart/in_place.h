#pragma once
// A restart in place, from both sides: what this process was handed, until it has been taken over,
// and where it will leave what it has.
//
// Bound: one record each way.
#include <functional>
#include <memory>
#include <string>

#include "mp_server/lease/data_dir.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/restart/fd_store.h"
#include "mp_server/restart/hand_over.h"
#include "mp_server/restart/take_over.h"

namespace ems::server {

// Threading: one thread at a time: main's until the server runs, "ems-ctl", and main's once that
// has ended.
class InPlace final {
 public:
  struct Options {
    std::unique_ptr<FdStore> fds;  // null: there is no store
    bool wanted = true;            // false: what is in the store is dropped
    std::string tier_folder;       // of the SSD tier; empty: there is none
    HugePages huge_pages = HugePages::kTry;
  };
  // Takes what the process before has handed over, from the store and from `dir`, so that nobody
  // else can. Whatever is wrong with it means a cold start, and is logged.
  InPlace(Options options, DataDir* dir);

  // The next process may be handed what this one has.
  bool on() const { return options_.fds != nullptr && options_.wanted; }
  // The memory that was handed over is the pool's, and what is made can be handed over.
  void Prepare(const fabric::NumaNodes& nodes, SegmentPool::Options* pool) const;
  fabric::Writers writers() const {
    return on() ? fabric::Writers::kSuccessor : fabric::Writers::kThisProcess;
  }

  // The lineage of this life is `lineage`, 0: that of its memory, which Lineage() then names. Of
  // another one nothing is taken.
  uint64_t Lineage(uint64_t lineage, SegmentPool* pool);
  // Until it has been taken over; null: there is nothing (any more).
  TakeOver* pending() const { return taken_.get(); }
  // As TakeOver::Adopt, once, with a line in the log.
  TakeOver::Taken Adopt(const NamespaceTable& table, ObjectStore* store, SegmentPool* pool);
  void Drop(SegmentPool* pool);
  double seconds() const { return seconds_; }  // that Adopt took

  // Hands over what `store` has, which was held by `granted`: see Seal. `node`: this server's id.
  // True: the next process finds it. The last act, but for the goodbye to the controller.
  bool HandOver(const ObjectStore& store, const ssd::GrantRecord& granted, NodeId node,
                uint64_t pool_boot_id);

 private:
  const Options options_;
  DataDir* const dir_;
  std::unique_ptr<TakeOver> taken_;
  double seconds_ = 0;
};

}  // namespace ems::server
