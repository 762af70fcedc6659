// Invariant: under the lock of the pulls there is no I/O and no call into the store; pins are
// dropped after it.
#include "mp_server/model_puller.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/logging.h"
#include "common/retry.h"
#include "common/thread_pool.h"
#include "mp_controller/view/models_client.h"
#include "mp_controller/view/slot_table.h"
#include "mp_server/block_puller.h"
#include "mp_server/file_checker.h"
#include "mp_server/kept_blocks.h"
#include "mp_server/model_metrics.h"
#include "mp_server/model_pull.h"
#include "mp_server/pull_schedule.h"
#include "proto/model.pb.h"

namespace ems::server {
namespace {

// How long a look at the list may wait: also how soon a new view is noticed.
constexpr Duration kListWait = std::chrono::seconds(10);
constexpr Duration kListWaitPinned = std::chrono::seconds(1);
constexpr Duration kListWaitWorking = std::chrono::milliseconds(100);
constexpr Duration kIdle = std::chrono::seconds(60);
constexpr Duration kCallPatience = std::chrono::seconds(2);
constexpr Duration kReportEvery = std::chrono::seconds(1);
constexpr Duration kReportSoon = std::chrono::milliseconds(20);  // gathers what comes together
constexpr Duration kChecksWait = std::chrono::milliseconds(500);
constexpr Duration kChecksPause = std::chrono::milliseconds(5);  // gathers what comes together
constexpr Duration kChecksRetry = std::chrono::milliseconds(200);
constexpr size_t kBufferBytesKept = 16 * kMiB;

}  // namespace

struct ModelPuller::Impl {
  struct State {
    explicit State(uint32_t pulls_max) : schedule(pulls_max) {}
    PullSchedule::Pulls pulls;
    PullSchedule schedule;
    FoundBlocks found;  // of versions without a pull
    bool stopping = false;
    bool report_due = false;
  };

  explicit Impl(const Options& options_in);
  ~Impl();

  void WatchLoop();
  // One look at the controller's list; false: it did not answer.
  bool Look(Duration wait);
  bool Begin(const v1::ModelStatus& status);
  // All digests that the controller knows of a version, but for the first `*since`, in some calls
  // of `take`; then `*since` is how many there are. False: it did not answer.
  bool EachDigest(uint32_t id, uint32_t* since,
                  const std::function<void(uint32_t, const model::BlockDigest&)>& take);
  // `anew`: all of them, else those that are new.
  bool LearnDigests(uint32_t id, bool anew = true);
  void RemoveDamaged(NamespaceRef ns, std::vector<model::BlockDigest> damaged);
  void FollowView();
  Duration ListWait();

  void ReportLoop();
  void Report(uint32_t id);

  void WorkLoop();
  void Take(const ModelPull::Task& task, Result<BlockPuller::Pulled> pulled);
  void DropSources(const std::vector<std::unique_ptr<ModelPull>>& gone);

  void CheckLoop();
  // How far the files of these versions are, since a number of an earlier answer, which it sets.
  bool FollowChecks(const std::vector<uint32_t>& ids, uint64_t* since, Duration wait);
  void TakeChecks(const v1::FileCheck& check);
  void RunCheck(const ModelPull::CheckTask& task);

