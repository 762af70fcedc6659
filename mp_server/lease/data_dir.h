#pragma once
// The server's folder on disk: one process at a time, the cluster that it belongs to, the highest
// view it has ever installed, and the lineage of what it stores.
//
// Invariant: what says that an earlier process is dead, or that what is stored has missed nothing,
// holds for one folder in one place. A copy has the same files, but not the place: its lineage is
// over when Open returns, and its folder id is another one.
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "common/ids.h"
#include "common/status.h"
#include "fabric/net/socket.h"
#include "mp_server/lease/kept_numbers.h"

namespace ems::server {

// Which machine this is, the same when it boots again: of its installation, and of its hardware if
// legible. Clones of a machine may agree in it, and do not in fabric::HostId.
std::string MachineId();

// Holds the folder's lock for as long as it lives. Threading: one thread.
class DataDir final : public KeptNumbers {
 public:
  // Makes the folder if needed and locks it. Of a folder that has been copied, or moved to another
  // disk or machine, the lineage ends, durably, with a WARN.
  // Errors: kFailedPrecondition  another process has it    kUnavailable  cannot be made or written,
  // naming the path
  static Result<DataDir> Open(const std::string& path, const std::string& machine = MachineId());

  // (0, 0) for a new folder. A damaged file counts as none, with a WARN: the view comes from the
  // controller anyway.
  ViewIdentity highest_view() const override { return highest_view_; }
  // Without a lineage nothing of an earlier life is told from a new one's: its slots count as new.
  bool knows_views() const override { return knows_views_ || lineage_ == 0; }
  // Durable when it returns. Errors: kUnavailable
  Status SetHighestView(const ViewIdentity& view);

  ClusterId cluster() const override { return cluster_; }
  // Before the first view of that cluster is installed; the folder belongs to it from then on.
  // Durable when it returns. Errors: kUnavailable
  Status SetCluster(ClusterId cluster);

  uint64_t lineage() const override { return lineage_; }
  // Of this folder in this place, also when the machine has booted again. Whoever has it under the
  // same boot of the kernel has the lock that the others of this number had. 0: not known
  uint64_t folder_id() const { return folder_id_; }
  // A life without that tier, or with another one, begins: before it serves anything. Durable when
  // they return; the old lineage is over in any case but an error. Errors: kUnavailable
  Status BeginLineage();
  Status EndLineage();
  // Of a life without that tier, whose memory the next process may be handed. Kept by nobody but
  // who hands it over, with the views that go with it.
  void UseLineageOfMemory(uint64_t lineage) {
    lineage_ = lineage;
    knows_views_ = true;
  }

  // The last act of a process that has handed its memory over, under this number: durable when it
  // returns. Errors: kUnavailable
  Status SetHandOver(uint64_t number);
  // The number, and no later call, nor a process that starts later, gets it again. 0: none, or it
  // could not be taken.
  uint64_t TakeHandOver();

 private:
  DataDir(std::string path, fabric::Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  // The file `name`: `numbers`, each with its checksum behind it. Errors: kUnavailable
  Status WriteRecord(std::string_view name, std::initializer_list<uint64_t> numbers) const;
  // The number `at` of them. nullopt: there is none, or it is damaged, with a WARN.
  std::optional<uint64_t> ReadRecord(std::string_view name, size_t at = 0) const;
  Status SyncFolder() const;
  // Of the lock file, which is never made again, on that machine.
  Result<uint64_t> PlaceOn(const std::string& machine) const;
  // Ends the lineage if the folder was not in `place` before, and notes the place.
  Status SettlePlace(uint64_t place);
  // A random number that is kept, mixed with `place`; 0 if it cannot be kept.
  uint64_t MakeFolderId(uint64_t place) const;

  std::string path_;
  fabric::Fd lock_;
  ViewIdentity highest_view_;
  bool knows_views_ = true;
  ClusterId cluster_;
  uint64_t lineage_ = 0;
  uint64_t folder_id_ = 0;
};

}  // namespace ems::server
