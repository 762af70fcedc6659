#pragma once
// What a controller remembers, in its data_dir, of the store in etcd: whose it is, and how many
// changes it had. So an etcd that has lost its rows, that an older snapshot was put back to, or
// that is another cluster's is refused by name: on an empty store controllers would begin a new
// cluster, which no server of the old one may join.
//
// Files: ETCD_STORE, "cluster <16 digits>"; ETCD_CHANGES and ETCD_MODEL_CHANGES (row_ledger.h).
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/cluster_id.h"
#include "common/status.h"
#include "mp_controller/rows/row_ledger.h"

namespace ems::controller {

// Threading: one thread at a time: the election's while this controller follows, those of the
// tenure while it leads, each set of rows by the loop that writes it.
class StoreMemory final {
 public:
  enum class Rows { kCluster, kModels };

  // Makes the folder when it is missing. Errors: kFailedPrecondition  the folder has the store of a
  // controller without etcd    kUnavailable    kDataLoss  ETCD_STORE cannot be read
  static Result<std::unique_ptr<StoreMemory>> Open(const std::string& data_dir);
  // Whether a controller with etcd has used the folder.
  static bool IsIn(const std::string& data_dir);

  // Of a store that was read. Errors: kDataLoss  it had more changes
  Status CheckChanges(Rows rows, uint64_t changes);
  // Remembers the cluster. Errors: kFailedPrecondition  it was another    kUnavailable
  Status CheckCluster(ClusterId cluster);
  // So many changes have happened. Fewer than before change nothing.
  void Note(Rows rows, uint64_t changes);

 private:
  explicit StoreMemory(std::string folder) : folder_(std::move(folder)) {}
  ChangeNote& NoteOf(Rows rows) { return rows == Rows::kCluster ? changes_ : model_changes_; }

  const std::string folder_;
  ClusterId cluster_;
  ChangeNote changes_;
  ChangeNote model_changes_;
};

}  // namespace ems::controller
