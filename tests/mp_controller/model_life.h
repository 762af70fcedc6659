#pragma once
// What the controller knows of models, without threads or sockets: a life of it on a folder, and a
// version to add.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mp_controller/model_state.h"
#include "mp_controller/rows/durable_rows.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {

inline constexpr Duration kUnusedMax = std::chrono::hours(24);

inline model::Manifest Sample(const std::string& version, model::FirstRead first_read = {}) {
  model::Manifest manifest;
  manifest.model = "base";
  manifest.version = version;
  manifest.name_space = "models";
  manifest.source.url = "http://h/p/";
  manifest.source.first_read = first_read;
  manifest.files = {{"w", 400, version}};
  for (uint32_t i = 0; i < 4; ++i) manifest.blocks.push_back({0, i * uint64_t{100}, 100, {}});
  return manifest;
}

inline model::BlockDigest Digest(uint8_t value) { return model::BlockDigest{std::byte{value}}; }

inline v1::ModelRef Ref(uint32_t id) {
  v1::ModelRef ref;
  ref.set_id(id);
  return ref;
}

inline v1::ModelRef Ref(const std::string& model, const std::string& version) {
  v1::ModelRef ref;
  ref.set_model(model);
  ref.set_version(version);
  return ref;
}

// One life of a controller on a folder, without threads or sockets.
struct Life {
  explicit Life(const std::string& folder, ManualClock* clock) {
    auto opened = DurableRows::Open(folder, "");
    EXPECT_TRUE(opened.ok()) << opened.status();
    rows = std::move(*opened);
    // The wall clock goes on with the other one, over restarts, too.
    const auto unix_ms = [clock] {
      return uint64_t{1'700'000'000'000} +
             static_cast<uint64_t>(clock->Now().time_since_epoch().count() / 1'000'000);
    };
    state = std::make_unique<ModelState>(ModelState::Parts{clock, rows.get(), &publisher, unix_ms},
                                         kUnusedMax);
    EXPECT_TRUE(state->Start().ok());
  }
  // Servers with the boot ids 1 to `servers`, in a view with this epoch.
  void View(uint64_t epoch, uint32_t servers) {
    std::vector<NodeInfo> nodes;
    SlotTable slots;
    for (uint32_t i = 1; i <= servers; ++i) {
      NodeInfo node;
      node.id = NodeId(i);
      node.name = std::to_string(i);
      node.boot_id = i;
      nodes.push_back(node);
      slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(i));
    }
    publisher.Publish(*DhtView::Make(ViewVersion(1, epoch), nodes, slots, false));
  }
  Result<v1::ModelStatus> Add(const model::Manifest& manifest, bool may_lower = false) {
    v1::AddModelRequest request;
    ToProto(manifest, request.mutable_manifest());
    request.set_may_lower_first_read(may_lower);
    v1::ModelStatus reply;
    const Status status = state->AddModel(request, &reply);
    if (!status.ok()) return status;
    return reply;
  }
  v1::ModelStatus Get(const v1::ModelRef& ref) {
    v1::ModelStatus reply;
    EXPECT_EQ(state->GetModel(ref, &reply), OkStatus());
    return reply;
  }
  v1::ModelStatus Prefetch(uint32_t id, uint32_t priority = 0, Duration timeout = Duration(0)) {
    v1::PrefetchRequest request;
    *request.mutable_ref() = Ref(id);
    request.set_priority(priority);
    request.set_timeout_ms(static_cast<uint64_t>(timeout.count() / 1'000'000));
    v1::ModelStatus reply;
    EXPECT_EQ(state->Prefetch(request, &reply), OkStatus());
    return reply;
  }
  // A report of job 1 of model 1.
  static v1::ReportPullRequest Report(uint64_t boot, uint64_t epoch, uint64_t blocks,
                                      bool finished) {
    v1::ReportPullRequest report;
    report.set_boot_id(boot);
    report.set_model_id(1);
    report.set_job(1);
    report.set_term(1);
    report.set_epoch(epoch);
    report.set_finished(finished);
    report.set_blocks_done(blocks);
    report.set_bytes_done(100 * blocks);
    report.set_source_bytes(100 * blocks);
    return report;
  }
  static v1::ReportPullRequest With(v1::ReportPullRequest report, uint32_t block,
                                    const model::BlockDigest& digest) {
    report.add_blocks(block);
    report.mutable_digests()->append(AsText(digest));
    return report;
  }
  Status Take(const v1::ReportPullRequest& report, bool* active = nullptr) {
    v1::ReportPullReply reply;
    const Status status = state->ReportPull(report, &reply);
    if (active != nullptr) *active = reply.active();
    return status;
  }
  v1::GetDigestsReply Digests(uint32_t id, uint32_t since, bool* news) {
    v1::GetDigestsRequest request;
    *request.mutable_ref() = Ref(id);
    request.set_since(since);
    v1::GetDigestsReply reply;
    EXPECT_EQ(state->GetDigests(request, &reply, news), OkStatus());
    return reply;
  }
  // From the first change on.
  v1::FollowUnverifiedReply Follow(uint32_t id) {
    v1::FollowUnverifiedRequest request;
    request.set_model_id(id);
    v1::FollowUnverifiedReply reply;
    bool news = false;
    EXPECT_EQ(state->FollowUnverified(request, &reply, &news), OkStatus());
    EXPECT_TRUE(news);
    return reply;
  }
  // What a server that has list `since` is told.
  v1::ListModelsReply Changes(uint64_t since) {
    v1::ListModelsRequest request;
    request.set_since(since);
    request.set_by_change(true);
    v1::ListModelsReply reply;
    bool news = true;
    EXPECT_EQ(state->ListModels(request, &reply, &news), OkStatus());
    return reply;
  }
  v1::ModelStatus Use(uint32_t id) {
    v1::ModelStatus reply;
    EXPECT_EQ(state->UseModel(Ref(id), &reply), OkStatus());
    return reply;
  }
  uint64_t Number() {
    v1::ListModelsReply reply;
    bool news = false;
    EXPECT_EQ(state->ListModels({}, &reply, &news), OkStatus());
    return reply.number();
  }

  ViewPublisher publisher{16};
  std::unique_ptr<DurableRows> rows;
  std::unique_ptr<ModelState> state;
};

class ModelLifeTest : public ::testing::Test {
 protected:
  const TempDir dir;
  ManualClock clock;
};

}  // namespace ems::controller
