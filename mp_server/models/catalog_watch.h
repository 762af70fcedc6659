#pragma once
// Follows the controller's list of models and the view: which versions this server works at, and
// which of their blocks are its own.
//
// What is to be done follows from the list and the view alone, so nothing is lost when this server,
// another one or the controller is restarted. The list comes whole once, then by change; digests
// that are known stay known over views. Bound: a version's manifest only while there is something
// to do for it.
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "cluster/model_list.h"
#include "common/clock.h"
#include "mp_server/models/digest_follower.h"
#include "mp_server/models/pull_reporter.h"
#include "mp_server/models/pull_table.h"

namespace ems::server {

// Threading: one thread ("ems-model-watch").
class CatalogWatch final {
 public:
  // All must outlive it.
  CatalogWatch(PullTable* table, DigestFollower* digests, PullReporter* reporter)
      : table_(*table), digests_(digests), reporter_(reporter) {}

  // Until the table is stopped.
  void Run();
  // One look at the controller's list, when it is another one or after `wait`. False: it did not
  // answer all of it, and is to be asked again.
  bool Look(Duration wait);
  // Which blocks are this server's, as soon as it has installed another view, or a namespace is
  // another one.
  void FollowView();

 private:
  Duration ListWait();
  bool Take(const v1::ModelStatus& status);
  bool Begin(const v1::ModelStatus& status);
  void Forget(const std::vector<uint32_t>& removed);
  std::vector<std::unique_ptr<ModelPull>> TakeUnwanted();
  void LearnOfGained(const std::bitset<kSlotCount>& owned, const ViewCache::Namespaces& namespaces,
                     ViewVersion installed);
  void End(const std::vector<std::unique_ptr<ModelPull>>& gone);

  PullTable& table_;
  DigestFollower* const digests_;
  PullReporter* const reporter_;
  ModelList list_;
  std::set<uint32_t> due_;  // versions that have changed, and could not be taken over yet
  bool reported_silence_ = false;
};

}  // namespace ems::server
