#pragma once
// The answer to a Multi request without values: one result an item.
#include <cstring>
#include <vector>

#include "fabric/rpc/answer_sink.h"
#include "proto/data_plane.h"

namespace ems::server {

class ResultsSink final : public fabric::AnswerSink {
 public:
  explicit ResultsSink(std::vector<wire::ItemResult>* results) : results_(*results) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes table) override {
    if (table.size() % sizeof(wire::ItemResult) != 0)
      return Error(StatusCode::kDataLoss, "results of {} bytes", table.size());
    results_.resize(table.size() / sizeof(wire::ItemResult));
    std::memcpy(results_.data(), table.data(), table.size());
    return OkStatus();
  }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}

 private:
  std::vector<wire::ItemResult>& results_;
};

}  // namespace ems::server