  const Options options;
  ModelMetrics counters;
  ModelsClient models;
  StopFlag stop;
  KeptBlocks kept;
  BlockPuller puller;
  FileChecker checker;
  ModelSources sources;
  uint64_t list_number = 0;  // the watch thread's
  bool reported_silence = false;
  Guarded<State> state{std::in_place, options.pulls_max};
  std::condition_variable work, reports, checks;
  std::vector<Thread> threads;
};

ModelPuller::Impl::Impl(const Options& options_in)
    : options(options_in),
      counters(options.metrics),
      models(options.controller),
      puller(options.store, options.ownership, &stop, PullSchedule(options.pulls_max).workers(),
             &kept),
      checker(&puller),
      sources(options.sources) {
  threads.emplace_back("ems-model-watch", [this] { WatchLoop(); });
  threads.emplace_back("ems-model-tell", [this] { ReportLoop(); });
  threads.emplace_back("ems-model-check", [this] { CheckLoop(); });
  for (uint32_t i = 0; i < PullSchedule(options.pulls_max).workers(); ++i)
    threads.emplace_back(fmt::format("ems-pull-{}", i), [this] { WorkLoop(); });
}

ModelPuller::Impl::~Impl() {
  stop.Set();
  models.Close();
  sources.Close();
  {
    auto locked = state.Lock();
    locked->stopping = true;
  }
  work.notify_all();
  reports.notify_all();
  checks.notify_all();
  threads.clear();
}

// --- The controller's list.

void ModelPuller::Impl::WatchLoop() {
  Backoff backoff(options.boot_id);
  while (!stop.IsSet()) {
    if (Look(ListWait())) {
      backoff.Reset();
    } else if (stop.WaitFor(backoff.Next())) {
      return;
    }
    FollowView();
    kept.DropOld();
  }
}

Duration ModelPuller::Impl::ListWait() {
  auto locked = state.Lock();
  if (locked->pulls.empty()) return kListWait;
  const bool working =
      std::ranges::any_of(locked->pulls, [](const auto& one) { return one.second->running(); });
  return working ? kListWaitWorking : kListWaitPinned;
}

bool ModelPuller::Impl::Look(Duration wait) {
  v1::ListModelsReply list;
  const Status status =
      models.List(list_number, wait, &list, Deadline::After(wait + kCallPatience));
  if (!status.ok()) {
    if (!std::exchange(reported_silence, true) && !stop.IsSet())
      EMS_LOG(kWarn, "mp_server", "models are not followed: {}", Message(status));
    return false;
  }
  reported_silence = false;
  if (list.number() == list_number) return true;
  std::set<uint32_t> unfinished, there;
  std::vector<ObjectPin> dropped;
  bool all = true;
  for (const v1::ModelStatus& one : list.models()) {
    const bool wanted = one.pinned() || one.job().state() == v1::PULL_RUNNING;
    bool known = false, begins = false;
    if (one.job().state() != v1::PULL_DONE) unfinished.insert(one.ref().id());
    if (wanted) there.insert(one.ref().id());
    {
      auto locked = state.Lock();
      const auto pull = locked->pulls.find(one.ref().id());
      begins = pull != locked->pulls.end() && wanted && pull->second->job() != one.job().number();
    }
    // What other servers have read since it was looked at.
    if (begins && !LearnDigests(one.ref().id())) all = false;
    {
      auto locked = state.Lock();
      const auto pull = locked->pulls.find(one.ref().id());
      known = pull != locked->pulls.end();
      if (known) {
        std::vector<ObjectPin> lost = pull->second->Follow(one);
        std::ranges::move(lost, std::back_inserter(dropped));
      }
    }
    if (wanted && !known) all = Begin(one) && all;
  }
  std::vector<std::unique_ptr<ModelPull>> gone;
  {
    auto locked = state.Lock();
    for (auto it = locked->pulls.begin(); it != locked->pulls.end();) {
      if (there.contains(it->first)) {
        ++it;
        continue;
      }
      locked->found.Keep(it->first, it->second->Found());
      gone.push_back(std::move(it->second));
      it = locked->pulls.erase(it);
    }
    locked->found.Retain(unfinished);
  }
  DropSources(gone);
  // What was read for a job that has ended is not to be read again for the next one.
  for (const auto& pull : gone) {
    uint32_t since = 0;
    if (pull->has_suspects() &&
        EachDigest(pull->id(), &since,
                   [&](uint32_t block, const auto& digest) { pull->Learn(block, digest); }))
      RemoveDamaged(pull->name_space(), pull->TakeDamaged());
    for (bool told = true; told && pull->has_news() && !stop.IsSet();) {
      v1::ReportPullRequest report;
      report.set_node_id(options.ownership->self().value());
      report.set_boot_id(options.boot_id);
      pull->FillReport(&report);
      v1::ReportPullReply reply;
      told = models.ReportPull(report, &reply, Deadline::After(kCallPatience)).ok();
    }
  }
  work.notify_all();
  if (all) list_number = list.number();
  return all;
}

// A version that is to be worked at from now on: what it is made of, and what is known of it.
bool ModelPuller::Impl::Begin(const v1::ModelStatus& status) {
  v1::ModelManifest proto;
  v1::ModelRef ref;
  ref.set_id(status.ref().id());
  const Status got = models.GetManifest(ref, &proto, Deadline::After(5 * kCallPatience));
  if (got.code() == StatusCode::kNotFound) return true;  // removed meanwhile
  auto manifest = got.ok() ? model::FromProto(proto) : Result<model::Manifest>(got);
  if (!manifest.ok()) {
    EMS_LOG(kWarn, "mp_server", "manifest of {} {}: {}", status.ref().model(),
            status.ref().version(), Message(manifest.status()));
    return false;
  }
  auto pull = std::make_unique<ModelPull>(
      ref.id(), std::make_shared<const model::Manifest>(*std::move(manifest)));
  const bool has_sums = pull->checks();
  {
    auto locked = state.Lock();
    pull->Recall(locked->found.Take(ref.id()));
    (void)pull->Follow(status);  // it holds no pins yet
    locked->pulls[ref.id()] = std::move(pull);
  }
  uint64_t since = 0;
  if (LearnDigests(ref.id()) && (!has_sums || FollowChecks({ref.id()}, &since, Duration(0)))) {
    checks.notify_all();
    return true;
  }
  auto locked = state.Lock();
  const auto begun = locked->pulls.find(ref.id());
  locked->found.Keep(ref.id(), begun->second->Found());
  locked->pulls.erase(begun);
  return false;
}

bool ModelPuller::Impl::EachDigest(
    uint32_t id, uint32_t* since,
    const std::function<void(uint32_t, const model::BlockDigest&)>& take) {
  v1::GetDigestsRequest request;
  request.mutable_ref()->set_id(id);
  while (true) {
    request.set_since(*since);
    v1::GetDigestsReply reply;
    const Status got = models.GetDigests(request, &reply, Deadline::After(kCallPatience));
    if (got.code() == StatusCode::kNotFound) return true;
    const auto count = static_cast<size_t>(reply.blocks_size());
    if (!got.ok() || reply.digests().size() != count * sizeof(model::BlockDigest)) return false;
    for (size_t i = 0; i < count; ++i) {
      model::BlockDigest digest;
      std::memcpy(digest.data(), reply.digests().data() + i * digest.size(), digest.size());
      take(reply.blocks(static_cast<int>(i)), digest);
    }
    *since += static_cast<uint32_t>(count);
    if (count == 0 || *since >= reply.known()) return true;
  }
}

bool ModelPuller::Impl::LearnDigests(uint32_t id, bool anew) {
  std::vector<std::pair<uint32_t, model::BlockDigest>> digests;
  ModelPull::Learned learned;
  if (!anew) {
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(id);
    if (pull == locked->pulls.end()) return true;
    learned = pull->second->learned_so_far();
  }
  const bool all = EachDigest(id, &learned.count, [&](uint32_t block, const auto& digest) {
    digests.emplace_back(block, digest);
  });
  std::vector<model::BlockDigest> damaged;
  NamespaceRef ns;
  {
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(id);
    if (pull == locked->pulls.end()) return all;
    for (const auto& [block, digest] : digests) pull->second->Learn(block, digest);
    if (all) pull->second->LearnedUpTo(learned);
    damaged = pull->second->TakeDamaged();
    ns = pull->second->name_space();
  }
  RemoveDamaged(ns, std::move(damaged));
  return all;
}

// Nobody has been told of these blocks. What another version that is at work has, too, stays.
void ModelPuller::Impl::RemoveDamaged(NamespaceRef ns, std::vector<model::BlockDigest> damaged) {
  if (damaged.empty()) return;
  {
    auto locked = state.Lock();
    for (const auto& [id, pull] : locked->pulls) pull->Spare(&damaged);
  }
  for (const model::BlockDigest& digest : damaged) {
    counters.damaged_blocks.Add();
    (void)options.store->Remove(ns, model::BlockKey(digest), [] {});
  }
}

// Which blocks are this server's, as soon as it has installed another view, or the namespace is
// another one.
void ModelPuller::Impl::FollowView() {
  const ViewCache::View view = options.views->view();
  const ViewVersion installed = options.ownership->version();
  if (view == nullptr || view->version() != installed) return;  // soon
  std::bitset<kSlotCount> owned;
  const NodeId self = options.ownership->self();
  for (uint16_t slot = 0; slot < kSlotCount; ++slot)
    owned[slot] = view->OwnerId(SlotId(slot)) == self;
  const ViewCache::Namespaces namespaces = options.views->namespaces();
  // Blocks that come from another server are read as they were there.
  std::vector<uint32_t> moved;
  {
    auto locked = state.Lock();
    for (const auto& [id, pull] : locked->pulls) {
      if (pull->view() != installed && pull->view() != ViewVersion()) moved.push_back(id);
    }
  }
  for (const uint32_t id : moved) {
    if (!LearnDigests(id)) break;  // no controller: it compares them later
  }
  const TimePoint now = Clock::System().Now();
  std::vector<ObjectPin> dropped;
  {
    auto locked = state.Lock();
    for (const auto& [id, pull] : locked->pulls) {
      pull->Retry(now);
      const NamespaceInfo* ns = namespaces->Find(pull->manifest()->name_space);
      if (ns != nullptr && pull->view() == installed && pull->name_space() == ns->ref) continue;
      // One that was deleted and made again is another one, and empty.
      std::vector<ObjectPin> lost =
          ns != nullptr ? pull->SetOwned(installed, ns->ref, owned) : pull->WithoutNamespace(now);
      std::ranges::move(lost, std::back_inserter(dropped));
    }
    locked->report_due = true;
  }
  work.notify_all();
  reports.notify_all();
}

// --- What the controller is told.

void ModelPuller::Impl::ReportLoop() {
  TimePoint all_at{};
  while (true) {
    std::vector<uint32_t> due;
    {
      auto locked = state.Lock();
      locked.WaitFor(reports, locked->pulls.empty() ? kIdle : kReportEvery,
                     [](const State& s) { return s.stopping || s.report_due; });
      if (locked->stopping) return;
    }
    if (stop.WaitFor(kReportSoon)) return;
    const TimePoint now = Clock::System().Now();
    // A running job is told of again and again: a controller that was restarted has forgotten.
    const bool all = now - all_at >= kReportEvery;
    if (all) all_at = now;
    {
      auto locked = state.Lock();
      locked->report_due = false;
      for (const auto& [id, pull] : locked->pulls) {
        if (pull->has_news() || (all && pull->running())) due.push_back(id);
      }
    }
    for (const uint32_t id : due) Report(id);
  }
}

void ModelPuller::Impl::Report(uint32_t id) {
  bool more = true;
  while (more && !stop.IsSet()) {
    v1::ReportPullRequest report;
    report.set_node_id(options.ownership->self().value());
    report.set_boot_id(options.boot_id);
    std::shared_ptr<const model::Manifest> manifest;
    {
      auto locked = state.Lock();
      const auto pull = locked->pulls.find(id);
      if (pull == locked->pulls.end()) return;
      pull->second->FillReport(&report);
      manifest = pull->second->manifest();
      more = pull->second->has_news();
    }
    report.set_read_bytes(sources.BytesRead(manifest->source));
    v1::ReportPullReply reply;
    const Status told = models.ReportPull(report, &reply, Deadline::After(kCallPatience));
    if (told.ok()) continue;
    // Other bytes than another server has read: those count. It would be refused again.
    if (told.code() == StatusCode::kFailedPrecondition && LearnDigests(id)) continue;
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(id);
    if (pull == locked->pulls.end()) return;
    pull->second->ReportFailed(report);
    return;  // it goes again within kReportEvery
  }
}

// --- Workers.

void ModelPuller::Impl::WorkLoop() {
  std::vector<std::byte> buffer;
  while (true) {
    PullSchedule::Work next;
    {
      auto locked = state.Lock();
      locked.WaitFor(work, buffer.empty() ? kIdle : kReportEvery, [&](State& s) {
        if (!s.stopping) next = s.schedule.Next(s.pulls);
        return s.stopping || next;
      });
      if (locked->stopping) return;
    }
    if (next.check) {
      RunCheck(*next.check);
      continue;
    }
    if (!next.pull) {
      buffer = {};  // nothing to do: its memory is of use elsewhere
      continue;
    }
    const model::ManifestSource& source = next.pull->manifest->source;
    const auto open = [&](uint32_t lane) { return sources.Open(source, lane); };
    Take(*next.pull, puller.Pull(*next.pull, open, &buffer));
    if (buffer.size() > kBufferBytesKept) buffer = {};
  }
}

void ModelPuller::Impl::Take(const ModelPull::Task& task, Result<BlockPuller::Pulled> pulled) {
  if (pulled.ok()) {
    const ModelPull::Outcome& outcome = pulled->outcome;
    counters.source_bytes.Add(static_cast<double>(outcome.source_bytes));
    counters.promoted_bytes.Add(static_cast<double>(outcome.promoted_bytes));
    if (outcome.shared) counters.shared_bytes.Add(static_cast<double>(outcome.source_bytes));
  } else if (pulled.status().code() != StatusCode::kCancelled) {
    counters.failed_pulls.Add();
    EMS_LOG(kWarn, "mp_server", "block {} of {} {}: {}", task.block, task.manifest->model,
            task.manifest->version, Message(pulled.status()));
    sources.Forget(task.manifest->source);
  }
  ObjectPin unused;
  bool later = false;
  {
    auto locked = state.Lock();
    locked->schedule.PullEnded(task.origin);
    const auto pull = locked->pulls.find(task.model_id);
    if (pull == locked->pulls.end()) return;
    if (pulled.status().code() == StatusCode::kCancelled) {
      pull->second->GiveBack(task);  // its source was not needed any more, and now it is
    } else if (!pulled.ok()) {
      pull->second->Fail(task, pulled.status());
    } else if (!pulled->ours) {
      pull->second->GiveBack(task);
      later = true;
    } else {
      unused = pull->second->Done(task, std::move(pulled->outcome));
    }
    locked->report_due = true;
  }
  reports.notify_one();
  work.notify_one();                     // it may be its turn to be checked
  if (later) stop.WaitFor(kReportSoon);  // a view is on its way: not in a tight loop
}

// Reads of versions that are not wanted any more end now.
void ModelPuller::Impl::DropSources(const std::vector<std::unique_ptr<ModelPull>>& gone) {
  std::vector<model::ManifestSource> of_gone, wanted;
  for (const auto& pull : gone) of_gone.push_back(pull->manifest()->source);
  {
    auto locked = state.Lock();
    for (const auto& [id, pull] : locked->pulls) wanted.push_back(pull->manifest()->source);
  }
  sources.Drop(of_gone, wanted);
  if (!gone.empty()) (void)kept.Clear();  // it may be theirs
}

// --- Sums of files.

void ModelPuller::Impl::CheckLoop() {
  std::vector<uint32_t> followed;
  uint64_t since = 0;
  while (true) {
    std::vector<uint32_t> ids;
    {
      auto locked = state.Lock();
      locked.WaitFor(checks, kIdle, [&](const State& s) {
        ids.clear();
        for (const auto& [id, pull] : s.pulls) {
          if (pull->checks()) ids.push_back(id);
        }
        return s.stopping || !ids.empty();
      });
      if (locked->stopping) return;
    }
    if (ids.empty()) continue;
    if (ids != std::exchange(followed, ids)) since = 0;
    const bool answered = FollowChecks(ids, &since, kChecksWait);
    if (stop.WaitFor(answered ? kChecksPause : kChecksRetry)) return;
  }
}

bool ModelPuller::Impl::FollowChecks(const std::vector<uint32_t>& ids, uint64_t* since,
                                     Duration wait) {
  v1::FollowChecksRequest request;
  request.set_since(*since);
  request.set_wait_ms(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()));
  for (const uint32_t id : ids) request.add_models(id);
  v1::FollowChecksReply reply;
  if (!models.FollowChecks(request, &reply, Deadline::After(wait + kCallPatience)).ok())
    return false;
  *since = reply.number();
  for (const v1::FileCheck& check : reply.files()) TakeChecks(check);
  return true;
}

