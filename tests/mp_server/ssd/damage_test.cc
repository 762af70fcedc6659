// What must hold: whichever bit of the tier's files flips while the server is down, a key is found
// with its newest value or not at all. What was removed or replaced never comes back, and an index
// that had to be given up says so.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "mp_server/ssd/ssd_tier.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using ems::testing::kNs;
using ems::testing::MakeObject;
using ems::testing::NameOf;
using ems::testing::Waiter;

constexpr int kKeys = 60;
constexpr int kFlips = 200;

enum class Part : uint8_t { kLog, kTable, kManifest, kRegion };
constexpr Part kParts[] = {Part::kLog, Part::kTable, Part::kManifest, Part::kRegion};

Part PartOf(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.ends_with(".log")) return Part::kLog;
  if (name.ends_with(".sst")) return Part::kTable;
  return name.ends_with(".region") ? Part::kRegion : Part::kManifest;
}

class DamageTest : public ::testing::Test {
 protected:
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
    tier_->SetNamespaces({{kNs, 0, 0, false}});
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
  void Put(const std::string& key, uint64_t bytes) {
    const Waiter waiter;
    const uint64_t put_id = ++put_ids_;
    ASSERT_TRUE(
        Done(tier_->Put(NameOf(key), MakeObject(key, put_id, bytes), true, waiter.wake()), waiter));
    newest_[key] = put_id;
  }
  void Remove(const std::string& key) {
    const Waiter waiter;
    ASSERT_TRUE(Done(tier_->Remove(NameOf(key), waiter.wake()), waiter));
    newest_[key].reset();
  }
  static std::string KeyOf(int i) { return "key " + std::to_string(i); }
  static uint64_t BytesOf(int i) {
    return i % 10 == 0 ? 80 * kKiB : 100 + 97 * static_cast<uint64_t>(i);
  }

  // Rows of two lives in tables, those of the third in the log, and of all keys some that were
  // replaced, and some that were removed, in each.
  void MakeTier() {
    for (int life = 0; life < 3; ++life) {
      Open(options_.folder);
      for (int i = 0; i < kKeys; ++i) {
        if (life == 0 || i % 5 == life) Put(KeyOf(i), BytesOf(i));
        if (i % 7 == life && newest_[KeyOf(i)]) Remove(KeyOf(i));
        if (HasFatalFailure()) return;
      }
    }
    tier_.reset();
  }
  // What a reader is given; nothing: a miss.
  std::optional<uint64_t> Read(const std::string& key) {
    const std::optional<StoredInfo> stored = tier_->Find(NameOf(key), true);
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
    if (!tier_->Read(NameOf(key), key, *stored, {value, sums}, done)) return std::nullopt;
    EXPECT_TRUE(waiter.Wait());
    if (outcome != ReadOutcome::kOk) return std::nullopt;
    const std::optional<uint64_t> put_id = ems::testing::PutIdOf(key, value);
    EXPECT_TRUE(put_id.has_value()) << key << ": bytes that nobody put";
    return put_id;
  }
  // How many keys are there with their newest value; no other is.
  int Sound() {
    int sound = 0;
    for (const auto& [key, newest] : newest_) {
      const std::optional<uint64_t> found = Read(key);
      if (!found) continue;
      EXPECT_TRUE(newest.has_value()) << key << " was removed";
      EXPECT_EQ(*found, newest.value_or(0)) << key << " has an older value";
      ++sound;
    }
    return sound;
  }
  std::map<Part, std::vector<fs::path>> Files() const {
    std::map<Part, std::vector<fs::path>> files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
      const std::string name = entry.path().filename().string();
      const bool other = name.ends_with(".log") || name.ends_with(".sst") ||
                         name.ends_with(".region") || name.starts_with("MANIFEST");
      if (other && entry.is_regular_file() && entry.file_size() > 0)
        files[PartOf(entry.path())].push_back(fs::relative(entry.path(), options_.folder));
    }
    return files;
  }

  const ::ems::testing::TempFolder folder_;
  TierOptions options_;
  std::unique_ptr<SsdTier> tier_;
  uint64_t put_ids_ = 0;
  std::map<std::string, std::optional<uint64_t>> newest_;
};

TEST_F(DamageTest, AFlippedBitIsRefusedOrAMissAndNeverAnOlderValue) {
  ASSERT_NO_FATAL_FAILURE(MakeTier());
  const std::map<Part, std::vector<fs::path>> files = Files();
  for (const Part part : kParts)
    ASSERT_TRUE(files.contains(part)) << "part " << int{static_cast<uint8_t>(part)};
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const std::string damaged = folder_ / "damaged";
  int given_up = 0;
  for (int i = 0; i < kFlips && !HasFailure(); ++i) {
    tier_.reset();
    fs::remove_all(damaged);
    fs::copy(options_.folder, damaged, fs::copy_options::recursive);
    const Part part = kParts[static_cast<size_t>(i) % std::size(kParts)];
    const std::vector<fs::path>& some = files.at(part);
    const fs::path file = fs::path(damaged) / some[random() % some.size()];
    // Of a region, what is filled.
    const uint64_t size = std::min<uint64_t>(fs::file_size(file), 400 * kKiB);
    const uint64_t at = random() % size;
    const char bit = static_cast<char>(1 << random() % 8);
    SCOPED_TRACE(fmt::format("bit {} of byte {} of {}", int{bit}, at, file.string()));
    {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(bytes.get());
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(static_cast<char>(byte ^ bit));
      ASSERT_TRUE(bytes.good());
    }
    Open(damaged);
    EXPECT_EQ(tier_->state(), TierState::kOk) << tier_->reason();
    const bool aside = !tier_->stats().index_set_aside.empty();
    given_up += aside ? 1 : 0;
    const int sound = Sound();
    EXPECT_TRUE(aside || part == Part::kTable || part == Part::kRegion) << "nobody is told";
    EXPECT_TRUE(!aside || sound == 0);
    EXPECT_FALSE(aside && part == Part::kRegion);
  }
  EXPECT_GE(given_up, kFlips / 2);
}

TEST_F(DamageTest, WithoutDamageEverythingIsThere) {
  ASSERT_NO_FATAL_FAILURE(MakeTier());
  Open(options_.folder);
  EXPECT_EQ(tier_->stats().index_set_aside, "");
  int expected = 0;
  for (const auto& [key, newest] : newest_) expected += newest ? 1 : 0;
  EXPECT_GT(expected, kKeys / 2);
  EXPECT_EQ(Sound(), expected);
}

}  // namespace
}  // namespace ems::ssd
