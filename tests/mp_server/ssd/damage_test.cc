// What must hold: whichever bit of the tier's files flips while the server is down, a key is found
// with its newest value or not at all. What was removed or replaced never comes back, and an index
// that had to be given up says so.
//
// EMS_DAMAGE_FLIPS (20 by default) is how many bits flip in each kind of file, EMS_SEED which.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "mp_server/ssd/ssd_tier.h"
#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/long_run.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using ems::testing::kNs;
using ems::testing::kOtherNs;
using ems::testing::MakeObject;
using ems::testing::NameOf;
using ems::testing::Waiter;

constexpr int kKeys = 60;

enum class Part : uint8_t { kLog, kTable, kManifest, kCurrent, kEnds, kOther, kRegion };
constexpr std::pair<Part, const char*> kParts[] = {
    {Part::kLog, "log"},         {Part::kTable, "table"}, {Part::kManifest, "MANIFEST"},
    {Part::kCurrent, "CURRENT"}, {Part::kEnds, "SYNCED"}, {Part::kOther, "OPTIONS, IDENTITY"},
    {Part::kRegion, "region"}};

std::optional<Part> PartOf(const std::string& name) {
  if (name.ends_with(".log")) return Part::kLog;
  if (name.ends_with(".sst")) return Part::kTable;
  if (name.ends_with(".region")) return Part::kRegion;
  if (name.starts_with("MANIFEST")) return Part::kManifest;
  if (name == "CURRENT") return Part::kCurrent;
  if (name == "SYNCED") return Part::kEnds;
  if (name.starts_with("OPTIONS") || name == "IDENTITY") return Part::kOther;
  return std::nullopt;
}

class DamageTest : public ::testing::Test {
 protected:
  using Files = std::map<Part, std::vector<fs::path>>;
  struct Key {
    NamespaceRef ns;
    std::string text;
    auto operator<=>(const Key&) const = default;
    ObjectName name() const { return NameOf(text, ns); }
  };
  // Those of the second one are not synced when they are new.
  static constexpr NamespaceRef kRelaxed = kOtherNs;

  DamageTest() {
    options_.folder = folder_ / "tier";
    options_.capacity_bytes = 32 * kMiB;
    options_.region_bytes = kMiB;
    options_.dirty_bytes_max = 16 * kMiB;
    options_.lineage = 40;
    options_.io = IoKind::kThreads;
  }
  void Open(const std::string& folder) {
    tier_.reset();
    TierOptions options = options_;
    options.folder = folder;
    tier_ = SsdTier::Open(options);
    tier_->SetNamespaces({{kNs, 0, 0, false}, {kRelaxed, 0, 0, true}});
    SlotGrant grant;
    grant.view = ViewVersion(1, 1);
    grant.owned.set();
    tier_->SetOwnedSlots(grant);
  }
  static bool Done(const TicketPtr& ticket, const Waiter& waiter) {
    if (ticket == nullptr) return false;
    if (ticket->state() == Ticket::State::kWaiting && !waiter.Wait()) return false;
    return ticket->state() == Ticket::State::kDone;
  }
  // One that is not durable is written all the same, and waited for.
  void Put(const Key& key, uint64_t bytes, bool durable) {
    const Waiter waiter;
    const uint64_t put_id = ++put_ids_;
    const TicketPtr ticket =
        tier_->Put(key.name(), MakeObject(key.text, put_id, bytes, key.ns), durable, waiter.wake());
    ASSERT_TRUE(ticket == nullptr ? !durable : Done(ticket, waiter));
    ASSERT_TRUE(ems::testing::Eventually([&] { return !tier_->Pending(key.name()); }));
    newest_[key] = put_id;
  }
  void Remove(const Key& key) {
    const Waiter waiter;
    ASSERT_TRUE(Done(tier_->Remove(key.name(), waiter.wake()), waiter));
    newest_[key].reset();
  }
  static uint64_t BytesOf(int i) {
    return i % 10 == 0 ? 80 * kKiB : 100 + 97 * static_cast<uint64_t>(i);
  }

