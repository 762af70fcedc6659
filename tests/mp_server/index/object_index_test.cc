#include "mp_server/index/object_index.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "common/object_key.h"
#include "mp_server/index/lru_policy.h"

namespace ems::server {
namespace {

bool Yes(const void*, uint16_t) { return true; }
bool OnlyEvenSlots(const void*, uint16_t slot) { return slot % 2 == 0; }

class ObjectIndexTest : public ::testing::Test {
 protected:
  ObjectEntry* Make(const std::string& key, uint64_t checksum = 0, uint16_t slot = 0) {
    keys_.push_back(key);
    entries_.emplace_back();
    ObjectEntry* entry = &entries_.back();
    entry->key_data = reinterpret_cast<std::byte*>(keys_.back().data());
    entry->key_bytes = static_cast<uint16_t>(key.size());
    entry->hash = constant_hash_ ? Hash128{1, 1} : KeyHash(key);
    entry->value_bytes = 10;
    entry->checksum = checksum;
    entry->slot = slot;
    entry->generation = entries_.size();
    entry->holds.store(1);
    clock_.Advance(Duration(1));
    return entry;
  }
  ObjectIndex::LinkOutcome Link(ObjectEntry* entry, bool overwrite = false) {
    return index_.Link(entry, overwrite, false, &Yes, nullptr).outcome;
  }
  ObjectEntry* Find(const std::string& key, bool touch = false) {
    clock_.Advance(Duration(1));
    return index_.Find(constant_hash_ ? Hash128{1, 1} : KeyHash(key), key, touch, false).entry;
  }
  std::vector<ObjectIndex::Found> FindMany(const std::vector<std::string>& names, bool touch) {
    clock_.Advance(Duration(1));
    std::vector<Hash128> hashes;
    hashes.reserve(names.size());
    for (const std::string& name : names)
      hashes.push_back(constant_hash_ ? Hash128{1, 1} : KeyHash(name));
    const std::vector<std::string_view> keys(names.begin(), names.end());
    std::vector<ObjectIndex::Found> found(names.size());
    index_.FindMany(hashes, keys, touch, {}, found);
    return found;
  }
  ObjectEntry* Take(int size_class = ObjectIndex::kAnyClass) {
    int skips = 100;
    return index_.TakeColdest(size_class, &skips).entry;
  }

  bool constant_hash_ = false;
  ManualClock clock_;
  std::deque<std::string> keys_;
  std::deque<ObjectEntry> entries_;
  ObjectIndex index_{&clock_, [] { return std::make_unique<LruPolicy>(); }};
};

TEST_F(ObjectIndexTest, TheFullKeyDecidesWhenAllHashesAreEqual) {
  constant_hash_ = true;
  std::vector<ObjectEntry*> entries;
  for (int i = 0; i < 500; ++i) {
    entries.push_back(Make("key" + std::to_string(i)));
    ASSERT_EQ(Link(entries.back()), ObjectIndex::LinkOutcome::kInserted);
  }
  for (int i = 0; i < 500; ++i)
    EXPECT_EQ(Find("key" + std::to_string(i)), entries[static_cast<size_t>(i)]);
  EXPECT_EQ(Find("key500"), nullptr);
  EXPECT_EQ(index_.Unlink(Hash128{1, 1}, "key7"), entries[7]);
  EXPECT_EQ(Find("key7"), nullptr);
  EXPECT_EQ(Find("key8"), entries[8]);
}

TEST_F(ObjectIndexTest, ManyAreFoundAndTouchedAsEachByItself) {
  std::vector<ObjectEntry*> entries;
  for (int i = 0; i < 600; ++i) {
    entries.push_back(Make(std::to_string(i)));
    Link(entries.back());
  }
  std::vector<std::string> names;
  names.reserve(250);
  for (int i = 0; i < 250; ++i)
    names.push_back(i % 5 == 0 ? "absent" + std::to_string(i) : std::to_string(2 * i));
  const std::vector<ObjectIndex::Found> found = FindMany(names, true);
  std::set<ObjectEntry*> touched;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(found[i].entry, i % 5 == 0 ? nullptr : entries[2 * i]) << names[i];
    EXPECT_EQ(found[i].value_bytes, found[i].entry == nullptr ? 0 : 10);
    if (found[i].entry != nullptr) touched.insert(found[i].entry);
  }
  for (ObjectEntry* const entry : entries) {
    if (touched.contains(entry)) continue;
    ASSERT_EQ(Take(), entry);
  }
  for (size_t left = touched.size(); left > 0; --left) EXPECT_EQ(touched.erase(Take()), 1U);
}

TEST_F(ObjectIndexTest, OfManyTheFullKeysDecideWhenAllHashesAreEqual) {
  constant_hash_ = true;
  std::vector<ObjectEntry*> entries;
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) {
    names.push_back("key" + std::to_string(i));
    entries.push_back(Make(names.back()));
    Link(entries.back());
  }
  names.emplace_back("key40");
  entries.push_back(nullptr);
  const std::vector<ObjectIndex::Found> found = FindMany(names, false);
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(found[i].entry, entries[i]) << names[i];
  EXPECT_EQ(Take(), entries[0]) << "nothing was touched";
}

