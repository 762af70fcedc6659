#pragma once
// The controller's list of versions of models, as one who follows it keeps it: taken over whole
// once, then by what changes.
//
// Invariant: after Apply has returned OK the list is the controller's: what came by changes adds up
// to the count and checksum of all of it. Bound: as many versions as the controller has.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/status.h"

namespace ems::v1 {
class ListModelsReply;
class ModelStatus;
}  // namespace ems::v1

namespace ems {

// Of what a list says of one version: id, pin and job. The checksum of a list is that of its rows,
// one xor the other: 0 of none.
uint64_t ModelRowHash(const v1::ModelStatus& status);

// Threading: one thread.
class ModelList final {
 public:
  ModelList();
  ~ModelList();
  ModelList(const ModelList&) = delete;
  ModelList& operator=(const ModelList&) = delete;

  // Which the controller is to be asked for what has changed since; 0: all of it.
  uint64_t number() const { return number_; }
  // Takes an answer over. `changed` and `removed` get the ids that it is about, in order.
  // Errors: kDataLoss  it is not the controller's list now, and has been forgotten: it is to be
  // asked for whole
  Status Apply(const v1::ListModelsReply& reply, std::vector<uint32_t>* changed,
               std::vector<uint32_t>* removed);
  // nullptr: there is none. Valid until the next Apply.
  const v1::ModelStatus* Find(uint32_t id) const;
  std::vector<uint32_t> ids() const;

 private:
  void Put(const v1::ModelStatus& status);
  bool Remove(uint32_t id);

  uint64_t number_ = 0;
  uint64_t checksum_ = 0;
  std::map<uint32_t, std::unique_ptr<v1::ModelStatus>> rows_;
};

}  // namespace ems
