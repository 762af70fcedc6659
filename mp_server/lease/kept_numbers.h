#pragma once
// The numbers that a server keeps on its disk from one process to the next.
#include <cstdint>

#include "common/cluster_id.h"
#include "common/ids.h"

namespace ems::server {

// Which view. The number alone does not say it: two controllers of one store, of which one is an
// older copy, give it to two views.
struct ViewIdentity {
  ViewVersion version;
  uint64_t fingerprint = 0;  // DhtView::Fingerprint; 0: not known
  friend bool operator==(const ViewIdentity&, const ViewIdentity&) = default;
};

class KeptNumbers {
 public:
  virtual ~KeptNumbers() = default;
  // The highest view that was ever installed here; (0, 0) if none was.
  virtual ViewIdentity highest_view() const = 0;
  // False: an earlier life has left its storage, and its number is lost: it may have installed, and
  // taken changes by, any view up to the next one that is installed.
  virtual bool knows_views() const { return true; }
  // A random number that has been the same for as long as each life of this server has had the same
  // SSD tier: what is stored there under it has missed nothing of what this server did. 0: none
  virtual uint64_t lineage() const = 0;
  // The cluster whose views were installed here; kNoCluster: of none, or of one that had no id.
  virtual ClusterId cluster() const = 0;
};

}  // namespace ems::server