TEST_F(ObjectIndexTest, TablesGrowAndKeepEveryObject) {
  for (int i = 0; i < 20000; ++i)
    ASSERT_EQ(Link(Make(std::to_string(i))), ObjectIndex::LinkOutcome::kInserted);
  EXPECT_EQ(index_.totals().objects, 20000u);
  EXPECT_EQ(index_.totals().value_bytes, 200000u);
  for (int i = 0; i < 20000; ++i) ASSERT_NE(Find(std::to_string(i)), nullptr) << i;
}

TEST_F(ObjectIndexTest, LinkTellsSameContentFromOther) {
  ObjectEntry* first = Make("k", 1);
  ASSERT_EQ(Link(first), ObjectIndex::LinkOutcome::kInserted);
  EXPECT_EQ(Link(Make("k", 1)), ObjectIndex::LinkOutcome::kDuplicate);
  EXPECT_EQ(Link(Make("k", 2)), ObjectIndex::LinkOutcome::kExists);
  ObjectEntry* other = Make("k", 2);
  const auto linked = index_.Link(other, true, false, &Yes, nullptr);
  EXPECT_EQ(linked.outcome, ObjectIndex::LinkOutcome::kReplaced);
  EXPECT_EQ(linked.replaced, first);
  EXPECT_EQ(Find("k"), other);
}

// The order over all 16 shards is one order: the coldest goes first wherever it is.
TEST_F(ObjectIndexTest, ColdestGoFirstOverAllShards) {
  std::vector<ObjectEntry*> order;
  for (int i = 0; i < 1000; ++i) {
    order.push_back(Make(std::to_string(i)));
    Link(order.back());
  }
  for (int i = 0; i < 1000; i += 3) Find(std::to_string(i), true);
  std::vector<ObjectEntry*> expected;
  for (size_t i = 0; i < 1000; ++i)
    if (i % 3 != 0) expected.push_back(order[i]);
  for (size_t i = 0; i < 1000; i += 3) expected.push_back(order[i]);
  for (ObjectEntry* entry : expected) ASSERT_EQ(Take(), entry);
  EXPECT_EQ(Take(), nullptr);
}

TEST_F(ObjectIndexTest, HeldObjectsAreSkippedWithABound) {
  ObjectEntry* a = Make("a");
  ObjectEntry* b = Make("b");
  Link(a);
  Link(b);
  ASSERT_EQ(index_.Find(a->hash, "a", false, true).entry, a);
  EXPECT_EQ(index_.pinned_objects(), 1u);
  EXPECT_EQ(Take(), b);
  EXPECT_EQ(Take(), nullptr) << "a is held: the search ends";
  EXPECT_FALSE(index_.Unpin(a));
  EXPECT_EQ(index_.pinned_objects(), 0u);
  EXPECT_EQ(Take(), a);
}

TEST_F(ObjectIndexTest, TakeOfAClassLeavesAnotherClassAlone) {
  ObjectEntry* entry = Make("a");
  entry->size_class = 3;
  Link(entry);
  int skips = 10;
  EXPECT_EQ(index_.TakeColdest(4, &skips).outcome, ObjectIndex::TakeOutcome::kOtherClass);
  EXPECT_EQ(Take(3), entry);
}

TEST_F(ObjectIndexTest, AVictimThatHasChangedMeanwhileIsLeftAlone) {
  ObjectEntry* entry = Make("a");
  Link(entry);
  Victim old = MakeVictim(entry);
  --old.generation;
  EXPECT_EQ(index_.Unlink(old), nullptr);
  EXPECT_EQ(index_.Unlink(MakeVictim(entry)), entry);
  EXPECT_EQ(index_.Unlink(MakeVictim(entry)), nullptr) << "it is no longer linked";
}

TEST_F(ObjectIndexTest, WhatWaitsToBeWrittenIsNotEvictedButCanBeTakenOut) {
  ObjectEntry* entry = Make("a", 1);
  Link(entry);
  bool unwritten = false;
  entry->unwritten = 1;
  EXPECT_EQ(index_.Unlink(MakeVictim(entry), &unwritten), nullptr);
  EXPECT_TRUE(unwritten);
  EXPECT_EQ(index_.Unlink(MakeVictim(entry)), entry) << "damaged, say";
  ObjectEntry* next = Make("b", 1);
  Link(next);
  unwritten = false;
  EXPECT_EQ(index_.Unlink(MakeVictim(next), &unwritten), next);
  EXPECT_FALSE(unwritten);
  entry->unwritten = 0;
}

