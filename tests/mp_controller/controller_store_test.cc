#include "mp_controller/controller_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"
#include "tests/support/small_disk.h"

namespace ems::controller {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ControllerStore> Open(const std::string& path) {
  auto store = ControllerStore::Open(path);
  EXPECT_TRUE(store.ok()) << store.status();
  return std::move(*store);
}

std::shared_ptr<const DhtView> View(uint64_t epoch) {
  NodeInfo node;
  node.id = NodeId(1);
  node.name = "a";
  SlotTable slots;
  slots.set_owner(SlotId(static_cast<uint16_t>(epoch)), NodeId(1));
  return *DhtView::Make(ViewVersion(1, epoch), {node}, slots, false);
}

NamespaceChange Change(uint32_t id, const std::string& name, bool deleted, uint64_t version) {
  NamespaceInfo info;
  info.ref = {NamespaceId(id), 1};
  info.name = name;
  return {.info = info, .deleted = deleted, .version = version, .next_id = id + 1};
}

// The `count` views before this one.
ViewWindow Before(uint64_t epoch, uint64_t count = kViewsKept - 1) {
  ViewWindow window;
  for (uint64_t i = epoch > count ? epoch - count : 1; i < epoch; ++i)
    window.open.emplace_back(1, i);
  return window;
}

TEST(ControllerStoreTest, FirstStartFindsNothing) {
  TempDir dir;
  const auto state = Open(dir.path())->Load();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->term, 0u);
  EXPECT_TRUE(state->views.empty());
}

TEST(ControllerStoreTest, EverythingWrittenIsThereAfterReopening) {
  TempDir dir;
  {
    auto store = Open(dir.path());
    ASSERT_TRUE(store->Load().ok());
    ASSERT_TRUE(store->PutCluster(ClusterId(0xfedcba9876543210)).ok());
    ASSERT_TRUE(store->PutTerm(1).ok());
    ASSERT_TRUE(store->PutTimes({.lease_ms = 120000, .heartbeat_ms = 3000}).ok());
    ASSERT_TRUE(store->PutNode({.id = NodeId(1), .name = "a"}, 2).ok());
    ASSERT_TRUE(store
                    ->PutNode({.id = NodeId(2),
                               .name = "b",
                               .stopped_boot_id = 9,
                               .left = true,
                               .times = {.joined_unix_ms = 1000, .left_unix_ms = 2000}},
                              3)
                    .ok());
    ASSERT_TRUE(store->DeleteNode("a").ok());
    ASSERT_TRUE(store->PutNamespace(Change(1, "x", false, 1)).ok());
    ASSERT_TRUE(store->PutNamespace(Change(2, "y", false, 2)).ok());
    ASSERT_TRUE(store->PutNamespace(Change(1, "x", true, 3)).ok());
    for (uint64_t epoch = 1; epoch <= 40; ++epoch)
      ASSERT_TRUE(store->PutView(View(epoch), Before(epoch)).ok());
  }
  const auto state = Open(dir.path())->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->cluster, ClusterId(0xfedcba9876543210));
  EXPECT_EQ(state->term, 1u);
  EXPECT_EQ(state->given, (GivenTimes{.lease_ms = 120000, .heartbeat_ms = 3000}));
  EXPECT_EQ(state->epoch, 40u);
  EXPECT_EQ(state->next_node_id, 3u);
  ASSERT_EQ(state->nodes.size(), 1u);
  EXPECT_EQ(state->nodes[0].name, "b");
  EXPECT_EQ(state->nodes[0].stopped_boot_id, 9u);
  EXPECT_TRUE(state->nodes[0].left);
  EXPECT_EQ(state->nodes[0].times, (NodeTimes{1000, 2000}));
  ASSERT_EQ(state->namespaces.size(), 1u);
  EXPECT_EQ(state->namespaces[0].name, "y");
  EXPECT_EQ(state->namespaces_version, 3u);
  ASSERT_EQ(state->views.size(), kViewsKept);
  EXPECT_EQ(state->views.back()->version(), ViewVersion(1, 40));
  EXPECT_EQ(state->views.back()->slots(), View(40)->slots());
}

TEST(ControllerStoreTest, ViewsThatDoNotCountAnyMoreGo) {
  TempDir dir;
  {
    auto store = Open(dir.path());
    ASSERT_TRUE(store->Load().ok());
    ASSERT_TRUE(store->PutTerm(1).ok());
    for (uint64_t epoch = 1; epoch <= 4; ++epoch)
      ASSERT_TRUE(store->PutView(View(epoch), Before(epoch)).ok());
    const ViewWindow window{.open = {{1, 2}, {1, 4}}, .active = {1, 4}};
    ASSERT_TRUE(store->PutView(View(5), window).ok());
  }
  const auto state = Open(dir.path())->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_EQ(state->views.size(), 3u);
  EXPECT_EQ(state->views[0]->version(), ViewVersion(1, 2));
  EXPECT_EQ(state->views[1]->version(), ViewVersion(1, 4));
  EXPECT_EQ(state->active, ViewVersion(1, 4));
}

