// What must hold: readers of the table find exactly what is linked, through growth, and are told
// when a miss proves nothing.
#include "mp_server/index/shared_index.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <string>

#include "tests/mp_server/shm/shared_reader.h"

namespace ems::server {
namespace {

constexpr NamespaceRef kNs{NamespaceId(4), 2};

class SharedIndexTest : public ::testing::Test {
 protected:
  SharedIndexTest() {
    auto made = SharedIndex::Create(kNs, 99);
    EXPECT_TRUE(made.ok()) << made.status();
    index_ = *std::move(made);
    auto control = index_->OpenControl();
    EXPECT_TRUE(control.ok()) << control.status();
    control_ = std::make_unique<Mapping>(control->fd, control->bytes);
  }
  const shm::ControlPage& control() const { return *control_->as<const shm::ControlPage>(); }
  ObjectEntry* Make(int i) {
    ObjectEntry* entry = &entries_.emplace_back();
    entry->hash = KeyHash(std::to_string(i));
    entry->generation = static_cast<uint64_t>(i) + 1;
    entry->location = shm::Location(3, static_cast<uint64_t>(i) * 64);
    return entry;
  }
  // What ObjectIndex does under each shard's lock.
  void MoveAll() {
    for (uint32_t shard = 0; shard < shm::kIndexShards; ++shard) {
      index_->StartShard(shard);
      for (const ObjectEntry* entry : linked_) {
        if (shm::ShardOf(entry->hash) == shard) index_->Insert(*entry);
      }
      index_->FinishShard(shard);
    }
    index_->DropOldTables();
  }
  void Link(ObjectEntry* entry) {
    linked_.insert(entry);
    index_->Insert(*entry);
  }
  std::optional<SharedEntry> Find(const ObjectEntry& entry) {
    const uint64_t word = control().shards[shm::ShardOf(entry.hash)].load();
    auto table = index_->OpenTable(shm::TableOf(word));
    EXPECT_TRUE(table.ok()) << table.status();
    const Mapping mapped(table->fd, table->bytes);
    return LookUp(mapped, entry.hash);
  }

  std::unique_ptr<SharedIndex> index_;
  std::unique_ptr<Mapping> control_;
  std::deque<ObjectEntry> entries_;
  std::set<ObjectEntry*> linked_;
};

TEST_F(SharedIndexTest, TheControlPageSaysWhoseItIs) {
  EXPECT_EQ(control().magic, shm::kControlMagic);
  EXPECT_EQ(control().namespace_id, 4u);
  EXPECT_EQ(control().namespace_generation, 2u);
  EXPECT_EQ(control().boot_id, 99u);
  EXPECT_EQ(control().readable_until_ns.load(), 0) << "nothing may be believed yet";
  index_->SetCurrent(ViewVersion(2, 5), TimePoint(Duration(77)));
  EXPECT_EQ(control().view.load(), ViewVersion(2, 5).packed());
  EXPECT_EQ(control().readable_until_ns.load(), 77);
  EXPECT_EQ(control().closed.load(), 0u);
  index_->SetClosed();
  EXPECT_EQ(control().closed.load(), 1u);
}

TEST_F(SharedIndexTest, WithoutATableNothingIsPromised) {
  EXPECT_TRUE(index_->NeedsTable(0));
  Link(Make(1));
  for (const auto& word : control().shards) EXPECT_EQ(shm::TableOf(word.load()), 0u);
  EXPECT_EQ(index_->OpenTable(1).status().code(), StatusCode::kNotFound);
}

TEST_F(SharedIndexTest, WhatIsLinkedIsFoundAndWhatIsRemovedIsNot) {
  Link(Make(0));  // before there is a table
  ASSERT_TRUE(index_->AddTable(1).ok());
  MoveAll();
  for (int i = 1; i < 1000; ++i) Link(Make(i));
  for (const ObjectEntry& entry : entries_) {
    const auto found = Find(entry);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->generation_tag, shm::GenerationTag(entry.generation, entry.hash));
    EXPECT_EQ(found->location, entry.location);
    index_->Remove(entry);
    EXPECT_FALSE(Find(entry).has_value());
  }
  EXPECT_FALSE(index_->NeedsTable(1000));
}

TEST_F(SharedIndexTest, ACrowdedTableIsFollowedByALargerOneThatHasEverything) {
  ASSERT_TRUE(index_->AddTable(1).ok());
  MoveAll();
  const uint64_t first_bytes = index_->table_bytes();
  int i = 0;
  while (!index_->NeedsTable(linked_.size())) Link(Make(i++));
  EXPECT_EQ(index_->left_out(), 0u) << "at " << i << " objects";
  EXPECT_GT(i * 100, static_cast<int>(first_bytes / 16) * 35);
  ASSERT_TRUE(index_->AddTable(linked_.size()).ok());
  EXPECT_TRUE(index_->HasTable(1) && index_->HasTable(2));
  MoveAll();
  EXPECT_FALSE(index_->HasTable(1));
  EXPECT_GE(index_->table_bytes(), 2 * first_bytes);
  EXPECT_FALSE(index_->NeedsTable(linked_.size()));
  for (int sample = 0; sample < i; sample += 1000) {
    EXPECT_TRUE(Find(entries_[static_cast<size_t>(sample)]).has_value()) << sample;
  }
}

TEST_F(SharedIndexTest, AnEntryWithoutAPlaceMakesMissesInconclusiveUntilTheNextTable) {
  ASSERT_TRUE(index_->AddTable(1).ok());
  MoveAll();
  // Nine objects of one hash: eight places.
  const Hash128 hash = KeyHash("same");
  for (int i = 0; i < 9; ++i) {
    ObjectEntry* entry = Make(i);
    entry->hash = hash;
    EXPECT_FALSE(shm::IsIncomplete(control().shards[shm::ShardOf(hash)].load())) << i;
    Link(entry);
  }
  EXPECT_EQ(index_->left_out(), 1u);
  EXPECT_TRUE(shm::IsIncomplete(control().shards[shm::ShardOf(hash)].load()));
  EXPECT_FALSE(index_->NeedsTable(9)) << "chosen keys must not make the table grow";
  linked_.erase(&entries_.front());
  index_->Remove(entries_.front());
  index_->Remove(entries_.back());  // the one left out: nothing happens
  linked_.erase(&entries_.back());
  ASSERT_TRUE(index_->AddTable(9).ok());
  MoveAll();
  EXPECT_FALSE(shm::IsIncomplete(control().shards[shm::ShardOf(hash)].load()));
}

TEST_F(SharedIndexTest, MissesProveNothingWhileAnotherServerMayHaveIt) {
  ASSERT_EQ(index_->AddTable(100), OkStatus());
  index_->SetMissesProve(0, false);  // before there is a table
  MoveAll();
  EXPECT_TRUE(shm::IsIncomplete(control().shards[0].load()));
  EXPECT_FALSE(shm::IsIncomplete(control().shards[1].load()));
  index_->SetMissesProve(1, false);
  index_->SetMissesProve(0, true);
  EXPECT_FALSE(shm::IsIncomplete(control().shards[0].load()));
  EXPECT_TRUE(shm::IsIncomplete(control().shards[1].load()));
}

}  // namespace
}  // namespace ems::server