void ModelPuller::Impl::TakeChecks(const v1::FileCheck& check) {
  std::vector<ObjectPin> lost;
  bool checked = false;
  {
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(check.model_id());
    if (pull == locked->pulls.end()) return;
    checked = pull->second->FollowCheck(check, &lost);
    locked->report_due = true;
  }
  // Not when the last file is checked: until they are learned, what is read again of these blocks
  // counts as it comes. Without the controller they are learned with the next file, view, or job.
  if (checked) (void)LearnDigests(check.model_id(), /*anew=*/false);
  work.notify_all();
  reports.notify_one();
}

void ModelPuller::Impl::RunCheck(const ModelPull::CheckTask& task) {
  const Result<FileChecker::Added> added = checker.Add(task);
  v1::FileCheck reply;
  Status told = added.status();
  if (added.ok() && added->blocks > 0) {
    counters.checked_bytes.Add(static_cast<double>(task.BytesOf(added->blocks)));
    v1::ReportCheckRequest report;
    report.set_model_id(task.model_id);
    report.set_file(task.file);
    report.set_started(task.started);
    report.set_round(task.round);
    report.set_first(task.first);
    report.set_state(added->state);
    for (uint32_t i = 0; i < added->blocks; ++i)
      report.mutable_digests()->append(AsText(task.digests[i]));
    told = models.ReportCheck(report, &reply, Deadline::After(kCallPatience));
    if (told.ok()) TakeChecks(reply);
  }
  if (!told.ok() && stop.WaitFor(kChecksRetry)) return;  // the same again, not in a tight loop
  {
    auto locked = state.Lock();
    locked->schedule.CheckEnded();
    const auto pull = locked->pulls.find(task.model_id);
    if (pull != locked->pulls.end() && told.code() == StatusCode::kUnimplemented)
      pull->second->FailCheck(task, told);
    else if (pull != locked->pulls.end())
      pull->second->CheckEnded(task, added.ok() ? added->missing : std::nullopt);
    locked->report_due = true;
  }
  work.notify_all();
  reports.notify_one();
}

ModelPuller::ModelPuller(const Options& options) : impl_(std::make_unique<Impl>(options)) {}

ModelPuller::~ModelPuller() = default;

void ModelPuller::KeepBlocks(const std::bitset<kSlotCount>& slots) {
  std::vector<BlockName> names;
  {
    auto locked = impl_->state.Lock();
    for (const auto& [id, pull] : locked->pulls) pull->NamesIn(slots, &names);
  }
  impl_->kept.Keep(&impl_->options.store->dram(), names);
}

}  // namespace ems::server