  // Rows of two lives in tables, those of the third in the log, and of all keys some that were
  // replaced, and some that were removed, in each. What the log ends with is relaxed.
  void MakeTier() {
    for (int life = 0; life < 3; ++life) {
      Open(options_.folder);
      for (const NamespaceRef ns : {kNs, kRelaxed}) {
        for (int i = 0; i < kKeys; ++i) {
          const Key key{ns, "key " + std::to_string(i)};
          if (life == 0 || i % 5 == life) Put(key, BytesOf(i), ns == kNs || i % 2 == 0);
          if (i % 7 == life && newest_[key]) Remove(key);
          if (HasFatalFailure()) return;
        }
      }
    }
    tier_.reset();
  }
  // What a reader is given; nothing: a miss.
  std::optional<uint64_t> Read(const Key& key) {
    const std::optional<StoredInfo> stored = tier_->Find(key.name(), true);
    if (!stored) return std::nullopt;
    const uint64_t bytes = stored->value_bytes();
    if (bytes > kMiB) return std::nullopt;
    AlignedBuffer memory;
    const MutableBytes value = memory.Take(RoundUp(bytes, kBlockBytes)).first(bytes);
    std::vector<uint64_t> sums(PieceCount(bytes));
    const Waiter waiter;
    ReadOutcome outcome = ReadOutcome::kFailed;
    const auto done = [&outcome, wake = waiter.wake()](ReadOutcome got) {
      outcome = got;
      wake();
    };
    if (!tier_->Read(key.name(), key.text, *stored, {value, sums}, done)) return std::nullopt;
    EXPECT_TRUE(waiter.Wait());
    if (outcome != ReadOutcome::kOk) return std::nullopt;
    const std::optional<uint64_t> put_id = ems::testing::PutIdOf(key.text, value, key.ns);
    EXPECT_TRUE(put_id.has_value()) << key.text << ": bytes that nobody put";
    return put_id;
  }
  // How many keys are there with their newest value; no other is.
  int Sound() {
    int sound = 0;
    for (const auto& [key, newest] : newest_) {
      const std::optional<uint64_t> found = Read(key);
      if (!found) continue;
      const char* const ns = key.ns == kNs ? "synced " : "relaxed ";
      EXPECT_TRUE(newest.has_value()) << ns << key.text << " was removed";
      EXPECT_EQ(*found, newest.value_or(0)) << ns << key.text << " has an older value";
      ++sound;
    }
    return sound;
  }
  int Stored() const {
    int stored = 0;
    for (const auto& [key, newest] : newest_) stored += newest ? 1 : 0;
    return stored;
  }
  Files FilesOfParts() const {
    Files files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
      if (!entry.is_regular_file() || entry.file_size() == 0) continue;
      const std::optional<Part> part = PartOf(entry.path().filename().string());
      if (part) files[*part].push_back(fs::relative(entry.path(), options_.folder));
    }
    return files;
  }
  static std::string Flip(const fs::path& file, std::mt19937_64* random) {
    // Of a region, what is filled.
    const uint64_t size = std::min<uint64_t>(fs::file_size(file), 400 * kKiB);
    const uint64_t at = (*random)() % size;
    const char bit = static_cast<char>(1 << (*random)() % 8);
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(bytes.get());
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(static_cast<char>(byte ^ bit));
    EXPECT_TRUE(bytes.good());
    return fmt::format("bit {} of byte {} of {}", int{bit}, at, file.string());
  }
  // What a start on the damaged copy makes of it: whether the index was given up.
  bool CheckStart(Part part, const std::string& damaged) {
    Open(damaged);
    EXPECT_EQ(tier_->state(), TierState::kOk) << tier_->reason();
    const bool aside = !tier_->stats().index_set_aside.empty();
    const int sound = Sound();
    EXPECT_TRUE(!aside || sound == 0);
    switch (part) {
      case Part::kManifest:
      case Part::kCurrent:
        EXPECT_TRUE(aside) << "nobody is told";
        break;
      case Part::kRegion:
        EXPECT_FALSE(aside);
        break;
      case Part::kOther:
        EXPECT_EQ(sound, Stored()) << "nothing of it is needed";
        break;
      case Part::kLog:
      case Part::kTable:
      case Part::kEnds:
        break;
    }
    return aside;
  }

  const ::ems::testing::TempFolder folder_;
  TierOptions options_;
  std::unique_ptr<SsdTier> tier_;
  uint64_t put_ids_ = 0;
  std::map<Key, std::optional<uint64_t>> newest_;
};

TEST_F(DamageTest, AFlippedBitIsRefusedOrAMissAndNeverAnOlderValue) {
  ASSERT_NO_FATAL_FAILURE(MakeTier());
  const Files files = FilesOfParts();
  const uint64_t flips = ems::testing::NumberOfVariable("EMS_DAMAGE_FLIPS", 20);
  std::mt19937_64 random(ems::testing::ChosenSeed());
  const std::string damaged = folder_ / "damaged";
  std::map<Part, uint64_t> given_up;
  for (const auto& [part, name] : kParts) {
    ASSERT_TRUE(files.contains(part)) << name;
    for (uint64_t i = 0; i < flips && !HasFailure(); ++i) {
      tier_.reset();
      fs::remove_all(damaged);
      fs::copy(options_.folder, damaged, fs::copy_options::recursive);
      const std::vector<fs::path>& some = files.at(part);
      SCOPED_TRACE(Flip(fs::path(damaged) / some[random() % some.size()], &random));
      given_up[part] += CheckStart(part, damaged) ? 1 : 0;
      if (i % 8 != 0) continue;
      Open(damaged);  // what has come through one start does not come back with the next one
      (void)Sound();
    }
    std::printf("%s: %llu flips, the index given up after %llu\n", name,
                static_cast<unsigned long long>(flips),
                static_cast<unsigned long long>(given_up[part]));
  }
  // What was synced of the log is most of it.
  EXPECT_GE(given_up[Part::kLog], flips / 2);
}

TEST_F(DamageTest, WithoutDamageEverythingIsThere) {
  ASSERT_NO_FATAL_FAILURE(MakeTier());
  Open(options_.folder);
  EXPECT_EQ(tier_->stats().index_set_aside, "");
  EXPECT_GT(Stored(), kKeys);
  EXPECT_EQ(Sound(), Stored());
}

}  // namespace
}  // namespace ems::ssd
