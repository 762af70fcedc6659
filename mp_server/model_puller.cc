// Invariant: under the lock of the pulls there is no I/O and no call into the store; pins are
// dropped after it.
#include "mp_server/model_puller.h"

#include <algorithm>
#include <bitset>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/logging.h"
#include "common/retry.h"
#include "common/thread_pool.h"
#include "ems_model/source/credentials_file.h"
#include "ems_model/source/source_url.h"
#include "mp_controller/view/models_client.h"
#include "mp_controller/view/slot_table.h"
#include "mp_server/block_puller.h"
#include "mp_server/model_pull.h"
#include "proto/model.pb.h"

namespace ems::server {
namespace {

// How long a look at the list may wait: also how soon a new view is noticed.
constexpr Duration kListWait = std::chrono::seconds(10);
constexpr Duration kListWaitPinned = std::chrono::seconds(1);
constexpr Duration kListWaitWorking = std::chrono::milliseconds(100);
constexpr Duration kIdle = std::chrono::seconds(60);
constexpr size_t kSourcesMax = 64;  // that nobody reads from
constexpr Duration kCallPatience = std::chrono::seconds(2);
constexpr Duration kReportEvery = std::chrono::seconds(1);
constexpr Duration kReportSoon = std::chrono::milliseconds(20);  // gathers what comes together
constexpr size_t kBufferBytesKept = 16 * kMiB;

// Whoever reaches the controller names sources: not every folder of this machine is meant.
Status CheckFolder(const std::string& root, const std::string& folder) {
  if (root.empty()) {
    return Error(StatusCode::kPermissionDenied,
                 "{}: this server reads no folders of its machine; set models.file_root to one "
                 "that it may read",
                 folder);
  }
  std::error_code error;
  const auto real = std::filesystem::weakly_canonical(folder, error);
  const auto real_root = std::filesystem::weakly_canonical(root, error);
  const auto [end, at] =
      std::mismatch(real_root.begin(), real_root.end(), real.begin(), real.end());
  if (!error && end == real_root.end()) return OkStatus();
  return Error(StatusCode::kPermissionDenied, "{}: not below models.file_root, which is {}", folder,
               root);
}

// More than one origin may have: a source that does not answer holds its readers for minutes, and
// others are to go on meanwhile.
uint32_t WorkersOf(uint32_t pulls_max) { return pulls_max + (pulls_max + 3) / 4; }

struct Counters {
  explicit Counters(MetricsRegistry* registry)
      : source_bytes(registry->AddCounter("ems_server_model_source_bytes_total",
                                          "Bytes of models read from their sources")),
        promoted_bytes(registry->AddCounter("ems_server_model_promoted_bytes_total",
                                            "Bytes of models brought back from the SSD")),
        shared_bytes(registry->AddCounter(
            "ems_server_model_shared_bytes_total",
            "Bytes read from a source that were here already, as a block of another version")),
        failed_pulls(registry->AddCounter("ems_server_model_failed_pulls_total",
                                          "Blocks of models that could not be brought in")) {}
  Counter source_bytes, promoted_bytes, shared_bytes, failed_pulls;
};

}  // namespace

struct ModelPuller::Impl {
  struct State {
    std::map<uint32_t, std::unique_ptr<ModelPull>> pulls;  // by model
    std::map<std::string, uint32_t> busy;  // workers by origin, those of pulls that are gone, too
    bool stopping = false;
    bool report_due = false;
  };

  explicit Impl(const Options& options_in);
  ~Impl();

  void WatchLoop();
  // One look at the controller's list; false: it did not answer.
  bool Look(Duration wait);
  bool Begin(const v1::ModelStatus& status);
  bool LearnDigests(uint32_t id, uint32_t since);
  void FollowView();
  Duration ListWait();

  void ReportLoop();
  void Report(uint32_t id);

  void WorkLoop();
  std::optional<ModelPull::Task> NextTask(State* state);
  Result<BlockPuller::Pulled> Run(const ModelPull::Task& task, std::vector<std::byte>* buffer);
  void Take(const ModelPull::Task& task, Result<BlockPuller::Pulled> pulled);
  Result<std::shared_ptr<model::WeightSource>> SourceOf(const model::ManifestSource& source);
  void ForgetSource(const model::ManifestSource& source);
  void DropSources(const std::vector<std::unique_ptr<ModelPull>>& gone);

