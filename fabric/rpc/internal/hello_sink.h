#pragma once
// Where the answer to a greeting goes.
#include "common/status.h"
#include "fabric/rpc/answer_sink.h"

namespace ems::fabric::internal {

class HelloSink final : public AnswerSink {
 public:
  explicit HelloSink(wire::HelloBody* hello) : hello_(hello) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes table) override {
    if (table.size() != sizeof(*hello_)) {
      return Error(StatusCode::kDataLoss, "greeting of {} bytes", table.size());
    }
    *hello_ = wire::ReadRaw<wire::HelloBody>(table);
    return OkStatus();
  }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}

 private:
  wire::HelloBody* hello_;
};

}  // namespace ems::fabric::internal
