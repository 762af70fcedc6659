#pragma once
// Copies of hot objects, from both sides: what this server sends and what others have sent here.
#include "cluster/view_cache.h"
#include "mp_server/hot/hot_copier.h"
#include "mp_server/hot/hot_guests.h"
#include "mp_server/hot/hot_keys.h"

namespace ems::config {
class HotConfig;
}

namespace ems::server {

// Threading: thread-safe.
class HotCopies final {
 public:
  // All must outlive it. Null: the configuration wants none.
  static std::unique_ptr<HotCopies> Make(const config::HotConfig& config, TieredStore* store,
                                         const Ownership* ownership, ViewCache* views,
                                         const HotMetrics& metrics);
  HotCopies(const HotCopier::Options& options, Duration keep_for);

  HotKeys* keys() { return &keys_; }
  HotGuests* guests() { return &guests_; }

 private:
  HotKeys keys_;
  HotGuests guests_;
  HotCopier copier_;  // last: its thread uses both
};

}  // namespace ems::server