  const Options options;
  Counters counters;
  ModelsClient models;
  StopFlag stop;
  BlockPuller puller;
  uint64_t list_number = 0;  // the watch thread's
  bool reported_silence = false;
  Guarded<State> state;
  std::condition_variable work, reports;
  using SourceKey = std::tuple<std::string, std::string, uint64_t>;
  static SourceKey KeyOf(const model::ManifestSource& source) {
    return {source.url, source.credentials, source.bytes_per_s_max};
  }
  struct OpenedSource {
    std::shared_ptr<model::WeightSource> source;  // null: forgotten
    std::shared_ptr<StopFlag> stop;               // ends its reads
  };
  Guarded<std::map<SourceKey, OpenedSource>> sources;
  std::vector<Thread> threads;
};

ModelPuller::Impl::Impl(const Options& options_in)
    : options(options_in),
      counters(options.metrics),
      models(options.controller),
      puller(options.store, options.ownership, &stop) {
  threads.emplace_back("ems-model-watch", [this] { WatchLoop(); });
  threads.emplace_back("ems-model-tell", [this] { ReportLoop(); });
  for (uint32_t i = 0; i < WorkersOf(options.pulls_max); ++i)
    threads.emplace_back(fmt::format("ems-pull-{}", i), [this] { WorkLoop(); });
}

ModelPuller::Impl::~Impl() {
  stop.Set();
  models.Close();
  {
    auto locked = sources.Lock();
    for (const auto& [key, opened] : *locked) opened.stop->Set();
  }
  {
    auto locked = state.Lock();
    locked->stopping = true;
  }
  work.notify_all();
  reports.notify_all();
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
  std::set<uint32_t> there;
  std::vector<ObjectPin> dropped;
  bool all = true;
  for (const v1::ModelStatus& one : list.models()) {
    const bool wanted = one.pinned() || one.job().state() == v1::PULL_RUNNING;
    bool known = false, begins = false;
    if (wanted) there.insert(one.ref().id());
    {
      auto locked = state.Lock();
      const auto pull = locked->pulls.find(one.ref().id());
      begins = pull != locked->pulls.end() && wanted && pull->second->job() != one.job().number();
    }
    // What other servers have read since it was looked at.
    if (begins && !LearnDigests(one.ref().id(), 0)) all = false;
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
      gone.push_back(std::move(it->second));
      it = locked->pulls.erase(it);
    }
  }
  DropSources(gone);
  // What was read for a job that has ended is not to be read again for the next one.
  for (const auto& pull : gone) {
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
  (void)pull->Follow(status);
  {
    auto locked = state.Lock();
    locked->pulls[ref.id()] = std::move(pull);
  }
  if (LearnDigests(ref.id(), 0)) return true;
  auto locked = state.Lock();
  locked->pulls.erase(ref.id());
  return false;
}

bool ModelPuller::Impl::LearnDigests(uint32_t id, uint32_t since) {
  v1::GetDigestsRequest request;
  request.mutable_ref()->set_id(id);
  while (true) {
    request.set_since(since);
    v1::GetDigestsReply reply;
    const Status got = models.GetDigests(request, &reply, Deadline::After(kCallPatience));
    if (got.code() == StatusCode::kNotFound) return true;
    const auto count = static_cast<size_t>(reply.blocks_size());
    if (!got.ok() || reply.digests().size() != count * sizeof(model::BlockDigest)) return false;
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(id);
    if (pull == locked->pulls.end()) return true;
    for (size_t i = 0; i < count; ++i) {
      model::BlockDigest digest;
      std::memcpy(digest.data(), reply.digests().data() + i * digest.size(), digest.size());
      pull->second->Learn(reply.blocks(static_cast<int>(i)), digest);
    }
    since += static_cast<uint32_t>(count);
    if (count == 0 || since >= reply.known()) return true;
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
    if (!LearnDigests(id, 0)) break;  // no controller: it compares them later
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
    {
      auto locked = state.Lock();
      const auto pull = locked->pulls.find(id);
      if (pull == locked->pulls.end()) return;
      pull->second->FillReport(&report);
      more = pull->second->has_news();
    }
    v1::ReportPullReply reply;
    const Status told = models.ReportPull(report, &reply, Deadline::After(kCallPatience));
    if (told.ok()) continue;
    // Other bytes than another server has read: those count. It would be refused again.
    if (told.code() == StatusCode::kFailedPrecondition && LearnDigests(id, 0)) continue;
    auto locked = state.Lock();
    const auto pull = locked->pulls.find(id);
    if (pull == locked->pulls.end()) return;
    pull->second->ReportFailed(report);
    return;  // it goes again within kReportEvery
  }
}

// --- Workers.

// Of the version with the highest priority; of those, the one that has been known longest. An
// origin has pulls_max workers at most.
std::optional<ModelPull::Task> ModelPuller::Impl::NextTask(State* locked) {
  std::vector<ModelPull*> order;
  for (const auto& [id, pull] : locked->pulls) order.push_back(pull.get());
  std::ranges::stable_sort(order, std::greater<>{},
                           [](const ModelPull* p) { return p->priority(); });
  for (ModelPull* pull : order) {
    const auto busy = locked->busy.find(pull->origin());
    if (busy != locked->busy.end() && busy->second >= options.pulls_max) continue;
    auto task = pull->Next();
    if (!task) continue;
    ++locked->busy[pull->origin()];
    return task;
  }
  return std::nullopt;
}

void ModelPuller::Impl::WorkLoop() {
  std::vector<std::byte> buffer;
  while (true) {
    std::optional<ModelPull::Task> task;
    {
      auto locked = state.Lock();
      locked.WaitFor(work, buffer.empty() ? kIdle : kReportEvery, [&](State& s) {
        if (!s.stopping) task = NextTask(&s);
        return s.stopping || task.has_value();
      });
      if (locked->stopping) return;
    }
    if (!task) {
      buffer = {};  // nothing to do: its memory is of use elsewhere
      continue;
    }
    Take(*task, Run(*task, &buffer));
    if (buffer.size() > kBufferBytesKept) buffer = {};
  }
}

Result<BlockPuller::Pulled> ModelPuller::Impl::Run(const ModelPull::Task& task,
                                                   std::vector<std::byte>* buffer) {
  return puller.Pull(
      task, [this, &task] { return SourceOf(task.manifest->source); }, buffer);
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
    ForgetSource(task.manifest->source);
  }
  ObjectPin unused;
  bool later = false;
  {
    auto locked = state.Lock();
    const auto busy = locked->busy.find(task.origin);
    if (--busy->second == 0) locked->busy.erase(busy);
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
  if (later) stop.WaitFor(kReportSoon);  // a view is on its way: not in a tight loop
}

Result<std::shared_ptr<model::WeightSource>> ModelPuller::Impl::SourceOf(
    const model::ManifestSource& wanted) {
  const SourceKey key = KeyOf(wanted);
  auto flag = std::make_shared<StopFlag>();
  {
    auto locked = sources.Lock();
    const auto it = locked->find(key);
    if (it != locked->end() && it->second.source != nullptr) return it->second.source;
    if (it != locked->end()) flag = it->second.stop;
  }
  EMS_ASSIGN_OR_RETURN(const model::SourceUrl url, model::ParseSourceUrl(wanted.url));
  if (url.kind == model::SourceUrl::Kind::kFile)
    EMS_RETURN_IF_ERROR(CheckFolder(options.file_root, url.folder));
  model::SourceSpec spec;
  spec.url = wanted.url;
  spec.bytes_per_s_max = wanted.bytes_per_s_max;
  spec.connections_max = options.pulls_max;
  spec.stop = flag;
  if (!wanted.credentials.empty()) {
    EMS_ASSIGN_OR_RETURN(spec.credentials,
                         model::ReadCredentials(options.credentials_file, wanted.credentials));
  }
  EMS_ASSIGN_OR_RETURN(std::shared_ptr<model::WeightSource> made, model::OpenSource(spec));
  auto locked = sources.Lock();
  // Also a flag of one that was dropped meanwhile: a source with it would never read.
  if (stop.IsSet() || flag->IsSet()) return Error(StatusCode::kCancelled, "stopping");
  // A worker that reads holds it, too.
  if (locked->size() >= kSourcesMax)
    std::erase_if(*locked, [](const auto& one) { return one.second.source.use_count() <= 1; });
  OpenedSource& opened = (*locked)[key];
  if (opened.source == nullptr) opened = {std::move(made), flag};
  return opened.source;
}

// After a failure it is opened anew: with the keys that are in the file by then, and the folder
// that is mounted there by then. Reads that are under way go on, and end with the same flag.
void ModelPuller::Impl::ForgetSource(const model::ManifestSource& source) {
  std::shared_ptr<model::WeightSource> last;  // ends after the lock
  auto locked = sources.Lock();
  const auto it = locked->find(KeyOf(source));
  if (it != locked->end()) last = std::move(it->second.source);
}

// Reads of versions that are not wanted any more end now, not when a source that stalls gives up.
void ModelPuller::Impl::DropSources(const std::vector<std::unique_ptr<ModelPull>>& gone) {
  std::set<SourceKey> unused;
  for (const auto& pull : gone) unused.insert(KeyOf(pull->manifest()->source));
  {
    auto locked = state.Lock();
    for (const auto& [id, pull] : locked->pulls) unused.erase(KeyOf(pull->manifest()->source));
  }
  auto locked = sources.Lock();
  for (const SourceKey& key : unused) {
    const auto it = locked->find(key);
    if (it == locked->end()) continue;
    it->second.stop->Set();
    locked->erase(it);
  }
}

ModelPuller::ModelPuller(const Options& options) : impl_(std::make_unique<Impl>(options)) {}

ModelPuller::~ModelPuller() = default;

}  // namespace ems::server
