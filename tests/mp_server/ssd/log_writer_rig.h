#pragma once
// A log writer with all it needs: real files and a real index in a temporary folder, writes that
// are held back and released in any order, syncs that wait at a gate, disks that refuse.
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <set>

#include "mp_server/ssd/log_writer.h"
#include "mp_server/ssd/moved_object.h"
#include "mp_server/ssd/recovery.h"
#include "tests/mp_server/ssd/rocksdb_faults.h"
#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/eventually.h"

namespace ems::testing {

// Hands operations on to another engine, or holds them until they are released, in any order.
// Threading: thread-safe.
class StepEngine final : public ssd::IoEngine {
 public:
  explicit StepEngine(std::unique_ptr<ssd::IoEngine> inner) : inner_(std::move(inner)) {}
  void Submit(ssd::IoOp* op) override {
    if (before_submit) before_submit();
    {
      auto state = state_.Lock();
      if (state->holding) {
        state->held.push_back(op);
        changed_.notify_all();
        return;
      }
    }
    inner_->Submit(op);
  }
  std::string_view name() const override { return inner_->name(); }
  std::function<void()> before_submit;  // set it while nobody submits

  void Hold() {
    auto state = state_.Lock();
    state->holding = true;
  }
  size_t held() {
    auto state = state_.Lock();
    return state->held.size();
  }
  bool WaitForHeld(size_t count, Duration patience = kPatience) {
    auto state = state_.Lock();
    return state.WaitFor(changed_, patience,
                         [count](const Held& s) { return s.held.size() >= count; });
  }
  // On the caller's thread: when these return, the writer has been told.
  void LetGo(size_t which) {
    ssd::IoOp* op = Take(which);
    op->OnDone(::pwritev(op->fd, op->parts.data(), static_cast<int>(op->parts.size()),
                         static_cast<off_t>(op->offset)));
  }
  void Fail(size_t which, int64_t result = -EIO) { Take(which)->OnDone(result); }
  void HoldNoMore() {
    {
      auto state = state_.Lock();
      state->holding = false;
    }
    while (held() > 0) LetGo(0);
  }

 private:
  struct Held {
    bool holding = false;
    std::vector<ssd::IoOp*> held;
  };
  ssd::IoOp* Take(size_t which) {
    auto state = state_.Lock();
    EMS_CHECK(which < state->held.size(), "{} of {} held", which, state->held.size());
    ssd::IoOp* op = state->held[which];
    state->held.erase(state->held.begin() + static_cast<ptrdiff_t>(which));
    return op;
  }
  const std::unique_ptr<ssd::IoEngine> inner_;
  Guarded<Held> state_;
  std::condition_variable changed_;
};

// Files whose syncs wait at a gate when it is shut. Threading: thread-safe.
class GatedFiles final : public ssd::RegionFiles {
 public:
  FaultyFiles faults;
  std::function<void()> before_read;  // the next one; set it while nobody reads

  void Shut() {
    auto gate = gate_.Lock();
    gate->shut = true;
  }
  void OpenGate() {
    auto gate = gate_.Lock();
    gate->shut = false;
    changed_.notify_all();
  }
  bool WaitForOneAtTheGate() {
    auto gate = gate_.Lock();
    return gate.WaitFor(changed_, kPatience, [](const Gate& g) { return g.waiting > 0; });
  }
  Result<fabric::Fd> Open(const std::string& path, bool create, bool* direct) override {
    return faults.Open(path, create, direct);
  }
  Status Preallocate(int fd, uint64_t bytes) override { return faults.Preallocate(fd, bytes); }
  Status Sync(int fd) override {
    {
      auto gate = gate_.Lock();
      ++gate->waiting;
      changed_.notify_all();
      gate.Wait(changed_, [](const Gate& g) { return !g.shut; });
      --gate->waiting;
    }
    return faults.Sync(fd);
  }
  Status Read(int fd, MutableBytes into, uint64_t offset) override {
    if (before_read) std::exchange(before_read, nullptr)();
    return faults.Read(fd, into, offset);
  }
  Status Write(int fd, ConstBytes bytes, uint64_t offset) override {
    return faults.Write(fd, bytes, offset);
  }

 private:
  struct Gate {
    bool shut = false;
    int waiting = 0;
  };
  Guarded<Gate> gate_;
  std::condition_variable changed_;
};

// Counts how often it is asked. Threading: thread-safe.
class CountingClock final : public Clock {
 public:
  TimePoint Now() const override {
    asked_.fetch_add(1, std::memory_order_relaxed);
    return manual.Now();
  }
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }
  ManualClock manual;

 private:
  mutable std::atomic<uint64_t> asked_{0};
};

// What a call was answered with.
struct Answer {
  ssd::TicketPtr ticket;
  Waiter waiter;
  // There must be a ticket.
  ssd::Ticket::State now() const {
    EMS_CHECK(ticket != nullptr, "there is nothing to wait for");
    return ticket->state();
  }
  ssd::Ticket::State Wait() const {
    EMS_CHECK(ticket != nullptr, "there is nothing to wait for");
    if (now() == ssd::Ticket::State::kWaiting) {
      EXPECT_TRUE(waiter.Wait());
    }
    return ticket->state();
  }
};

// A writer with all it needs, and its start and end. Threading: one thread.
class Rig final {
 public:
  struct Options {
    uint32_t regions_max = 8;
    uint64_t region_bytes = kMiB;
    uint64_t dirty_bytes_max = 64 * kMiB;
    uint64_t objects_max = UINT64_MAX;
    uint64_t small_bytes = 0;
    Duration overwrite_quiet = ssd::HeldBack::kQuiet;
    const Clock* clock = &Clock::System();
  };
  Rig() : Rig(Options{}) {}
  explicit Rig(Options options) : options_(options) { Start(); }
  ~Rig() { Stop(); }

