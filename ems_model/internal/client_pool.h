#pragma once
// The pool through a client, and what the controller knows of a version: a load's parts as they are
// in a process that has both.
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cluster/models_client.h"
#include "ems_model/block_pool.h"
#include "mp_sdk/client.h"

namespace ems::model::internal {

v1::ModelRef RefOf(uint32_t id);
// As LoadCatalog::Digests.   Errors: kDataLoss  an answer that makes no sense
Result<DigestNews> AskDigests(ModelsClient* models, uint32_t id, uint32_t since, Duration wait,
                              Deadline deadline);

// A client, or the reason why there is none, which all calls then say.
class ClientPool final : public BlockPool {
 public:
  explicit ClientPool(Result<std::shared_ptr<Client>> client) : client_(std::move(client)) {}
  std::vector<Result<uint64_t>> Read(std::span<const GetItem> items, Duration timeout) override;
  std::vector<Status> ReadRanges(std::span<const RangeItem> items, Duration timeout) override;
  Status Probe(std::span<const BlockRoute> routes, Duration timeout) override;
  uint64_t view() override;

 private:
  Status Outage() const;
  const Result<std::shared_ptr<Client>> client_;
};

// `models` must outlive it.
class ControllerCatalog final : public LoadCatalog {
 public:
  ControllerCatalog(ModelsClient* models, uint32_t id) : models_(models), id_(id) {}
  Result<DigestNews> Digests(uint32_t since, Duration wait, Deadline deadline) override {
    return AskDigests(models_, id_, since, wait, deadline);
  }
  Result<JobInfo> StartJob(uint32_t priority, Deadline deadline) override;

 private:
  ModelsClient* const models_;
  const uint32_t id_;
};

}  // namespace ems::model::internal
