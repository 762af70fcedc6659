// What must hold: an observer of the index hears of all that is stored and dropped, in its order;
// and a listing meets all that stays.
#include "mp_server/ssd/stored_observer.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "mp_server/ssd/ssd_index.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::BeginWrite;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using Fate = SsdIndex::Fate;

const ObjectName kName = NameOf("a");

Row RowOf(uint64_t sequence, uint64_t region_sequence = 1) {
  Row row;
  row.sequence = sequence;
  row.region_sequence = region_sequence;
  row.value_bytes = 100;
  return row;
}

void Begin(SsdIndex* index, const ObjectName& name, uint64_t sequence) {
  const auto object = MakeObject("any", 1, 8, name.ns, 0);
  EXPECT_TRUE(BeginWrite(index, name, sequence, *object).begun);
}

void Store(SsdIndex* index, const ObjectName& name, const Row& row) {
  Begin(index, name, row.sequence);
  ASSERT_TRUE(index->Commit(name, row));
}

class Heard final : public StoredObserver {
 public:
  void OnStored(const ObjectName& name) override { said.emplace_back(name, true); }
  void OnDropped(const ObjectName& name) override { said.emplace_back(name, false); }
  std::vector<std::pair<ObjectName, bool>> said;
};

TEST(StoredObserverTest, AnObserverHearsWhatIsStoredAndDroppedFromThenOn) {
  SsdIndex index;
  const ObjectName other = NameOf("b");
  Store(&index, kName, RowOf(1));
  Heard heard;
  index.Observe(&heard);
  Store(&index, kName, RowOf(2));  // the old one goes when the write begins
  Begin(&index, other, 3);         // pending is not stored
  (void)index.Drop(other);
  Store(&index, other, RowOf(4, 9));
  EXPECT_EQ(index.Reclaim(other, 9, false).fate, Fate::kDropped);
  (void)index.DropRecord(kName, RowOf(2));
  Store(&index, kName, RowOf(5));
  std::vector<OwedDelete> owed;
  index.DropIf([](const ObjectName&, const Row&) { return true; }, &owed);
  const std::vector<std::pair<ObjectName, bool>> expected = {
      {kName, false}, {kName, true}, {other, true}, {other, false},
      {kName, false}, {kName, true}, {kName, false}};
  EXPECT_EQ(heard.said, expected);
}

TEST(StoredObserverTest, EachNameThatStaysIsListedWhileShardsGrow) {
  SsdIndex index;
  for (int i = 0; i < 20000; ++i)
    index.Load(NameOf("k" + std::to_string(i)), RowOf(static_cast<uint64_t>(i) + 1));
  SsdIndex::Stored some;
  std::set<ObjectName> names;
  SsdIndex::Cursor cursor;
  for (uint64_t i = 0; index.SomeStored(&cursor, &some); ++i) {
    for (uint64_t j = 0; i < 50 && j < 1000; ++j)
      index.Load(NameOf("n" + std::to_string(i * 1000 + j)), RowOf(1));
  }
  for (const auto& [name, row] : some) names.insert(name);
  for (int i = 0; i < 20000; ++i) ASSERT_TRUE(names.contains(NameOf("k" + std::to_string(i))));
}

}  // namespace
}  // namespace ems::ssd
