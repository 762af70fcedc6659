#pragma once
// A controller in this process, and the parts of a server's model caching that talk to it, without
// their threads. The server is alone in its view.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/sha256.h"
#include "mp_server/models/catalog_watch.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"

namespace ems::server {

class ModelRigTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBlocks = 4;
  static constexpr NamespaceRef kModels{NamespaceId(1), 3};

  ModelRigTest() {
    ownership_.SetSelf(NodeId(1));
    ownership_.SetActive(1000);  // nobody else has the slots
    Own(1);
  }
  static std::unique_ptr<controller::Controller> Started(const std::string& folder, int port = 0) {
    auto controller =
        std::make_unique<controller::Controller>(controller::FastOptions(folder, port));
    EXPECT_EQ(controller->Start(), OkStatus());
    return controller;
  }
  // The address of the controller leads to another cluster's from now on, as when a name changes.
  void LeadElsewhere() {
    const int port = controller_->port();
    controller_.reset();
    controller_ = Started(other_dir_.path(), port);
    v1::ListModelsReply list;
    EXPECT_TRUE(testing::Eventually([&] {
      return table_.models.List(0, Duration(0), &list, controller::Soon()).code() !=
             StatusCode::kUnavailable;
    }));
  }
  // From the next view on all slots are `owner`'s.
  void Own(uint32_t owner) {
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(owner));
    std::vector<NodeInfo> nodes(2);
    nodes[0].id = NodeId(1);
    nodes[1].id = NodeId(2);
    const auto view = *DhtView::Make(ViewVersion(1, ++epoch_), nodes, slots, false);
    (void)ownership_.Install(*view);
    views_.Install(view);
  }
  void MakeNamespace() {
    auto table = std::make_shared<NamespaceTable>();
    table->version = 1;
    NamespaceInfo info;
    info.ref = kModels;
    info.name = "models";
    table->by_id[kModels.id] = info;
    views_.Install(std::move(table));
  }
  static std::string Content() { return std::string(100 * kBlocks, 'x'); }
  // One file of kBlocks blocks; its id.
  uint32_t Add(const std::string& version, bool with_sum = false) {
    model::Manifest manifest;
    manifest.model = "base";
    manifest.version = version;
    manifest.name_space = "models";
    manifest.source.url = "http://127.0.0.1:1/p/";
    manifest.files = {{"w", 100 * kBlocks, "t"}};
    if (with_sum) manifest.files[0].sum = "md5:" + ToHex(*Md5(AsBytes(Content())));
    for (uint32_t i = 0; i < kBlocks; ++i)
      manifest.blocks.push_back({0, i * uint64_t{100}, 100, {static_cast<std::byte>(i)}});
    v1::ModelManifest proto;
    ToProto(manifest, &proto);
    v1::ModelStatus status;
    EXPECT_EQ(models_.Add(proto, &status, controller::Soon()), OkStatus());
    return status.ref().id();
  }
  static v1::ModelRef Ref(uint32_t id) {
    v1::ModelRef ref;
    ref.set_id(id);
    return ref;
  }
  v1::ModelStatus Prefetch(uint32_t id) {
    v1::ModelStatus status;
    EXPECT_EQ(models_.Prefetch(Ref(id), 0, &status, controller::Soon()), OkStatus());
    return status;
  }
  v1::ModelStatus Cancel(uint32_t id) {
    v1::ModelStatus status;
    EXPECT_EQ(models_.CancelPrefetch(Ref(id), &status, controller::Soon()), OkStatus());
    return status;
  }
  v1::ModelStatus Get(uint32_t id) {
    v1::ModelStatus status;
    EXPECT_EQ(models_.Get(Ref(id), &status, controller::Soon()), OkStatus());
    return status;
  }
  static model::BlockDigest Digest(uint32_t block) {
    return model::BlockDigest{static_cast<std::byte>(block + 1)};
  }
  // Another server has read this block.
  Status Tell(uint32_t id, uint32_t block) {
    v1::ReportPullRequest report;
    report.set_boot_id(99);
    report.set_model_id(id);
    report.add_blocks(block);
    report.set_digests(std::string(AsText(Digest(block))));
    v1::ReportPullReply reply;
    return models_.ReportPull(report, &reply, controller::Soon());
  }
  // Works at it from now on, which Look does for what is wanted.
  void Begin(uint32_t id, bool with_sum = false) {
    Prefetch(id);
    ASSERT_TRUE(watch_.Look(Duration(0)));
    MakeNamespace();
    watch_.FollowView();
    ASSERT_TRUE(table_.With(id, [&](ModelPull& p) { EXPECT_EQ(p.unverified(), with_sum); }));
  }
  // The next task of a version, which has one.
  ModelPull::Task Next(uint32_t id) {
    std::optional<ModelPull::Task> task;
    table_.With(id, [&](ModelPull& pull) { task = pull.Next(); });
    EXPECT_TRUE(task);
    return task.value_or(ModelPull::Task());
  }
  void Done(const ModelPull::Task& task) {
    ModelPull::Outcome outcome;
    outcome.digest = Digest(task.block);
    outcome.source_bytes = 100;
    table_.With(task.model_id, [&](ModelPull& p) { (void)p.Done(task, std::move(outcome)); });
  }

  const controller::TempDir dir_;
  const controller::TempDir other_dir_;
  std::unique_ptr<controller::Controller> controller_ = Started(dir_.path());
  uint64_t epoch_ = 0;
  Ownership ownership_{&Clock::System()};
  ViewCache views_;
  MetricsRegistry registry_;
  PullTable table_{{.controller = controller_->address(),
                    .boot_id = 7,
                    .store = nullptr,
                    .ownership = &ownership_,
                    .views = &views_,
                    .metrics = &registry_,
                    .pulls_max = 8,
                    .sources = {}}};
  ModelsClient models_{controller_->address()};  // the test's
  DigestFollower digests_{&table_};
  PullReporter reporter_{&table_, &digests_};
  CatalogWatch watch_{&table_, &digests_, &reporter_};
};

}  // namespace ems::server