TEST_F(ObjectIndexTest, WhatIsSettlingIsNoVictimButCanBeReplacedAndRemoved) {
  ObjectEntry* entry = Make("a", 1);
  entry->settling = true;
  Link(entry);
  EXPECT_EQ(index_.Unlink(MakeVictim(entry)), nullptr);
  ObjectEntry* next = Make("a", 2);
  next->settling = true;
  EXPECT_EQ(Link(next, true), ObjectIndex::LinkOutcome::kReplaced);
  EXPECT_EQ(index_.Unlink(next->hash, "a"), next);
  ObjectEntry* last = Make("a", 3);
  Link(last);
  EXPECT_EQ(index_.Unlink(MakeVictim(last)), last);
}

TEST_F(ObjectIndexTest, SweepDropsWhatIsNotAdmittedAndNothingElse) {
  for (uint16_t i = 0; i < 5000; ++i) Link(Make(std::to_string(i), 0, i));
  ObjectIndex::SweepCursor cursor;
  std::vector<ObjectEntry*> dropped;
  while (index_.Sweep(&OnlyEvenSlots, nullptr, &cursor, &dropped)) {
  }
  EXPECT_EQ(dropped.size(), 2500u);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(Find(std::to_string(i)) != nullptr, i % 2 == 0) << i;
}

TEST_F(ObjectIndexTest, EachObjectThatStaysIsListedWhileTablesGrow) {
  for (int i = 0; i < 3000; ++i) (void)Link(Make("key" + std::to_string(i)));
  std::vector<Hash128> hashes;
  ObjectIndex::SweepCursor cursor;
  for (int i = 0; index_.SomeHashes(&cursor, &hashes); ++i)
    (void)Link(Make("new" + std::to_string(i)));
  const std::set<Hash128> listed(hashes.begin(), hashes.end());
  for (int i = 0; i < 3000; ++i)
    EXPECT_TRUE(listed.contains(KeyHash("key" + std::to_string(i)))) << i;
}

TEST_F(ObjectIndexTest, WhatIsLinkedAndUnlinkedIsToldInItsOrder) {
  kv_events::BlockEvents events(64);
  ObjectIndex index(
      &clock_, [] { return std::make_unique<LruPolicy>(); }, &events);
  const auto link = [&](const std::string& key, uint64_t checksum, bool overwrite) {
    return index.Link(Make(key, checksum), overwrite, false, &Yes, nullptr).outcome;
  };
  EXPECT_EQ(link("a", 1, false), ObjectIndex::LinkOutcome::kInserted);
  EXPECT_EQ(link("a", 1, false), ObjectIndex::LinkOutcome::kDuplicate);
  EXPECT_EQ(link("a", 2, false), ObjectIndex::LinkOutcome::kExists);
  EXPECT_EQ(link("a", 2, true), ObjectIndex::LinkOutcome::kReplaced);
  EXPECT_EQ(link("b", 1, false), ObjectIndex::LinkOutcome::kInserted);
  EXPECT_NE(index.Unlink(KeyHash("a"), "a"), nullptr);
  EXPECT_EQ(index.Unlink(KeyHash("a"), "a"), nullptr);
  int skips = 1;
  EXPECT_NE(index.TakeColdest(ObjectIndex::kAnyClass, &skips).entry, nullptr);
  std::vector<kv_events::BlockEvent> told;
  events.Drain(64, &told);
  std::vector<std::pair<Hash128, bool>> short_form;
  short_form.reserve(told.size());
  for (const auto& event : told) short_form.emplace_back(event.hash, event.stored);
  const Hash128 a = KeyHash("a"), b = KeyHash("b");
  const std::vector<std::pair<Hash128, bool>> expected = {{a, true}, {a, false}, {a, true},
                                                          {b, true}, {a, false}, {b, false}};
  EXPECT_EQ(short_form, expected);
}

TEST_F(ObjectIndexTest, AWalkOverKeysMeetsEachThatStaysHoweverTheTableGrows) {
  for (int i = 0; i < 300; ++i) Link(Make("stays" + std::to_string(i)));
  ObjectIndex::SweepCursor cursor;
  std::vector<ObjectIndex::Listed> keys;
  for (int i = 0; index_.SomeKeys("stays", 3, &cursor, &keys); ++i) {
    for (int noise = 0; noise < 20; ++noise) Link(Make(fmt::format("noise{}/{}", i, noise)));
  }
  std::set<std::string> seen;
  for (const ObjectIndex::Listed& one : keys) seen.insert(one.key);
  EXPECT_EQ(seen.size(), 300U);
  cursor = {3, SIZE_MAX - 300};
  EXPECT_TRUE(index_.SomeKeys("", 3, &cursor, &keys));
  EXPECT_EQ(cursor.shard, 4U);
  cursor = {SIZE_MAX, 0};
  EXPECT_FALSE(index_.SomeKeys("", 3, &cursor, &keys));
}

}  // namespace
}  // namespace ems::server
