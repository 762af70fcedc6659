// What must hold: whichever bit of the controller's store flips while it is down, the next start
// finds exactly what was written, or refuses, names the folder and says what to do. A change that
// was acknowledged and is left out without a word would hand numbers out a second time.
//
// EMS_DAMAGE_FLIPS (20 by default) is how many bits flip in each kind of file, EMS_SEED which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mp_controller/controller_store.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/long_run.h"

namespace ems::controller {
namespace {

namespace fs = std::filesystem;
using testing::ChosenSeed;
using testing::NumberOfVariable;

constexpr int kLives = 3;

std::shared_ptr<const DhtView> View(uint64_t epoch) {
  NodeInfo node;
  node.id = NodeId(1);
  node.name = "a";
  SlotTable slots;
  slots.set_owner(SlotId(static_cast<uint16_t>(epoch)), NodeId(1));
  return *DhtView::Make(ViewVersion(1, epoch), {node}, slots, false);
}

// All that a start finds, in words.
std::string ToText(const StoredState& state) {
  std::string text = fmt::format(
      "cluster {} term {} epoch {} node {} namespace {} version {} lease {} heartbeat {} active "
      "{}\n",
      state.cluster.value(), state.term, state.epoch, state.next_node_id, state.next_namespace_id,
      state.namespaces_version, state.given.lease_ms, state.given.heartbeat_ms,
      state.active.packed());
  for (const StoredNode& node : state.nodes)
    text += fmt::format("node {} {} {} {}\n", node.id.value(), node.name, node.stopped_boot_id,
                        node.left);
  for (const NamespaceInfo& ns : state.namespaces)
    text += fmt::format("namespace {} {}\n", ns.ref.id.value(), ns.name);
  for (const auto& view : state.views)
    text += fmt::format("view {} {:x}\n", view->version().packed(), view->Fingerprint());
  return text;
}

// Numbers of RocksDB's files come and go.
std::string KindOf(const std::string& name) {
  if (name.ends_with(".log")) return "log";
  if (name.ends_with(".sst")) return "table";
  if (name.starts_with("MANIFEST")) return "MANIFEST";
  if (name.starts_with("OPTIONS")) return "OPTIONS";
  return name;
}

class StoreDamageTest : public ::testing::Test {
 protected:
  // Three lives: what they wrote, replaced and removed is in tables, and that of the last one in
  // the log.
  void MakeStore() {
    uint64_t epoch = 0;
    for (uint64_t life = 1; life <= kLives; ++life) {
      auto store = ControllerStore::Open(folder_);
      ASSERT_TRUE(store.ok() && (*store)->Load().ok());
      if (life == 1) {
        ASSERT_TRUE((*store)->PutCluster(ClusterId(77)).ok());
      }
      ASSERT_TRUE((*store)->PutTerm(life).ok());
      ASSERT_TRUE((*store)->PutTimes({.lease_ms = 1000 * life, .heartbeat_ms = 100 * life}).ok());
      const std::string name = "node-" + std::to_string(life);
      const auto id = static_cast<uint32_t>(life);
      ASSERT_TRUE((*store)->PutNode({.id = NodeId(id), .name = name}, id + 1).ok());
      ASSERT_TRUE(
          (*store)
              ->PutNode({.id = NodeId(id), .name = name, .stopped_boot_id = 9, .left = true},
                        id + 1)
              .ok());
      if (life > 1) {
        ASSERT_TRUE((*store)->DeleteNode("node-" + std::to_string(life - 1)).ok());
      }
      for (int i = 0; i < 4; ++i) {
        ViewWindow window;
        if (epoch > 0) window.open.emplace_back(1, epoch);
        ++epoch;
        ASSERT_TRUE((*store)->PutView(View(epoch), window).ok());
      }
      NamespaceInfo info;
      info.ref = {NamespaceId(id), 1};
      info.name = "ns-" + std::to_string(life);
      NamespaceChange change{
          .info = info, .deleted = false, .version = 2 * life, .next_id = id + 1};
      ASSERT_TRUE((*store)->PutNamespace(change).ok());
      if (life == 2) continue;
      change.deleted = true;
      ++change.version;
      ASSERT_TRUE((*store)->PutNamespace(change).ok());
    }
  }
  static Result<std::string> StateOf(const std::string& folder) {
    EMS_ASSIGN_OR_RETURN(auto store, ControllerStore::Open(folder));
    EMS_ASSIGN_OR_RETURN(const StoredState state, store->Load());
    return ToText(state);
  }
  std::string Copy() const {
    const std::string copy = dir_.path() + "/damaged";
    fs::remove_all(copy);
    fs::copy(folder_, copy, fs::copy_options::recursive);
    return copy;
  }

  const TempDir dir_;
  const std::string folder_ = dir_.path() + "/store";
};

TEST_F(StoreDamageTest, AFlippedBitIsRefusedOrChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(MakeStore());
  const Result<std::string> clean = StateOf(Copy());
  ASSERT_TRUE(clean.ok()) << clean.status();
  std::map<std::string, std::vector<fs::path>> kinds;
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.is_regular_file() && entry.file_size() > 0)
      kinds[KindOf(entry.path().filename().string())].push_back(
          fs::relative(entry.path(), folder_));
  }
  for (const char* kind : {"log", "table", "MANIFEST", "CURRENT", "EMS_CONTROLLER_STORE"})
    ASSERT_TRUE(kinds.contains(kind)) << kind;
  const uint64_t flips = NumberOfVariable("EMS_DAMAGE_FLIPS", 20);
  std::mt19937_64 random(ChosenSeed());
  for (const auto& [kind, files] : kinds) {
    uint64_t refused = 0;
    for (uint64_t i = 0; i < flips && !HasFailure(); ++i) {
      const std::string damaged = Copy();
      const fs::path file = fs::path(damaged) / files[random() % files.size()];
      const uint64_t at = random() % fs::file_size(file);
      const char bit = static_cast<char>(1 << random() % 8);
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(bytes.get());
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(static_cast<char>(byte ^ bit));
      bytes.close();
      SCOPED_TRACE(fmt::format("bit {} of byte {} of {}", int{bit}, at, file.string()));
      const Result<std::string> found = StateOf(damaged);
      if (found.ok()) {
        EXPECT_EQ(*found, *clean) << "nobody is told";
        continue;
      }
      ++refused;
      const StatusCode code = found.status().code();
      EXPECT_TRUE(code == StatusCode::kDataLoss || code == StatusCode::kFailedPrecondition)
          << found.status();
      EXPECT_THAT(std::string(Message(found.status())), ::testing::HasSubstr(damaged));
    }
    std::printf("%s: %llu flips, %llu refused\n", kind.c_str(),
                static_cast<unsigned long long>(flips), static_cast<unsigned long long>(refused));
  }
}

}  // namespace
}  // namespace ems::controller