  void Start() {
    ssd::RegionIndex::Options wanted;
    wanted.folder = index_folder();
    wanted.env = disk.env();
    rows = *ssd::RegionIndex::Open(wanted);
    log_ = *ssd::RegionLog::Open(
        LogOptions(folder_ / "regions", &files, options_.regions_max, options_.region_bytes));
    index = std::make_unique<ssd::SsdIndex>();
    const ssd::Recovered recovered = *ssd::Recover(rows.get(), log_.get(), index.get());
    for (const auto& region : log_->regions()) SetFd(region->id, region->fd.get());
    io = std::make_unique<StepEngine>(*ssd::MakeIoEngine(ssd::IoKind::kThreads, 2, nullptr));
    ssd::LogWriter::Options write;
    write.log = log_.get();
    write.index = index.get();
    write.rows = rows.get();
    write.io = io.get();
    write.dirty_bytes_max = options_.dirty_bytes_max;
    write.objects_max = options_.objects_max;
    write.small_bytes = options_.small_bytes;
    write.overwrite_quiet = options_.overwrite_quiet;
    write.next_sequence = recovered.next_sequence;
    write.clock = options_.clock;
    write.on_region = [this](uint32_t region, int fd) { SetFd(region, fd); };
    writer = std::make_unique<ssd::LogWriter>(std::move(write));
  }
  void Stop() {
    files.OpenGate();
    io->HoldNoMore();
    writer.reset();
    io.reset();
    rows.reset();
    log_.reset();
  }
  void Restart() {
    Stop();
    Start();
  }

  std::string index_folder() const { return folder_ / "index"; }

  // These three from any thread.
  Answer Put(const std::string& key, uint64_t put_id, uint64_t bytes, bool durable = true) {
    Answer answer;
    answer.ticket =
        writer->Put(NameOf(key), MakeObject(key, put_id, bytes), durable, answer.waiter.wake());
    return answer;
  }
  Answer Remove(const std::string& key) {
    Answer answer;
    answer.ticket = writer->Remove(NameOf(key), answer.waiter.wake());
    return answer;
  }
  Answer MakeDurable(const std::string& key) {
    Answer answer;
    answer.ticket = writer->MakeDurable(NameOf(key), answer.waiter.wake());
    return answer;
  }
  // Everything that was queued before has been looked at.
  void PassQueue() { (void)MakeDurable("nothing has this name").Wait(); }

  // Whether it does, now that the time to try again has come.
  bool Heals() {
    PassQueue();
    return Eventually([&] { return writer->state() == ssd::TierState::kOk; });
  }

  bool Stored(const std::string& key) { return index->Find(NameOf(key), false).stored; }
  // The put id of what a reader would get from memory's index; none: nothing sound.
  std::optional<uint64_t> InMemory(const std::string& key) {
    const ssd::SsdIndex::Found found = index->Find(NameOf(key), false);
    return found.stored ? Load(key, found.row) : std::nullopt;
  }
  // The same after the death of the process at this moment.
  std::optional<uint64_t> InRows(const std::string& key) {
    std::optional<ssd::Row> row;
    ForEachRow([&](const ssd::ObjectName& name, const ssd::Row& found) {
      if (name == NameOf(key)) row = found;
    });
    return row ? Load(key, *row) : std::nullopt;
  }
  std::set<ssd::ObjectName> RowNames() {
    std::set<ssd::ObjectName> all;
    ForEachRow([&](const ssd::ObjectName& name, const ssd::Row&) { all.insert(name); });
    return all;
  }
  bool HasRow(const std::string& key) { return RowNames().contains(NameOf(key)); }

  GatedFiles files;
  FaultyDisk disk;
  std::unique_ptr<ssd::SsdIndex> index;
  std::unique_ptr<ssd::RegionIndex> rows;
  std::unique_ptr<StepEngine> io;
  std::unique_ptr<ssd::LogWriter> writer;

 private:
  void SetFd(uint32_t region, int fd) {
    auto fds = fds_.Lock();
    (*fds)[region] = fd;
  }
  void ForEachRow(const std::function<void(const ssd::ObjectName&, const ssd::Row&)>& visit) {
    uint64_t unreadable = 0;
    EXPECT_TRUE(rows->ForEach(visit, &unreadable).ok());
    EXPECT_EQ(unreadable, 0);
  }
  std::optional<uint64_t> Load(const std::string& key, const ssd::Row& row) {
    int fd = -1;
    {
      auto fds = fds_.Lock();
      fd = fds->at(row.region);
    }
    const auto object = ssd::MovedObject::Read(&files, fd, kStoreId, NameOf(key), row);
    if (!object.ok() || (*object)->key() != key) return std::nullopt;
    return PutIdOf(key, (*object)->value());
  }

  const Options options_;
  const TempFolder folder_;
  std::unique_ptr<ssd::RegionLog> log_;
  Guarded<std::map<uint32_t, int>> fds_;
};

// Large enough that four, and no more, fit into a region of 1 MiB.
inline constexpr uint64_t kQuarter = 200 * kKiB;

// Fills three regions of four objects each, key "0" being the oldest.
inline void FillThreeRegions(Rig* rig) {
  for (uint64_t i = 0; i < 12; ++i)
    ASSERT_EQ(rig->Put(std::to_string(i), i, kQuarter).Wait(), ssd::Ticket::State::kDone);
}

}  // namespace ems::testing
