#pragma once
// What became of a prompt, as its caller hears it.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "pdc/prefill/prefill_peer.h"
#include "tests/support/eventually.h"

namespace ems::testing {

// The events of one task; they may come after this has gone. Threading: thread-safe.
class PrefillLog final {
 public:
  pdc::PrefillEvents events() {
    return {.on_done =
                [shared = shared_](Result<pdc::PrefillOutcome> outcome) {
                  auto state = shared->Lock();
                  EXPECT_TRUE(state->done.empty());
                  state->done.push_back(std::move(outcome));
                },
            .on_sent =
                [shared = shared_](Status status) {
                  auto state = shared->Lock();
                  EXPECT_FALSE(state->done.empty());
                  EXPECT_TRUE(state->sent.empty());
                  state->sent.push_back(std::move(status));
                }};
  }
  Result<pdc::PrefillOutcome> WaitDone() {
    if (Eventually([this] { return !done().empty(); })) return done()[0];
    return Error(StatusCode::kInternal, "no event");
  }
  Status WaitSent() {
    if (Eventually([this] { return !sent().empty(); })) return sent()[0];
    return Error(StatusCode::kInternal, "no event");
  }
  std::vector<Result<pdc::PrefillOutcome>> done() {
    auto state = shared_->Lock();
    return state->done;
  }
  std::vector<Status> sent() {
    auto state = shared_->Lock();
    return state->sent;
  }

 private:
  struct State {
    std::vector<Result<pdc::PrefillOutcome>> done;
    std::vector<Status> sent;
  };
  const std::shared_ptr<Guarded<State>> shared_ = std::make_shared<Guarded<State>>();
};

}  // namespace ems::testing