// Without it the next start does not know who has slots still.
TEST(ControllerStoreTest, AnOpenViewIsNeverDropped) {
  TempDir dir;
  auto store = Open(dir.path());
  ASSERT_TRUE(store->Load().ok());
  for (uint64_t epoch = 1; epoch <= kViewsKept; ++epoch)
    ASSERT_TRUE(store->PutView(View(epoch), Before(epoch, kViewsKept)).ok());
  EXPECT_DEATH((void)store->PutView(View(kViewsKept + 1), Before(kViewsKept + 1, kViewsKept)),
               "16 open views");
}

TEST(ControllerStoreTest, SecondOneOnTheSameFolderIsToldSo) {
  TempDir dir;
  const auto first = Open(dir.path());
  const auto second = ControllerStore::Open(dir.path());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(second.status())), HasSubstr("another mp-controller uses"));
  EXPECT_TRUE(first->PutTerm(1).ok()) << "the first is undisturbed";
}

TEST(ControllerStoreTest, DamageIsRefusedWithFolderAndAdvice) {
  TempDir dir;
  {
    auto store = Open(dir.path());
    ASSERT_TRUE(store->PutTerm(1).ok());
  }
  { auto store = Open(dir.path()); }  // the log is in a table file now
  for (const auto& file : std::filesystem::directory_iterator(dir.path() + "/store")) {
    const std::string name = file.path().filename();
    if (name.starts_with("MANIFEST")) std::ofstream(file.path(), std::ios::trunc) << "garbage";
  }
  const auto damaged = ControllerStore::Open(dir.path());
  EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(damaged.status())), HasSubstr(dir.path()));
  EXPECT_THAT(std::string(Message(damaged.status())), HasSubstr("Move the folder away"));
}

TEST(ControllerStoreTest, VanishedDatabaseIsDamageNotAFirstStart) {
  TempDir dir;
  { auto store = Open(dir.path()); }
  std::filesystem::remove_all(dir.path() + "/store");
  EXPECT_EQ(ControllerStore::Open(dir.path()).status().code(), StatusCode::kDataLoss);
}

TEST(ControllerStoreTest, FolderThatIsAFileIsRefused) {
  TempDir dir;
  std::ofstream(dir.path() + "/file") << "x";
  EXPECT_EQ(ControllerStore::Open(dir.path() + "/file").status().code(), StatusCode::kUnavailable);
}

// A full disk refuses changes with a reason; the process lives, and writes again when there is
// room. The change that was refused has not happened: its number is another's by then.
TEST(ControllerStoreTest, AFullDiskRefusesChangesAndLosesNothing) {
  const ems::testing::SmallDisk disk(24 * kMiB);
  if (!disk.mounted()) GTEST_SKIP() << "a file system can be mounted by root alone";
  const std::string folder = disk.path() + "/store";
  uint32_t acknowledged = 0;
  {
    auto store = Open(folder);
    ASSERT_TRUE(store->Load().ok());
    Status refused;
    for (uint32_t id = 1; refused.ok() && id < 500'000; ++id) {
      if (id == 100) disk.Fill();
      refused = store->PutNode({.id = NodeId(id), .name = std::to_string(id)}, id + 1);
      if (refused.ok()) acknowledged = id;
    }
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_THAT(Message(refused), HasSubstr("cannot be written"));
    for (int again = 0; again < 100; ++again) EXPECT_FALSE(store->PutTerm(9).ok());
    disk.Free();
    const StoredNode other{.id = NodeId(acknowledged + 1), .name = "other"};
    Status healed;
    EXPECT_TRUE(ems::testing::Eventually(
        [&] {
          healed = store->PutNode(other, acknowledged + 2);
          return healed.ok();
        },
        std::chrono::seconds(30)))
        << "without a restart: " << healed;
  }
  const auto state = Open(folder)->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_GT(acknowledged, 1U);
  EXPECT_EQ(state->term, 0U);
  EXPECT_EQ(state->next_node_id, acknowledged + 2);
  std::set<std::string> names;
  for (const StoredNode& node : state->nodes) names.insert(node.name);
  EXPECT_EQ(names.size(), acknowledged + 1U);
  EXPECT_TRUE(names.contains("other"));
  EXPECT_FALSE(names.contains(std::to_string(acknowledged + 1)));
}

}  // namespace
}  // namespace ems::controller
