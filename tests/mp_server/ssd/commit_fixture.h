#pragma once
// Rows in a real index whose disk may refuse, what is about to be committed to them, and regions to
// write records to: what the tests of the log thread's parts have in common.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mp_server/ssd/group_commit.h"
#include "tests/mp_server/ssd/rocksdb_faults.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::testing {

inline ssd::Row RowOf(uint64_t sequence) {
  ssd::Row row;
  row.sequence = sequence;
  return row;
}

inline ssd::TicketPtr MakeTicket() { return std::make_shared<ssd::Ticket>(nullptr); }

class RowFixture : public ::testing::Test {
 protected:
  RowFixture() {
    ssd::RegionIndex::Options options;
    options.folder = folder_ / "index";
    options.env = disk_.env();
    rows_ = *ssd::RegionIndex::Open(options);
    commit_.emplace(rows_.get(), &index_);
  }

  std::map<ssd::ObjectName, uint64_t> Sequences() {
    std::map<ssd::ObjectName, uint64_t> found;
    uint64_t unreadable = 0;
    const auto note = [&](const ssd::ObjectName& name, const ssd::Row& row) {
      found[name] = row.sequence;
    };
    EXPECT_TRUE(rows_->ForEach(note, &unreadable).ok());
    EXPECT_EQ(unreadable, 0);
    return found;
  }

  // In the rows and in memory.
  void Store(const ssd::ObjectName& name, uint64_t sequence) { StoreRow(name, RowOf(sequence)); }
  void StoreRow(const ssd::ObjectName& name, const ssd::Row& row) {
    (void)BeginWrite(&index_, name, row.sequence, *object_);
    commit_->Put(name, row);
    ASSERT_TRUE(commit_->Write().ok());
    ASSERT_TRUE(index_.Commit(name, row));
  }
  // Writes fail from now on, and the index takes no more of them.
  void BreakRows() {
    disk_.Set(DiskFault::kBroken);
    commit_->PutMeta("any", "");
    commit_->RequireSync();
    EXPECT_FALSE(commit_->Write().ok());
    ASSERT_TRUE(rows_->broken());
  }

  const TempFolder folder_;
  FaultyDisk disk_;
  ssd::SsdIndex index_;
  std::unique_ptr<ssd::RegionIndex> rows_;
  std::optional<ssd::RowCommit> commit_;
  const std::unique_ptr<ssd::DirtyObject> object_ = MakeObject("any", 1, 8);
  const ssd::ObjectName a_ = NameOf("a");
  const ssd::ObjectName b_ = NameOf("b");
};

class GroupFixture : public RowFixture {
 protected:
  GroupFixture() {
    log_ = *ssd::RegionLog::Open(LogOptions(folder_ / "regions", &files_));
    space_.emplace(log_.get());
    deletes_.emplace(rows_.get(), &index_, &*commit_);
    groups_.emplace(ssd::GroupCommit::Options{.log = log_.get(),
                                              .index = &index_,
                                              .rows = rows_.get(),
                                              .space = &*space_,
                                              .commit = &*commit_,
                                              .deletes = &*deletes_,
                                              .health = &health_,
                                              .counts = &counts_,
                                              .held_back = &held_back_,
                                              .dirty_bytes = &dirty_bytes_});
    region_ = BeginRegion(log_.get());
  }
  // A group of one object of 1000 bytes, as it is once its write is done.
  ssd::WriteGroup* WriteTo(ssd::Region* region, const std::string& key, uint64_t sequence,
                           ssd::TicketPtr durable) {
    ssd::WriteJob job;
    job.durable = durable != nullptr;
    job.ticket = std::move(durable);
    job.object = MakeObject(key, sequence, 1000);
    EXPECT_TRUE(BeginWrite(&index_, NameOf(key), sequence, *job.object).begun);
    dirty_bytes_.fetch_add(1000);
    return GroupOf(region, key, sequence, std::move(job));
  }
  // The same of one that is stored elsewhere, and moves.
  ssd::WriteGroup* MoveTo(ssd::Region* region, const std::string& key, const ssd::Row& old) {
    ssd::WriteJob job;
    job.object = MakeObject(key, old.sequence, 1000);
    job.from = log_->Find(old.region);
    ++job.from->moves_under_way;
    ++job.from->moved_objects;
    return GroupOf(region, key, old.sequence, std::move(job));
  }
  // Where its row leads.
  uint32_t RegionOf(const ssd::ObjectName& name) {
    std::map<ssd::ObjectName, uint32_t> found;
    uint64_t unreadable = 0;
    const auto note = [&](const ssd::ObjectName& one, const ssd::Row& row) {
      found[one] = row.region;
    };
    EXPECT_TRUE(rows_->ForEach(note, &unreadable).ok());
    return found.at(name);
  }

  ManualClock clock_;
  FaultyFiles files_;
  std::unique_ptr<ssd::RegionLog> log_;
  std::optional<ssd::RegionSpace> space_;
  std::optional<ssd::DeleteLog> deletes_;
  std::optional<ssd::GroupCommit> groups_;
  ssd::TierHealth health_{&clock_};
  ssd::WriterCounts counts_;
  std::atomic<uint64_t> dirty_bytes_{0};
  ssd::HeldBack held_back_{{}};  // holds nothing
  ssd::Region* region_ = nullptr;

 private:
  class Group final : public ssd::WriteGroup {
    void OnDone(int64_t) override {}
  };
  ssd::WriteGroup* GroupOf(ssd::Region* region, const std::string& key, uint64_t sequence,
                           ssd::WriteJob job) {
    job.name = NameOf(key);
    job.sequence = sequence;
    job.value_bytes = 1000;
    made_.push_back(std::make_unique<Group>());
    ssd::WriteGroup* group = made_.back().get();
    group->Start(region, false);
    ++region->writes_under_way;
    group->Add(std::move(job), ssd::RecordShape(1000, key.size()), log_->options().store_id);
    group->Place();
    region->unsynced = true;
    return group;
  }
  std::vector<std::unique_ptr<ssd::WriteGroup>> made_;
};

}  // namespace ems::testing
