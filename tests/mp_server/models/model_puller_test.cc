// What must hold: a version that is asked for is brought in, added up and known to the controller
// without anybody's doing; what is in slots that are lost is kept for a while.
#include "mp_server/models/model_puller.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cluster/models_client.h"
#include "cluster/slot_table.h"
#include "common/sha256.h"
#include "model_files/source/weight_source.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

constexpr uint64_t kBlockBytes = 100'000;

TEST(ModelPullerTest, AVersionThatIsAskedForIsBroughtInAddedUpAndKept) {
  class Storage : public SmallTierTest {
   public:
    Storage() : SmallTierTest("puller") {}
    void TestBody() override {}
    using SmallTierTest::dram_;
    using SmallTierTest::kNs;
    using SmallTierTest::store_;
  } storage;
  const controller::TempDir dir, weights;
  const std::string content = std::string(kBlockBytes, 'a') + std::string(kBlockBytes, 'b');
  std::ofstream(weights.path() + "/w") << content;
  controller::Controller controller(controller::FastOptions(dir.path()));
  ASSERT_EQ(controller.Start(), OkStatus());
  ModelsClient models(controller.address());

  Ownership ownership(&Clock::System());
  ViewCache views;
  SlotTable slots;
  for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(1));
  std::vector<NodeInfo> nodes(1);
  nodes[0].id = NodeId(1);
  const auto view = *DhtView::Make(ViewVersion(1, 1), nodes, slots, false);
  ownership.SetSelf(NodeId(1));
  ownership.SetActive(1000);  // nobody else has the slots
  ownership.RenewLease(Clock::System().Now() + std::chrono::seconds(100));
  storage.store_->SetOwnedSlots({view->version(), ownership.Install(*view)});
  views.Install(view);
  auto table = std::make_shared<NamespaceTable>();
  table->version = 1;
  table->by_id[Storage::kNs.id].ref = Storage::kNs;
  table->by_id[Storage::kNs.id].name = "models";
  views.Install(std::move(table));

  MetricsRegistry registry;
  ModelPuller puller(
      {.controller = controller.address(),
       .boot_id = 7,
       .store = storage.store_.get(),
       .ownership = &ownership,
       .views = &views,
       .metrics = &registry,
       .pulls_max = 2,
       .sources = {.connections_max = 2, .credentials_file = {}, .file_root = weights.path()}});
  model::Manifest manifest;
  manifest.model = "base";
  manifest.version = "v1";
  manifest.name_space = "models";
  manifest.source.url = "file://" + weights.path();
  ModelSources sources({.connections_max = 1, .credentials_file = {}, .file_root = weights.path()});
  const auto files = (*sources.Open(manifest.source, 0))->List(controller::Soon());
  ASSERT_TRUE(files.ok()) << files.status();
  manifest.files = {
      {"w", 2 * kBlockBytes, files->at(0).tag, "md5:" + ToHex(*Md5(AsBytes(content)))}};
  manifest.blocks = {{0, 0, kBlockBytes, {}}, {0, kBlockBytes, kBlockBytes, {std::byte{1}}}};
  v1::ModelManifest proto;
  ToProto(manifest, &proto);
  v1::ModelStatus status;
  ASSERT_EQ(models.Add(proto, &status, controller::Soon()), OkStatus());
  const v1::ModelRef ref = status.ref();
  ASSERT_EQ(models.Prefetch(ref, 0, &status, controller::Soon()), OkStatus());
  EXPECT_TRUE(testing::Eventually([&] {
    return models.Get(ref, &status, controller::Soon()).ok() && status.blocks_known() == 2;
  })) << "the sum is right, and all of it is known";

  const std::string key = model::BlockKey(Sha256().Digest(AsBytes(std::string(kBlockBytes, 'b'))));
  ASSERT_TRUE(storage.dram_->Get(Storage::kNs, key, false));
  puller.KeepBlocks(std::bitset<kSlotCount>().set());
  storage.store_->SetOwnedSlots({ViewVersion(1, 2), {}});
  EXPECT_FALSE(storage.dram_->Get(Storage::kNs, key, false));
}

}  // namespace
}  // namespace ems::server
