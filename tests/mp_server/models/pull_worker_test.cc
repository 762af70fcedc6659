// What must hold: what the table gives out is done and handed back, whether it works or fails; a
// file is added up as soon as its blocks are here.
#include "mp_server/models/pull_worker.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cluster/slot_table.h"
#include "common/sha256.h"
#include "proto/model.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

constexpr uint64_t kBlockBytes = 100'000;

class PullWorkerTest : public SmallTierTest {
 protected:
  PullWorkerTest() : SmallTierTest("worker"), root_(folder_ + ".models") {
    std::filesystem::create_directories(root_);
    std::ofstream(root_ + "/w") << std::string(kBlockBytes, 'a') << std::string(kBlockBytes, 'b');
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(1));
    std::vector<NodeInfo> nodes(1);
    nodes[0].id = NodeId(1);
    const auto view = *DhtView::Make(ViewVersion(1, 1), nodes, slots, false);
    ownership_.SetSelf(NodeId(1));
    ownership_.SetActive(1000);  // nobody else has the slots
    ownership_.RenewLease(Clock::System().Now() + std::chrono::seconds(100));
    store_->SetOwnedSlots({view->version(), ownership_.Install(*view)});
    views_.Install(view);
  }
  ~PullWorkerTest() override {
    table_.Stop();
    threads_.clear();
    std::filesystem::remove_all(root_);
  }
  // A version of a file of two blocks, below `folder`, that is to be brought in.
  void Begin(uint32_t id, const std::string& folder, const std::string& sum = {}) {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->source.url = "file://" + folder;
    model::SourceFile file;
    const auto source = table_.sources.Open(manifest->source, 0);
    if (source.ok()) {
      const auto files = (*source)->List(Deadline::After(std::chrono::seconds(5)));
      if (files.ok() && !files->empty()) file = files->front();
    }
    manifest->files = {{"w", 2 * kBlockBytes, file.tag, sum}};
    manifest->blocks = {{0, 0, kBlockBytes, {}}, {0, kBlockBytes, kBlockBytes, {std::byte{1}}}};
    auto pull = std::make_unique<ModelPull>(id, manifest);
    v1::ModelStatus status;
    status.mutable_job()->set_number(1);
    status.mutable_job()->set_state(v1::PULL_RUNNING);
    (void)pull->Follow(status);
    (void)pull->SetOwned(ViewVersion(1, 1), kNs, std::bitset<kSlotCount>().set());
    {
      auto locked = table_.state.Lock();
      locked->pulls[id] = std::move(pull);
    }
    table_.Wake();
  }
  void StartThreads(int count) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back("pull", [this] { PullWorker(&table_, &blocks_).Run(); });
  }
  template <typename Is>
  bool EventuallyIs(uint32_t id, Is is) {
    return testing::Eventually([&] {
      bool done = false;
      table_.With(id, [&](ModelPull& pull) { done = is(pull); });
      return done;
    });
  }

  const std::string root_;
  Ownership ownership_{&Clock::System()};
  ViewCache views_;
  MetricsRegistry registry_;
  PullTable table_{{.controller = "127.0.0.1:1",
                    .boot_id = 7,
                    .store = store_.get(),
                    .ownership = &ownership_,
                    .views = &views_,
                    .metrics = &registry_,
                    .pulls_max = 2,
                    .sources = {.connections_max = 2, .credentials_file = {}, .file_root = root_}}};
  BlockPuller blocks_{store_.get(), &ownership_, &table_.stop, 2};
  std::vector<Thread> threads_;
};

TEST_F(PullWorkerTest, BringsAllBlocksIn) {
  StartThreads(3);
  Begin(1, root_);
  EXPECT_TRUE(EventuallyIs(1, [](const ModelPull& pull) { return pull.finished(); }));
  const std::string key = model::BlockKey(Sha256().Digest(AsBytes(std::string(kBlockBytes, 'b'))));
  EXPECT_TRUE(dram_->Get(kNs, key, false));
}

TEST_F(PullWorkerTest, WhatCannotBeReadFailsTheJobAndNoOther) {
  StartThreads(1);
  Begin(1, root_ + "/absent");
  EXPECT_TRUE(EventuallyIs(1, [](const ModelPull& pull) { return !pull.error().ok(); }));
  Begin(2, root_);
  EXPECT_TRUE(EventuallyIs(2, [](const ModelPull& pull) { return pull.finished(); }));
}

TEST_F(PullWorkerTest, AddsAFileUpAsSoonAsItsBlocksAreHere) {
  StartThreads(2);
  Begin(1, root_, "md5:0123456789abcdef0123456789abcdef");
  EXPECT_TRUE(EventuallyIs(1, [](ModelPull& pull) {
    v1::ReportPullRequest report;
    pull.FillReport(&report);
    return report.checked_bytes() == 2 * kBlockBytes;
  })) << "although nobody hears of the sum";
}

}  // namespace
}  // namespace ems::server
